"""Both ends of one replication connection, without the connection: bytes in, bytes out, and the time handed in.

The primary's end decides the next bytes to send; the replica's end checks received bytes, appends them and reports.
Their driver, sockets or a simulated network, only carries bytes.
"""

from __future__ import annotations

from typing import NamedTuple

from pyromq.errors import BadFrame, PyroMQError
from pyromq.replication.admission import Greeting
from pyromq.replication.arrival import Checked, StreamDamaged, begun_size, check_arrived
from pyromq.replication.followers import Followers
from pyromq.replication.frames import (
    HELLO,
    MAX_PUSH,
    Push,
    PushReader,
    ReportReader,
    encode_grant,
    encode_report,
)
from pyromq.replication.identity import Identity
from pyromq.replication.introduction import Introduction
from pyromq.replication.log import CopyLog, ReadLog
from pyromq.replication.log_matching import first_position


class StreamTimes(NamedTuple):
    """RocketMQ's times, in ms."""

    #: Send a heartbeat after this silence.
    heartbeat: int = 5_000
    #: The peer is gone after this silence.
    housekeeping: int = 20_000
    #: A connection that does not report its log's end within this time is no replica.
    hello: int = 10_000


class Silence(PyroMQError):
    """The other side has said nothing for too long."""


class Gap(PyroMQError):
    """The primary's bytes do not follow the end of the replica's log."""


class LeftBehind(Gap):
    """The primary no longer has what follows the replica's log: it begins at `position` now."""

    def __init__(self, ours: int, position: int) -> None:
        self.position = position
        super().__init__(
            f"our log ends at {ours}, and the primary's begins at {position}: what is between is gone there; our log "
            "has to be put aside, and a new copy begins there"
        )


class Ahead(PyroMQError):
    """The replica has more than the primary: it has led, or copies another log."""


class Displaced(PyroMQError):
    """The same follower has a newer connection."""


class Span(NamedTuple):
    """Bytes of the log that are to be sent now; without length a sign of life."""

    position: int
    length: int


class _Goal(NamedTuple):
    """The log ended there then."""

    end: int
    at_ms: int


class PrimaryStream:
    """The end that gives. One for each replica."""

    def __init__(
        self,
        name: str,
        log: ReadLog,
        *,
        batch_bytes: int,
        whole_log: bool,
        times: StreamTimes,
        now_ms: int,
        greeting: Greeting | None = None,
    ) -> None:
        """Without a `greeting` the follower is served and never counts."""
        self.name = name
        self.greeting = greeting
        self._log = log
        self._reports = ReportReader()
        self._batch_bytes = batch_bytes
        self._whole_log = whole_log
        self._times = times
        self._heard_ms = now_ms
        self._said_ms = now_ms
        #: It copies for itself alone, a backup: no promise is ever kept by what it has.
        self.observes = False
        #: Up to where the replica asked to be sent; None: it never asked, and is sent what there is.
        self._asked_to: int | None = None
        #: The report that makes it count as in sync.
        self._goal: _Goal | None = None
        #: From where the next bytes go; None before the replica has said where it is.
        self.next_position: int | None = None

    def received(self, data: bytes, followers: Followers, now_ms: int) -> Followers:
        """Take bytes from the replica. Raises BadFrame, Ahead, Refused, Displaced."""
        if self.next_position is None and self.greeting is not None and not self.greeting.is_over:
            self.greeting.feed(data, followers, now_ms)
            if not self.greeting.is_over:
                return followers
            data = self.greeting.rest()
        words = self._reports.feed(data)
        self.observes |= words.observes
        if words.first is not None and self.next_position is None:
            followers = self._begin(words.first, followers, now_ms)
        if words.granted:
            assert self.next_position is not None
            self._asked_to = (self.next_position if self._asked_to is None else self._asked_to) + words.granted
        if words.newest is None:
            return followers
        self._heard_ms = now_ms
        if self.observes:
            return followers
        if self.name not in followers.by_name:
            raise Displaced(f"{self.name} is an older connection of a follower that has a newer one")
        return followers.heard(self.name, words.newest, now_ms, level_ms=self._level_ms(words.newest, now_ms))

    @property
    def is_follower(self) -> bool:
        """Return whether it has joined the followers."""
        return self.next_position is not None and not self.observes

    def take_answer(self) -> bytes:
        """Return the frames of the handshake that are to be sent to the follower now."""
        if self.greeting is None:
            return b""
        answer, self.greeting.answer = self.greeting.answer, b""
        return answer

    @property
    def identity(self) -> Identity | None:
        return self.greeting.identity if self.greeting is not None else None

    def _level_ms(self, reported: int, now_ms: int) -> int | None:
        """Return the time at which the replica had the whole log, if this report is the first to show it.

        A log that grows all the time is never had to its end: so it is asked where it ended when something was sent,
        and next when that has arrived.
        """
        if reported >= self._log.log_end:
            self._goal = None
            return now_ms
        goal = self._goal
        if goal is None or reported < goal.end:
            return None
        self._goal = None
        return goal.at_ms

    def _begin(self, reported: int, followers: Followers, now_ms: int) -> Followers:
        log = self._log
        if self.greeting is not None:
            self.greeting.check_first(reported)
        whole_log = self._whole_log or self.observes
        start = first_position(reported, log.log_start, log.log_end, log.last_segment_start, whole_log=whole_log)
        if start is None:
            raise Ahead(
                f"the replica {self.name} has a log up to {reported}, and this one ends at {log.log_end}: it has led, "
                "or copies another broker; compare both, and cut the longer one before it follows"
            )
        self.next_position, self._said_ms = start, now_ms
        if self.observes:
            self._asked_to = start  # it asks for all that it is sent
            return followers
        return self._join(start, reported, followers, now_ms)

    def _join(self, start: int, reported: int, followers: Followers, now_ms: int) -> Followers:
        greeting = self.greeting
        if greeting is None:
            return followers.joined(self.name, start, now_ms, reported=reported)
        followers = greeting.take_in(followers, now_ms)
        return followers.joined(
            self.name, start, now_ms, reported=reported, identity=greeting.identity, proved=greeting.has_begun
        )

    def check_silence(self, now_ms: int) -> None:
        """Raises Silence."""
        silent_ms = now_ms - self._heard_ms
        if self.next_position is None and silent_ms > self._times.hello:
            raise Silence(f"{self.name} has not said in {silent_ms} ms where its log ends: it is no replica")
        if silent_ms > self._times.housekeeping:
            raise Silence(f"the replica {self.name} has said nothing for {silent_ms} ms")

    def next_span(self, now_ms: int) -> Span | None:
        """Return the next span to send; None if there is none yet. Raises Silence; OffsetNotFound if it was deleted."""
        self.check_silence(now_ms)
        position = self.next_position
        if position is None:
            return None
        length = min(self._log.log_end - position, self._batch_bytes)
        if self._asked_to is not None:
            length = min(length, self._asked_to - position)
        if length > 0:
            return Span(position, len(self._log.log_bytes(position, length)))
        return Span(position, 0) if now_ms - self._said_ms >= self._times.heartbeat else None

    @property
    def waits_for_word(self) -> bool:
        """May the replica's next word be what allows us to send? One that never asks is sent whatever comes."""
        return self.next_position is None or self._asked_to is not None

    @property
    def is_level(self) -> bool:
        """Is there nothing more to send now?"""
        return self.next_position is None or self.next_position >= self._log.log_end

    def sent(self, span: Span, followers: Followers, now_ms: int) -> Followers:
        """It is on its way."""
        self._said_ms = now_ms
        self.next_position = span.position + span.length
        if self._goal is None:
            self._goal = _Goal(self._log.log_end, now_ms)
        if self.observes or not span.length or self.name not in followers.by_name:
            return followers
        return followers.sent(self.name, self.next_position)


