"""Decides if a broker may be promoted: which acknowledged messages it may lack. No input or output.

An acknowledged message is in the logs of a number of brokers, one for an async master. It is in the log of the broker
that is promoted, or of one that answered and has no more than that, unless all its copies are on brokers that did not
answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pyromq.broker.failover.leadership import Member
from pyromq.broker.failover.members import Answered
from pyromq.broker.failover.role import epochs_of, extent_of
from pyromq.replication.log_matching import LogExtent, are_of_one_family

FORCE = "`pyromq broker promote --force`"


@dataclass(frozen=True, slots=True)
class Candidate:
    """The broker that is to be promoted."""

    log: LogExtent
    #: Copies of an acknowledged message, the leader's own included, at the least.
    copies: int
    #: Its log has everything that the leader acknowledged with it: it is neither a broker that a crash may have
    #: shortened, nor a follower that is still copying the log from before it joined.
    is_whole: bool = True


def why_not_to_promote(
    candidate: Candidate, known: Sequence[Member], answers: Sequence[Answered], unknown_leader: bool
) -> str | None:
    """Return the possible loss by this promotion; None if there is none. `unknown_leader`: no entry is the leader."""
    leader = living_leader(candidate.log, answers)
    if leader is not None:
        return (
            f"{leader.address} leads and answers, with a log up to {leader.told.end}: what it acknowledges from now on "
            "would be lost. Have it hand over (`pyromq broker promote` with the name of the broker), or stop it"
        )
    better = max((one for one in answers if has_more(candidate.log, one)), key=lambda one: one.told.end, default=None)
    if better is not None:
        return (
            f"{better.address} (id {better.told.broker_id}) has more: its log goes to {better.told.end}, this one "
            f"to {candidate.log.end}. Promote that one (`pyromq broker promote {better.address}`); with {FORCE} its "
            "messages above that may be lost, acknowledged ones too"
        )
    missing = [_named(one) for one in known if not has_answered(one, answers)]
    if unknown_leader:
        missing.append("the master, whose address is not known here,")
    if len(missing) + (not candidate.is_whole) < candidate.copies:
        return None
    if not missing:
        return None if candidate.is_whole else _lost_tail()
    held = "an async master acknowledges messages that it alone has"
    if candidate.copies > 1:
        held = f"an acknowledged message has {candidate.copies} copies, and all may be there"
    return (
        f"no answer from {' and '.join(missing)}: acknowledged messages may be lost that this broker, with a log up to "
        f"{candidate.log.end}, does not have ({held}). Start it and try again; if it is gone for good, {FORCE} leads "
        "without it"
    )


def _lost_tail() -> str:
    return (
        "this broker may have lost the end of its log in a crash, and no other broker of the name is known: "
        f"acknowledged messages may be lost; {FORCE} leads without them"
    )


def living_leader(log: LogExtent, answers: Iterable[Answered]) -> Answered | None:
    """Return a broker that leads a log which belongs to this one."""
    return next((one for one in answers if one.told.broker_id == 0 and _is_family(log, one)), None)


def has_more(log: LogExtent, other: Answered) -> bool:
    """Return whether the other broker's log has messages that this one lacks and that were not given up since."""
    theirs = extent_of(other.told)
    if theirs.is_empty or not _is_family(log, other):
        return False
    ours_reached = [one for one in log.epochs if one.start <= log.end]
    theirs_reached = [one for one in theirs.epochs if one.start <= theirs.end]
    if ours_reached and theirs_reached and ours_reached[-1] != theirs_reached[-1]:
        ours_last, theirs_last = ours_reached[-1], theirs_reached[-1]
        if ours_last.number != theirs_last.number:
            return theirs_last.number > ours_last.number
        if theirs_last in ours_reached:  # it did not follow the last life of the leader, which led over its end
            return False
        if ours_last in theirs_reached:
            return True
    return theirs.end > log.end


def _is_family(log: LogExtent, other: Answered) -> bool:
    """A log without epochs was copied from a broker that has none: it cannot be told apart."""
    return not log.epochs or not other.told.entries or are_of_one_family(log.epochs, epochs_of(other.told))


def has_answered(member: Member, answers: Iterable[Answered]) -> bool:
    """Return whether this very store answered. Another store at its address does not have its log."""
    return any(_is_it(member, one) for one in answers)


def _is_it(member: Member, answer: Answered) -> bool:
    if member.member and answer.told.member:
        return member.member == answer.told.member
    return member.address == answer.address


def _named(member: Member) -> str:
    return f"{member.address} ({'the master' if member.broker_id == 0 else f'id {member.broker_id}'})"
