"""Which queue a message goes to: in turn, by key, and not where it just failed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyromq.client.sending.fault_backoff import FaultBackoff
from pyromq.client.sending.queue_choice import TurnTaking, queue_of_key
from pyromq.clock import ManualClock
from pyromq.model.queue import MessageQueue

QUEUES = tuple(MessageQueue("orders", broker, number) for broker in ("a", "b", "c") for number in range(4))


def taking_turns() -> tuple[FaultBackoff, TurnTaking]:
    backoff = FaultBackoff(ManualClock())
    return backoff, TurnTaking(backoff, start=5)


def test_every_queue_gets_its_turn() -> None:
    _, turns = taking_turns()
    assert sorted(turns.next(QUEUES) for _ in QUEUES) == sorted(QUEUES)


def test_a_retry_goes_to_another_broker() -> None:
    _, turns = taking_turns()
    assert {turns.next(QUEUES, ["b"]).broker_name for _ in range(20)} == {"a", "c"}


def test_an_avoided_broker_gets_nothing() -> None:
    backoff, turns = taking_turns()
    backoff.failed("a", 1e18)
    assert {turns.next(QUEUES).broker_name for _ in range(20)} == {"b", "c"}
    assert len({turns.next(QUEUES) for _ in range(40)}) == 8, "the turn goes round all that are left"


def test_when_all_are_avoided_one_that_has_not_just_failed_is_taken() -> None:
    backoff, turns = taking_turns()
    for broker in "abc":
        backoff.failed(broker, 1e18)
    assert {turns.next(QUEUES, ["a", "c"]).broker_name for _ in range(10)} == {"b"}


def test_with_one_broker_there_is_no_other_to_go_to() -> None:
    _, turns = taking_turns()
    alone = QUEUES[:4]
    assert len({turns.next(alone, ["a"]) for _ in range(8)}) == 4


@pytest.mark.parametrize(
    ("key", "index"),
    [
        ("a", 97 % 12),
        ("order-17", 1234255109 % 12),
        ("polygenelubricants", (1 << 31) % 12),  # its hash is the least of all ints, which has no positive twin in Java
    ],
)
def test_a_sharding_key_has_the_queue_that_java_finds_for_it(key: str, index: int) -> None:
    assert queue_of_key(QUEUES, key) == QUEUES[index]


@given(st.text(min_size=1), st.integers(1, 20))
def test_a_key_has_one_queue(key: str, count: int) -> None:
    queues = [MessageQueue("t", "b", number) for number in range(count)]
    assert queue_of_key(queues, key) is queue_of_key(queues, key)
