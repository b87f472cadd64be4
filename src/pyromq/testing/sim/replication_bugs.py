"""Mistakes in the stream, planted to see that the simulation finds them. Each is the smallest change that makes it."""

from __future__ import annotations

from pyromq.errors import BadFrame
from pyromq.records.scan import Stop, scan
from pyromq.replication.arrival import Checked
from pyromq.replication.followers import Followers
from pyromq.replication.identity import Identity
from pyromq.replication.stream import PrimaryStream, ReplicaStream, Span
from pyromq.testing.sim.replica_node import SEGMENT, Planted


class BelieveSent(PrimaryStream):
    def sent(self, span: Span, followers: Followers, now_ms: int) -> Followers:
        followers = super().sent(span, followers, now_ms)
        return followers.heard(self.name, span.position + span.length, now_ms) if span.length else followers


class BelieveStrangers(PrimaryStream):
    def _join(self, start: int, reported: int, followers: Followers, now_ms: int) -> Followers:
        identity = Identity(self.name, 0, self.name)
        return followers.joined(self.name, start, now_ms, reported=reported, identity=identity, proved=True)

    def received(self, data: bytes, followers: Followers, now_ms: int) -> Followers:
        if self.name in followers.by_name:
            followers = followers.sent(self.name, max(1 << 61, followers.by_name[self.name].sent))
        return super().received(data, followers, now_ms)

    def sent(self, span: Span, followers: Followers, now_ms: int) -> Followers:
        self._said_ms = now_ms
        self.next_position = span.position + span.length
        end = max(self.next_position, followers.by_name[self.name].sent)
        return followers.sent(self.name, end)


class ResendFromSegment(PrimaryStream):
    def _begin(self, reported: int, followers: Followers, now_ms: int) -> Followers:
        followers = super()._begin(reported, followers, now_ms)
        assert self.next_position is not None
        self.next_position -= self.next_position % SEGMENT
        return followers


class StartCountsAsCopied(PrimaryStream):
    def _join(self, start: int, reported: int, followers: Followers, now_ms: int) -> Followers:
        followers = super()._join(start, reported, followers, now_ms)
        self._joined = followers.joined(self.name, start, now_ms, identity=self.identity, proved=True)
        return self._joined

    def received(self, data: bytes, followers: Followers, now_ms: int) -> Followers:
        """A first report from below the start is none."""
        is_new = self.next_position is None
        try:
            return super().received(data, followers, now_ms)
        except BadFrame:
            if is_new and self.next_position is not None:
                return self._joined
            raise


class CountConnections(PrimaryStream):
    def _join(self, start: int, reported: int, followers: Followers, now_ms: int) -> Followers:
        identity = Identity(self.name, 0, self.name)
        return followers.joined(self.name, start, now_ms, reported=reported, identity=identity, proved=True)


class SkipCrc(ReplicaStream):
    def _check(self, data: memoryview, position: int) -> Checked:
        checked = super()._check
        found = scan(data, 0, min(len(data), SEGMENT - position % SEGMENT), position, False)
        if found.stop is Stop.LIMIT and found.records:
            return Checked(found.end, found.records, found.last_timestamp_ms)
        return checked(data, position)


class AppendBeforeCheck(ReplicaStream):
    def _append(self, data: memoryview) -> int:
        found = scan(data, 0, min(len(data), SEGMENT - self._log.copy_end % SEGMENT), self._log.copy_end, False)
        if found.records:
            self._append_checked(data, Checked(found.end, found.records, found.last_timestamp_ms))
            return found.end
        return super()._append(data)


class LoseBegunRecord(ReplicaStream):
    def _complete(self, data: memoryview) -> memoryview:
        self._begun.clear()
        return data


class ReportBegunRecord(ReplicaStream):
    def report(self, now_ms: int) -> bytes:
        end = self._log.copy_end + len(self._begun)
        if self._begun and end > self._reported:
            return self._say(end, now_ms)
        return super().report(now_ms)


class ReportUnsynced(ReplicaStream):
    def report(self, now_ms: int) -> bytes:
        if self.is_accepted and not self._due and not self._log.is_empty and self._log.copy_end > self._reported:
            return self._say(self._log.copy_end, now_ms)
        return super().report(now_ms)


class HelloBeforeSync(ReplicaStream):
    def hello(self, now_ms: int) -> bytes:
        return self._introducing.take_unsaid() if self._introducing is not None else self._first_report(now_ms)


_PRIMARY: dict[Planted | None, type[PrimaryStream]] = {
    Planted.BELIEVE_SENT: BelieveSent,
    Planted.BELIEVE_STRANGERS: BelieveStrangers,
    Planted.RESEND_FROM_SEGMENT: ResendFromSegment,
    Planted.START_COUNTS_AS_COPIED: StartCountsAsCopied,
    Planted.COUNT_CONNECTIONS: CountConnections,
}
_REPLICA: dict[Planted | None, type[ReplicaStream]] = {
    Planted.SKIP_CRC: SkipCrc,
    Planted.APPEND_BEFORE_CHECK: AppendBeforeCheck,
    Planted.LOSE_BEGUN_RECORD: LoseBegunRecord,
    Planted.REPORT_BEGUN_RECORD: ReportBegunRecord,
    Planted.REPORT_UNSYNCED: ReportUnsynced,
    Planted.HELLO_BEFORE_SYNC: HelloBeforeSync,
}


def primary_stream_of(planted: Planted | None) -> type[PrimaryStream]:
    return _PRIMARY.get(planted, PrimaryStream)


def replica_stream_of(planted: Planted | None) -> type[ReplicaStream]:
    return _REPLICA.get(planted, ReplicaStream)
