"""One master of a name: a leader looks for other leaders, and the one with the smaller epoch stands down.

Before it begins to lead, and every second from then on, a master asks the other brokers of its name. One with a larger
epoch was chosen later: we stand down. One that copied more of our log than a crash has left us is asked to lead in our
place, so that nothing is cut that it has acknowledged. If no broker answers, we lead. A sync master does not after a
crash: its acknowledged messages may be in its slaves' logs alone, so it waits for them, or to be promoted. A broker
that finds another one leading a fork of its log does not begin either (see `forks`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from pyromq.broker.failover.forks import fork_that_holds, fork_with, lives_given_up
from pyromq.broker.failover.leadership import BEGIN_MS, Fork, Member
from pyromq.broker.failover.members import Answered, Others
from pyromq.broker.failover.promotion_check import has_answered, living_leader
from pyromq.broker.failover.role import FIRST_NUMBER, Leading, Verdict, epochs_of, extent_of, judge
from pyromq.clock import Clock
from pyromq.errors import PyroMQError
from pyromq.net.client import Client
from pyromq.replication.log_matching import LogExtent, are_of_one_family, has_our_tail
from pyromq.wire.bodies.epochs import BrokerEpochs
from pyromq.wire.codes import ResponseCode
from pyromq.wire.requests.roles import PromoteBroker

log = logging.getLogger("pyromq.broker")

#: The interval at which a master looks for others: messages accepted after it was replaced are lost to its consumers.
WATCH_SECONDS = 1.0
#: A master that has not looked for this long stood still. Looking takes two questions of a second each at most.
GOOD_SECONDS = 6.0
#: After a crash, former followers have this long to answer: they may have messages that we have lost.
TAIL_SECONDS = 3.0
AGAIN_SECONDS = 0.2
#: A slave flushes what it has before it says yes.
PROMOTE_SECONDS = 10.0
#: A promoted broker begins within this time, or not at all.
BEGIN_SECONDS = BEGIN_MS / 1000
#: The interval of log lines about a waiting master.
SAY_AGAIN_SECONDS = 30.0


class Fencing:
    """Of one broker that leads, or is about to."""

    def __init__(
        self, leading: Leading, others: Others, client: Client, clock: Clock, extent: Callable[[], LogExtent]
    ) -> None:
        self._leading = leading
        self._others = others
        self._client = client
        self._clock = clock
        self._extent = extent
        self._warned: set[str] = set()
        #: Another broker was asked to lead, and may begin to until then.
        self._in_doubt_until = clock.monotonic()

    # --- before it leads ---------------------------------------------------------------------------------------------

    async def may_lead(self, *, after_crash: bool) -> bool:
        """Return False if another broker leads, or may have to: then this one is a slave, and that has been written.

        Raises OSError.
        """
        until = self._clock.monotonic() + TAIL_SECONDS
        while True:
            answers = await self._others.survey(before_leading=True)
            if await self._was_settled(answers) or await self._gave_way(answers):
                return False
            comparable = self._comparable(answers)
            missing = [one.address for one in self._leading.known.members if not has_answered(one, comparable)]
            has_lost = self._best(answers) is not None
            now = self._clock.monotonic()
            if now > self._in_doubt_until and (now > until or not (has_lost or (after_crash and missing))):
                break
            await asyncio.sleep(AGAIN_SECONDS)
        if (after_crash or has_lost) and not (self._have_answered(answers) and self._may_do_without(answers)):
            self._leading.wait(await self._others.free_id(""))
            return False
        if missing and after_crash:
            log.warning("leading after a crash, although nobody answers at %s", ", ".join(missing))
        if self._leading.known.pending is not None:
            self._leading.gives_up = lives_given_up(self._extent(), answers)
        return True

    def _have_answered(self, answers: list[Answered]) -> bool:
        """Is what a sync master has acknowledged in no other log than those that answered, and its own?

        At most `copies - 2` slaves may be missing; if the number of copies adapts, none may be.
        """
        copies, replication = self._leading.meant.copies, self._leading.meant.replication
        comparable = self._comparable(answers)
        missing = [one for one in self._leading.known.slaves if not has_answered(one, comparable)]
        spare = 0 if replication.adapts else max(copies - 2, 0)
        return copies < 2 or len(missing) <= spare

    def _comparable(self, answers: list[Answered]) -> list[Answered]:
        """Leave out slaves of Apache's, which know no epochs, that have more than we do: it may be what we lost."""
        end = self._extent().end
        return [one for one in answers if one.told.entries or one.told.member or one.told.end <= end]

    def _may_do_without(self, answers: list[Answered]) -> bool:
        """Return False for a sync master if another broker has what it lost, and was not promoted yet."""
        return self._leading.meant.copies < 2 or self._best(answers) is None

    async def _gave_way(self, answers: list[Answered]) -> bool:
        """Not begin to lead while another broker leads this log: a promotion that is pending is void if the leader has
        more, of two with one epoch the one that leads already continues, and an operator decides about a fork.

        Raises OSError.
        """
        leading, ours = self._leading, self._extent()
        rival = self._twin(answers)
        if rival is not None and leading.known.pending is not None:
            leading.void_promotion(f"{rival.address} was promoted at the same time, and leads already")
            return True
        if rival is not None:
            leading.twin = rival.address
            leading.wait(await self._others.free_id(""))
            return True
        leader = living_leader(ours, answers)
        if leader is not None and leader.told.end > ours.end and await self._follows_longer(leader, ours):
            return True
        fork = None if leading.known.pending is not None else self._fork(answers)
        if fork is None:
            return False
        leading.hold(fork, await self._others.free_id(fork.address))
        return True

    async def _follows_longer(self, leader: Answered, ours: LogExtent) -> bool:
        """Give way to a leader that has more, if this broker has written nothing in its epoch. Raises OSError."""
        leading, decided = self._leading, self._decided_fork
        why = (
            f"{leader.address} leads, with epoch {leader.told.newest}, and its log goes to {leader.told.end}, ours to "
            f"{ours.end}: its messages above that would be lost. Stop it first if that is to be"
        )
        if leading.known.pending is not None:
            if decided is not None and decided.member == leader.told.member:
                return False
            leading.void_promotion(why)
            return True
        if leading.led_nothing_since(leader.told.newest, ours.end):
            log.error("this broker began to lead with epoch %d and wrote nothing: %s", leading.number, why)
            number = await self._others.free_id(leader.address)
            leading.give_way(leader.told.newest, number, Member(leader.address, 0, leader.told.ha_address))
            return True
        return False

    @property
    def _decided_fork(self) -> Fork | None:
        """The fork that this broker was held for when it was promoted; None if it was not."""
        known = self._leading.known
        return known.fork if known.pending is not None else None

    def _fork(self, answers: list[Answered]) -> Fork | None:
        return fork_that_holds(self._extent(), answers, self._decided_fork)

    def _is_still_held(self, answers: list[Answered]) -> bool:
        """Return whether an operator has to decide about the fork that this broker waits for."""
        fork = self._leading.known.fork
        if fork is None:
            return False
        answer = next((one for one in answers if one.told.member == fork.member), None)
        if answer is None:
            return True
        self._leading.fork_now = fork_with(self._extent(), answer)
        return self._leading.fork_now is not None

    def _twin(self, answers: list[Answered]) -> Answered | None:
        """Return a broker that leads a log of our family with our number: neither was promoted over the other."""
        ours = self._extent()
        if not ours.epochs:
            return None
        twins = (
            one for one in answers if self._verdict(one) is Verdict.TWIN and one.told.newest == self._leading.number
        )
        return next((one for one in twins if are_of_one_family(ours.epochs, epochs_of(one.told))), None)

    async def wait_to_lead(self) -> str:
        """Wait until enough members have answered, or another broker leads. Returns the reason for the restart."""
        said = -SAY_AGAIN_SECONDS
        while True:
            if self._clock.monotonic() - said >= SAY_AGAIN_SECONDS:
                said = self._clock.monotonic()
                log.error("%s", self._leading.why_it_waits)
            try:
                answers = await self._others.survey(before_leading=True)
                if await self._was_settled(answers):
                    return "another broker leads: this one has lost the end of its log, or was replaced"
                twin = self._twin(answers)
                self._leading.twin = "" if twin is None else twin.address
                is_free = twin is None and not self._is_still_held(answers)
                if is_free and self._best(answers) is None and self._have_answered(answers):
                    self._leading.wait_no_longer()
                    return "those who copied its log have answered, and none has more: it leads"
            except OSError as error:
                log.error("this broker goes on waiting: %s", error)
            await asyncio.sleep(WATCH_SECONDS)

    async def _was_settled(self, answers: list[Answered]) -> bool:
        for one in answers:
            if self._verdict(one) is Verdict.STAND_DOWN:
                await self.note_standing_down(one)
                return True
        best = self._best(answers)
        if best is None or self._leading.known.fork is not None or self._fork(answers) is not None:
            return False
        return self._have_answered(answers) and await self._hand_over_to(best)

    def _best(self, answers: list[Answered]) -> Answered | None:
        """Return the broker with the most of the messages that we have lost."""
        lost = [one for one in answers if self._verdict(one) is Verdict.HAND_OVER]
        return max(lost, key=lambda one: one.told.end, default=None)

    async def _hand_over_to(self, other: Answered) -> bool:
        number, end = max(self._leading.number, other.told.newest) + 1, self._extent().end
        log.error(
            "our log ends at %d, and %s has copied it up to %d: it is asked to lead, so that nothing is lost",
            end, other.address, other.told.end,
        )  # fmt: skip
        request = PromoteBroker(
            epoch=number, role=self._leading.meant.role, reason="the master lost the end of its log", position=end,
            deadline_ms=deadline(other.told), force=bool(self._extent().epochs),
        )  # fmt: skip
        asked_at = self._clock.monotonic()
        try:
            self._others.trust.prove(request, other.told)
            answer = await self._client.call(other.address, request, PROMOTE_SECONDS)
        except PyroMQError as problem:
            log.error("%s was asked to lead, and did not answer: %s", other.address, problem)
            self._in_doubt_until = asked_at + PROMOTE_SECONDS + BEGIN_SECONDS
            return False
        if answer.code != ResponseCode.SUCCESS:
            log.error("%s does not lead: %s", other.address, answer.reason)
            return False
        self._leading.stand_down(
            number, await self._others.free_id(other.address), Member(other.address, 0, other.told.ha_address)
        )
        return True

    async def note_standing_down(self, other: Answered) -> None:
        """On the disk: we are a slave with the next start. Raises OSError."""
        leads = other.told.broker_id == 0
        log.error(
            "%s knows of epoch %d, and ours is %d: another broker was chosen %s, and this one is a slave now",
            other.address, other.told.newest, self._leading.number,
            "since" if other.told.newest > self._leading.number else "at the same time, and is to lead",
        )  # fmt: skip
        master = Member(other.address, 0, other.told.ha_address) if leads else None
        number = await self._others.free_id(other.address if leads else "")
        self._leading.stand_down(other.told.newest, number, master)

    # --- while it leads ----------------------------------------------------------------------------------------------

    async def watch(
        self,
        stand_down: Callable[[Answered], Awaitable[None]],
        looked: Callable[[float], None] = lambda seconds: None,
        close: Callable[[str | None], None] = lambda why: None,
    ) -> None:
        """Run until a broker with a larger epoch is found. `looked` receives the time for which a check is valid.

        `close` receives the reason to refuse sends although we do not stand down; None if they may be accepted.
        """
        while True:
            if self._others.are_there:
                looked(GOOD_SECONDS)
            await self._others.news(WATCH_SECONDS)
            answers = await self._others.survey()
            close(self._why_closed(answers))
            for one in answers:
                verdict = self._verdict(one)
                if verdict is Verdict.STAND_DOWN:
                    try:
                        return await stand_down(one)
                    except OSError as error:
                        log.critical("nothing is taken any more, and this broker cannot become a slave: %s", error)
                if verdict in (Verdict.OUTRANKED, Verdict.TWIN):
                    self._warn(one, verdict)
                elif self._holds_for_us(one):
                    self._warn_of_fork(one)
            await asyncio.sleep(min(AGAIN_SECONDS, WATCH_SECONDS))

    def _why_closed(self, answers: list[Answered]) -> str | None:
        """Another broker leads our log as well, or one with another log was promoted under our name, after us."""
        twin = self._twin(answers)
        if twin is not None:
            return (
                f"{twin.address} leads the log of this broker as well, with the same epoch {twin.told.newest}: one of "
                "the two stores is a copy of the other. Nothing is accepted at both until one of them is stopped"
            )
        ours = self._extent()
        ahead = next(
            (one for one in answers if one.told.broker_id != 0 and has_our_tail(ours, extent_of(one.told))), None
        )
        if ahead is not None:
            return (
                f"{ahead.address} has copied the log of this life up to {ahead.told.end}, and it ends at {ours.end}: "
                "the machine was set back to an earlier moment while it ran. Nothing is accepted; restart this broker"
            )
        for one in answers:
            number = one.told.newest
            if self._verdict(one) is Verdict.TWIN and number > max(self._leading.number, FIRST_NUMBER):
                return (
                    f"{one.address} was promoted to lead {one.told.name} with epoch {number}, and this broker has "
                    f"another log, with epoch {self._leading.number}: nothing is accepted here; stop one of them"
                )
        return None

    def _warn(self, other: Answered, verdict: Verdict) -> None:
        if other.address not in self._warned:
            self._warned.add(other.address)
            means = "it was replaced by this one" if verdict is Verdict.OUTRANKED else "nobody knows which of us leads"
            log.warning(
                "%s takes itself for the master of %s as well, with epoch %d, ours is %d: %s; stop it",
                other.address, other.told.name, other.told.newest, self._leading.number, means,
            )  # fmt: skip

    def _warn_of_fork(self, other: Answered) -> None:
        if other.address not in self._warned and (fork := fork_with(self._extent(), other)) is not None:
            self._warned.add(other.address)
            log.warning(
                "%s has %d bytes above position %d that this broker lacks, of an epoch that it led; this broker has %d "
                "bytes there, and goes on leading. Decide which log to keep: `pyromq broker promote --force ADDRESS` "
                "with the address of that broker moves what the other one has to quarantine",
                other.address, fork.theirs, fork.position, fork.ours,
            )  # fmt: skip

    def _holds_for_us(self, other: Answered) -> bool:
        """Return whether another broker does not lead because this one has led a fork of its log."""
        told = other.told
        return told.broker_id != 0 and told.held_for != "" and told.held_for == self._leading.known.member

    async def outranks(self, address: str) -> bool:
        """Is the one that has our name and id there no reason not to lead? It was replaced, or is a slave by now."""
        try:
            answer = await self._others.ask_trusted(address)
        except PyroMQError:
            return False
        if answer is None:
            return False
        return answer.told.broker_id != self._leading.config.broker_id or self._verdict(answer) is Verdict.OUTRANKED

    def _verdict(self, other: Answered) -> Verdict:
        if not other.told.entries and not other.told.member:
            return Verdict.NOTHING  # a slave of Apache's: it cannot be promoted by us
        if self._holds_for_us(other):
            return Verdict.NOTHING
        return judge(self._leading.number, self._extent(), other.told)


def deadline(told: BrokerEpochs) -> int:
    """By when a slave that has just told of itself has to have been promoted, by its own clock: later we go on."""
    return told.clock_ms + int(PROMOTE_SECONDS * 1000) if told.clock_ms else 0
