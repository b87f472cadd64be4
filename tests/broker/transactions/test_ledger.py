"""The ledger of transactions: what it decides, and that nothing gets lost whatever happens in which order."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pyromq.broker.transactions import ledger as ledger_module
from pyromq.broker.transactions.ledger import Act, Half, Key, Ledger, Limits, Positions, Step

LIMITS = Limits(timeout_ms=6_000, check_max=3, keep_ms=1_000_000)
BORN_MS = 10_000_000


def half(offset: int, *, origin: int | None = None, born_ms: int = BORN_MS, **more: int) -> Half:
    key = Key(offset if origin is None else origin, born_ms, "bank")
    return Half(offset, offset * 100, key, more.pop("stored_ms", born_ms), **more)


def planned(ledger: Ledger, age_ms: int, *, live: bool = True) -> list[Step]:
    return ledger.plan(BORN_MS + age_ms, LIMITS, lambda group: live and group == "bank")


def with_halves(*halves: Half) -> Ledger:
    ledger = Ledger(0, 0)
    for one in halves:
        ledger.half_seen(one)
    return ledger


# --- decisions -------------------------------------------------------------------------------------------------------


def test_a_half_is_asked_for_once_it_is_older_than_the_timeout() -> None:
    ledger = with_halves(half(0))
    assert planned(ledger, 6_000) == []
    assert planned(ledger, 6_001) == [Step(Act.CHECK, half(0))]


def test_a_half_may_have_a_patience_of_its_own() -> None:
    hasty, patient = half(0, patience_ms=1_000), half(1, patience_ms=60_000)
    ledger = with_halves(hasty, patient)
    assert planned(ledger, 1_001) == [Step(Act.CHECK, hasty)]
    assert planned(ledger, 60_001) == [Step(Act.CHECK, hasty), Step(Act.CHECK, patient)]


def test_a_producer_whose_clock_is_ahead_gets_no_more_time_than_others() -> None:
    ledger = with_halves(half(0, born_ms=BORN_MS + 3_600_000, stored_ms=BORN_MS))
    assert [step.act for step in planned(ledger, 6_001)] == [Act.CHECK]


def test_nobody_is_asked_while_no_producer_is_there() -> None:
    ledger = with_halves(half(0))
    assert planned(ledger, 60_000, live=False) == []


def test_after_the_last_check_a_half_is_put_aside_whoever_is_there() -> None:
    ledger = with_halves(half(0, checks=3))
    assert planned(ledger, 0, live=False) == [Step(Act.PUT_ASIDE, half(0, checks=3))]


def test_what_is_older_than_the_log_keeps_messages_is_put_aside() -> None:
    copy = half(1, origin=0, checks=1, stored_ms=BORN_MS + 1_000_000)
    fresh_of_a_slow_clock = half(2, stored_ms=BORN_MS + 1_000_000)
    ledger = with_halves(copy, fresh_of_a_slow_clock)
    assert planned(ledger, 1_000_001, live=False) == [Step(Act.PUT_ASIDE, copy)]


def test_one_that_has_to_wait_moves_back_when_it_holds_up_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "SPAN", 10)
    ledger = with_halves(half(0))
    ledger.read_to(10)
    assert planned(ledger, 60_000, live=False) == []
    ledger.read_to(11)
    assert planned(ledger, 60_000, live=False) == [Step(Act.RENEW, half(0))]
    assert planned(ledger, 5_000, live=False) == [], "it came a moment ago"
    assert ledger.has_room
    ledger.read_to(20)
    assert not ledger.has_room


def test_one_that_has_moved_stays_for_as_long_as_it_waited_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "SPAN", 10)
    copy = half(0, origin=-7, stored_ms=BORN_MS + 100_000)
    ledger = with_halves(copy)
    ledger.read_to(20)
    assert planned(ledger, 199_999, live=False) == []
    assert planned(ledger, 200_000, live=False) == [Step(Act.RENEW, copy)]


def test_nothing_is_done_to_a_half_that_is_being_ended() -> None:
    ledger = with_halves(half(0))
    assert ledger.begin(0, half(0).key) == 0
    assert planned(ledger, 60_000) == []
    assert not ledger.is_idle(0)
    ledger.release(0)
    assert [step.act for step in planned(ledger, 60_000)] == [Act.CHECK]


# --- ends ------------------------------------------------------------------------------------------------------------


def test_a_transaction_ends_once() -> None:
    ledger = with_halves(half(0))
    key = half(0).key
    assert ledger.begin(0, key) == 0
    assert ledger.begin(0, key) is None, "it is being ended"
    ledger.ended(0, key)
    assert ledger.begin(0, key) is None, "it has ended"


def test_a_transaction_may_end_before_its_half_was_read() -> None:
    ledger = Ledger(0, 0)
    assert ledger.begin(3, half(3).key) == 3
    ledger.ended(3, half(3).key)
    assert ledger.begin(3, half(3).key) is None
    ledger.half_seen(half(3))
    assert ledger.begin(3, half(3).key) is None
    assert ledger.positions().half == 4


def test_an_answer_for_an_old_copy_ends_the_newest() -> None:
    first, copy = half(0), half(1, origin=0, checks=1)
    ledger = with_halves(first)
    ledger.moved(first, 1)
    assert ledger.begin(0, first.key) == 1
    ledger.ended(1, first.key)
    ledger.half_seen(copy)
    assert ledger.begin(1, copy.key) is None
    assert ledger.positions().half == 2


def test_another_transaction_with_the_same_origin_is_another_transaction() -> None:
    ledger = with_halves(half(0))
    ledger.half_seen(half(1, origin=0, born_ms=BORN_MS + 1))
    assert ledger.is_open(0)
    assert ledger.is_open(1)


def test_an_answer_for_one_that_was_put_aside_is_still_heard_once() -> None:
    late = half(0, checks=3)
    ledger = with_halves(late)
    ledger.put_aside(late)
    assert ledger.begin(0, late.key) == 0
    ledger.ended(0, late.key)
    assert ledger.begin(0, late.key) is None


def test_only_the_last_of_those_put_aside_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "MAX_PUT_ASIDE", 2)
    ledger = with_halves(half(0), half(1), half(2))
    for offset in range(3):
        ledger.put_aside(half(offset))
    assert [ledger.begin(offset, half(offset).key) for offset in range(3)] == [None, 1, 2]


# --- positions -------------------------------------------------------------------------------------------------------


def test_positions_stop_at_the_first_open_half_and_the_first_end_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "OPS_IN_RUN", 1)
    ledger = with_halves(*(half(offset) for offset in range(4)))
    for op, ended in enumerate((0, 2, 3)):
        ledger.ended(ended, half(ended).key)
        ledger.op_written(op, [ended])
    assert ledger.positions() == Positions(half=1, op=1)
    ledger.ended(1, half(1).key)
    ledger.op_written(3, [1])
    assert ledger.positions() == Positions(half=4, op=4)


def test_what_cannot_be_read_holds_nobody_up() -> None:
    ledger = Ledger(0, 0)
    ledger.op_seen(0, [1, 5])
    ledger.read_to(3)
    ledger.half_seen(half(3))
    assert ledger.positions() == Positions(half=3, op=0)
    ledger.ended(3, half(3).key)
    assert ledger.positions().half == 4
    assert not ledger.is_open(5)


# --- in any order ----------------------------------------------------------------------------------------------------


class AnyOrder(RuleBasedStateMachine):
    """Producers, rounds, kills and restarts in any order, over two queues that are never wrong."""

    def __init__(self) -> None:
        super().__init__()
        self._span, ledger_module.SPAN = ledger_module.SPAN, 4
        self._run, ledger_module.OPS_IN_RUN = ledger_module.OPS_IN_RUN, 2
        self.halves: list[Half] = []
        self.ops: list[list[int]] = []
        self.saved = Positions(0, 0)
        self.ledger = Ledger(0, 0)
        self.now_ms = BORN_MS
        self.ended: set[Key] = set()
        self.aside: set[Key] = set()

    def teardown(self) -> None:
        ledger_module.SPAN, ledger_module.OPS_IN_RUN = self._span, self._run

    # The disk, which keeps all that was written to it.

    def append(self, one: Half) -> Half:
        stored = replace(one, offset=len(self.halves), position=len(self.halves), stored_ms=self.now_ms)
        self.halves.append(stored)
        return stored

    def record_end(self, offset: int) -> None:
        self.ops.append([offset])
        self.ledger.op_written(len(self.ops) - 1, [offset])

    def read_all(self, *, skips: bool = False) -> None:
        while self.ledger.half_next < len(self.halves):
            if skips:
                self.ledger.skip_ended(len(self.halves))
            for one in self.halves[self.ledger.half_next :][:2]:
                self.ledger.half_seen(one)

    # Events.

    @rule(patience_ms=st.sampled_from([None, 1, 50_000]))
    def send(self, patience_ms: int | None) -> None:
        offset = len(self.halves)
        self.append(replace(half(offset, born_ms=self.now_ms), patience_ms=patience_ms))

    @rule(data=st.data(), recorded=st.booleans())
    def end(self, data: st.DataObject, recorded: bool) -> None:
        """A producer ends any half that it ever heard of. Without `recorded`, the broker dies before it says so."""
        if not self.halves:
            return
        one = data.draw(st.sampled_from(self.halves))
        current = self.ledger.begin(one.offset, one.key)
        if current is None:
            assert one.key in self.ended | self.aside, "an open transaction could not be ended"
            return
        assert one.key not in self.ended, "a transaction ended twice"
        if recorded:
            self.ended.add(one.key)
            self.aside.discard(one.key)
            self.ledger.ended(current, one.key)
            self.record_end(current)
        else:
            self.ledger.release(current)
            self.restart(saves=False)

    @rule(live=st.booleans(), seconds=st.integers(0, 30), saves=st.booleans())
    def check_round(self, live: bool, seconds: int, saves: bool) -> None:
        self.now_ms += seconds * 1000
        self.read_all(skips=True)
        for act, one in self.ledger.plan(self.now_ms, LIMITS, lambda group: live):
            assert one.key not in self.ended
            if act is Act.PUT_ASIDE:
                self.aside.add(one.key)
                self.record_end(one.offset)
                self.ledger.put_aside(one)
                continue
            checked = act is not Act.RENEW
            copy = self.append(replace(one, checks=one.checks + checked))
            if checked:
                self.record_end(one.offset)
            self.ledger.moved(one, copy.offset)
        if saves:
            self.saved = self.ledger.positions()

    @rule(saves=st.booleans())
    def restart(self, saves: bool) -> None:
        if saves:
            self.saved = self.ledger.positions()
        self.ledger = Ledger(*self.saved)
        for op in range(self.saved.op, len(self.ops)):
            self.ledger.op_seen(op, self.ops[op])
        self.read_all()

    # Invariants.

    @invariant()
    def what_is_open_can_be_ended_and_is_asked_for(self) -> None:
        newest = {one.key: one for one in self.halves}
        for key, one in newest.items():
            if key not in self.ended | self.aside:
                assert self.ledger.is_open(one.offset)
                assert self.ledger.positions().half <= one.offset

    @invariant()
    def what_has_ended_stays_so(self) -> None:
        for one in self.halves:
            if one.key in self.ended | self.aside:
                assert not self.ledger.is_open(one.offset)

    @invariant()
    def no_end_is_passed_that_may_still_be_needed(self) -> None:
        positions = self.ledger.positions()
        assert all(max(ended) < positions.half for ended in self.ops[: positions.op])


TestAnyOrder = AnyOrder.TestCase