class ReplicaStream:
    """The end that takes."""

    def __init__(
        self,
        log: CopyLog,
        *,
        times: StreamTimes,
        now_ms: int,
        window_bytes: int | None = None,
        max_push: int = MAX_PUSH,
        introduction: Introduction | None = None,
    ) -> None:
        """With an `introduction` the stream begins with a handshake: the primary must be one of ours."""
        self._log = log
        self._introducing = introduction.begin(log) if introduction is not None else None
        self._pushes = PushReader(max_push)
        self._times = times
        self._heard_ms = self._said_ms = self._fed_ms = now_ms
        self._reported = 0
        #: No more than this is on its way to us; None: as much as the primary likes.
        self._window = window_bytes
        self._asked = self._taken = 0
        #: The beginning of a record whose rest is still to come.
        self._begun = bytearray()
        self._has_heard = False
        #: The first report after a handshake.
        self._due = b""
        self._uncounted = ""
        #: Behind the last byte that the primary sent.
        self.primary_end = log.copy_end

    def hello(self, now_ms: int) -> bytes:
        """The first word: where our log ends; 0 when there is none, and the primary decides where it begins.

        The primary takes it for a report, so that all of it must be safe by now.
        """
        log = self._log
        assert log.is_empty or log.copy_safe >= log.copy_end, "what is not safe yet must not be reported"
        if self._introducing is not None:
            return self._introducing.take_unsaid()
        return self._first_report(now_ms)

    def _first_report(self, now_ms: int) -> bytes:
        return self._say(0 if self._log.is_empty else self._log.copy_end, now_ms) + self._ask()

    @property
    def is_accepted(self) -> bool:
        """Return whether the primary has taken us in: without a handshake it does not say so."""
        return self._introducing is None

    @property
    def uncounted(self) -> str:
        """Return why this follower does not count for acknowledgements; empty if it counts, or nothing is known."""
        return self._uncounted

    # --- taking ------------------------------------------------------------------------------------------------------

    def space(self) -> memoryview:
        """Return the buffer for the next bytes; then call `filled`."""
        return self._pushes.space()

    def filled(self, count: int, now_ms: int) -> None:
        """Take `count` bytes. Raises BadFrame, Gap, LeftBehind, Ahead, StreamDamaged, DiskFull, StoreFenced."""
        self._heard_ms = now_ms
        self._pushes.filled(count)
        while (push := self._pushes.next()) is not None:
            self._take(push, now_ms)

    def received(self, data: bytes | memoryview, now_ms: int) -> None:
        """For bytes that are somewhere else already."""
        self._heard_ms = now_ms
        for push in self._pushes.feed(data):
            self._take(push, now_ms)

    def _take(self, push: Push, now_ms: int) -> None:
        if self._introducing is not None or push.position < 0:
            self._be_introduced(push, now_ms)
            return
        self._check_place(push)
        self._has_heard = True
        if push.data:
            self._fed_ms = now_ms
        self.primary_end = max(self.primary_end, push.end)
        self._taken += len(push.data)
        data = self._complete(push.data) if self._begun else push.data
        if data:
            self._begun += data[self._append(data) :]

    def _be_introduced(self, push: Push, now_ms: int) -> None:
        """Raises BadFrame, Refused."""
        if self._introducing is None or push.position != HELLO:
            raise BadFrame(f"a primary sends position {push.position} in the place of a handshake, or a handshake late")
        self._introducing.take(bytes(push.data))
        self._due += self._introducing.take_unsaid()
        if self._introducing.is_over:
            self._uncounted, self._introducing = self._introducing.uncounted, None
            self._due += self._first_report(now_ms)

    def _check_place(self, push: Push) -> None:
        log = self._log
        if log.is_empty and not self._begun:
            if push.data and push.position != log.copy_end:
                self._start_at(push.position)
            return
        expected = log.copy_end + len(self._begun)
        if push.position == expected:
            return
        if push.position < expected and not push.data and not self._has_heard:
            raise Ahead(
                f"the primary's log ends at {push.position}, and ours at {expected}: we have led, or it is another "
                "log; compare both, and cut the longer one before it follows"
            )
        if push.position > expected and not self._has_heard:
            raise LeftBehind(expected, push.position)
        raise Gap(
            f"the primary sends position {push.position}, and our log goes on at {expected}: nothing is appended; "
            "connect again, and if it stays so, begin a new copy in a new store directory"
        )

    def _start_at(self, position: int) -> None:
        if position % self._log.segment_bytes:
            raise Gap(
                f"the primary's log begins for us at {position}, where none of our segments of "
                f"{self._log.segment_bytes} bytes begins: both need the same segment size"
            )
        self._log.start_copy_at(position)

    def _complete(self, data: memoryview) -> memoryview:
        """Complete the partial record and append it; return the remaining bytes."""
        begun = self._begun
        while begun and data:
            missing = begun_size(begun) - len(begun)
            begun += data[:missing]
            data = data[missing:]
            with memoryview(bytes(begun)) as gathered:
                if self._append(gathered):
                    begun.clear()
        return data

    def _append(self, data: memoryview) -> int:
        """Append the whole records and return their length. Records before a damage are appended, then it is raised."""
        log = self._log
        position = log.copy_end
        try:
            checked = self._check(data, position)
        except StreamDamaged as damage:
            good = data[: damage.position - position]
            if good:
                self._append_checked(good, self._check(good, position))
            raise damage.seen_from(*log.before(damage.position)) from None
        self._append_checked(data, checked)
        return checked.length

    def _check(self, data: memoryview, position: int) -> Checked:
        return check_arrived(data, position, self._log.segment_bytes)

    def _append_checked(self, data: memoryview, checked: Checked) -> None:
        if checked.length:
            self._log.append_copy(data[: checked.length], checked.records, checked.last_timestamp_ms)

    # --- telling -----------------------------------------------------------------------------------------------------

    def report(self, now_ms: int) -> bytes:
        """Return the report to send now, empty if there is none. Raises Silence."""
        if now_ms - self._heard_ms > self._times.housekeeping:
            raise Silence(f"the primary has said nothing for {now_ms - self._heard_ms} ms")
        if self._begun and now_ms - self._fed_ms > self._times.housekeeping:
            raise Silence(
                f"the rest of the record at {self._log.copy_end} has not come for {now_ms - self._fed_ms} ms: its "
                "length may have been damaged on the way"
            )
        if self._due or self._introducing is not None:
            due, self._due = self._due, b""
            return due
        safe = 0 if self._log.is_empty else self._log.copy_safe
        if safe > self._reported or now_ms - self._said_ms >= self._times.heartbeat:
            return self._say(max(safe, self._reported), now_ms) + self._ask()
        return self._ask()

    def _say(self, position: int, now_ms: int) -> bytes:
        self._said_ms, self._reported = now_ms, position
        return encode_report(position)

    def _ask(self) -> bytes:
        """For as much as has been taken, once it is worth a word."""
        if self._window is None:
            return b""
        more = self._taken + self._window - self._asked
        if 2 * more < self._window:
            return b""
        self._asked += more
        return encode_grant(more)
