"""Two logs of one family that were led separately: an operator decides which one is kept. No input or output.

A promoted master writes and stops; the old master, which knows nothing of the promotion, leads alone and writes as
well. From then on either log has acknowledged messages that the other lacks, and epochs tell who was promoted last, not
which messages matter. So:

| this broker | the other broker | the other log | this broker does |
|---|---|---|---|
| is about to lead | leads, with no later epoch | has no byte that ours lacks | begins |
| is about to lead | leads, with no later epoch | has bytes that ours lacks | does not begin (`fork_that_holds`) |
| held, and was promoted | leads, with no later epoch | is the one it held for | begins, and gives those lives up |
| leads, or is about to | does not lead, and holds for this one | any | leads |
| follows | leads, with a later epoch | knows every life that wrote ours, or gave it up | cuts, and follows |
| follows | leads, with a later epoch | lacks a life in which this broker acknowledged | does not follow (`own_bytes`) |

The bytes that a replaced master wrote in a life that the promoted one copied are not in this table: the operator
decided about them by forcing that promotion.
"""

from __future__ import annotations

from collections.abc import Iterable

from pyromq.broker.failover.leadership import Fork, Member
from pyromq.broker.failover.members import Answered
from pyromq.broker.failover.role import Leading, epochs_of, extent_of
from pyromq.replication.log_matching import LogExtent, are_of_one_family, common_end
from pyromq.wire.bodies.epochs import BrokerEpochs


def fork_with(ours: LogExtent, other: Answered) -> Fork | None:
    """Return where another log of our family parts from ours; `None` if it has no byte that ours lacks."""
    theirs = extent_of(other.told)
    if not are_of_one_family(ours.epochs, theirs.epochs):
        return None
    position = common_end(theirs, ours)
    if theirs.end <= max(position, theirs.start):
        return None
    return Fork(other.address, other.told.member, position, ours.end - position, theirs.end - position)


def fork_that_holds(ours: LogExtent, answers: Iterable[Answered], decided: Fork | None = None) -> Fork | None:
    """Return why a broker that is about to lead does not begin: a leader whose log has bytes that ours lacks.

    `decided`: the fork that this broker was held for when it was promoted.
    """
    leaders = [one for one in answers if one.told.broker_id == 0]
    forks = [fork for one in leaders if (fork := fork_with(ours, one)) is not None]
    undecided = [one for one in forks if decided is None or one.member != decided.member]
    return max(undecided, key=lambda one: one.theirs, default=None)


def lives_given_up(ours: LogExtent, answers: Iterable[Answered]) -> tuple[str, ...]:
    """Return the lives that wrote bytes which a promoted broker lacks, in the logs of the brokers that answered."""
    found: dict[str, None] = {}
    for one in answers:
        theirs = extent_of(one.told)
        if are_of_one_family(ours.epochs, theirs.epochs):
            found |= dict.fromkeys(_lives_above(theirs, common_end(theirs, ours), {by.by for by in ours.epochs}))
    return tuple(found)


def own_bytes(ours: LogExtent, member: str, leader: BrokerEpochs) -> int:
    """Return how many bytes this member wrote as a leader in lives that `leader` neither knows nor gave up."""
    theirs = extent_of(leader)
    known = {*(one.by for one in epochs_of(leader)), *leader.gave_up}
    lives = _lives_above(ours, common_end(theirs, ours), known)
    return sum(size for by, size in lives.items() if by.rpartition(".")[0] == member)


def may_have_acknowledged(copies: int, known: Iterable[Member], leader: BrokerEpochs, address: str) -> bool:
    """Return whether a broker that led without `leader` can have acknowledged a message: it has `copies` at the least.

    Its own is one, and each other member that it knows may have another one.
    """
    others = [one for one in known if one.address != address and (not one.member or one.member != leader.member)]
    return copies <= 1 + len(others)


def fork_to_decide(leading: Leading, ours: LogExtent, leader: Answered) -> Fork | None:
    """Return the fork because of which a follower does not cut its log for `leader`; `None` if it may."""
    known, told = leading.known, leader.told
    if not own_bytes(ours, known.member, told):
        return None
    if not may_have_acknowledged(leading.copies_when_led, known.members, told, leader.address):
        return None
    position = common_end(extent_of(told), ours)
    return Fork(leader.address, told.member, position, ours.end - position, max(told.end - position, 0))


def _lives_above(log: LogExtent, position: int, known: Iterable[str]) -> dict[str, int]:
    """Return the bytes above `position` by the life that wrote them, without those of known lives."""
    left_out, found = set(known), dict[str, int]()
    for index, epoch in enumerate(log.epochs):
        size = min(log.end_of(index), log.end) - max(epoch.start, position)
        if size > 0 and epoch.by not in left_out:
            found[epoch.by] = found.get(epoch.by, 0) + size
    return found
