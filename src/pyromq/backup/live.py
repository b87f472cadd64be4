"""A backup of a running broker, over the stream that its replicas follow: one more step, or one after the other.

    backup = LiveBackup(RunningBroker(ask, "10.0.0.7:10911"), LocalTarget(Path("/backup/broker-a")))
    report = await backup.run()

The tables are asked for before the end of the log is: what they say of the log is then in the backup too, or older. The
log comes in chunks of bounded size, one of which is written while the next arrives. A manifest is written when all has
come that was there at the beginning, now and then on the way, and whenever a run ends otherwise (the broker is gone,
bytes are damaged, an operator stops it): the received bytes stay, and the next run continues after them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from pyromq.backup.arriving import AnotherLog, Arriving, Gathered, end_of
from pyromq.backup.broker_state import LogState, RunningBroker
from pyromq.backup.history import newest, refuse_incomplete
from pyromq.backup.line import BrokerGone, LogLine, log_line, settled_in
from pyromq.backup.making import BackupReport, Progress, Step, begun, publish, refuse_another, save_small_files
from pyromq.backup.manifest import Chunk, Manifest, Source
from pyromq.backup.pieces import save_gathered
from pyromq.backup.target import Target
from pyromq.clock import Clock, SystemClock
from pyromq.errors import BackupError, CallFailed
from pyromq.replication.arrival import StreamDamaged
from pyromq.store.offline.readable_log import ReadableLog

#: Of a chunk: two of them are in memory at a time.
CHUNK_BYTES = 64 << 20
#: A run that takes long writes a manifest so often.
PUBLISH_SECONDS = 60.0
#: Interval between two looks at the broker's log end, and between two reconnects.
LOOK_SECONDS = 1.0

Tell = Callable[[str], None]


class LiveBackup:
    """A run. What it has added so far is in `report` at any time."""

    def __init__(
        self,
        broker: RunningBroker,
        target: Target,
        *,
        name: str = "",
        new_series: bool = False,
        chunk_bytes: int = CHUNK_BYTES,
        clock: Clock | None = None,
        progress: Progress | None = None,
        tell: Tell = lambda sentence: None,
    ) -> None:
        """`tell` is given what people should know on the way."""
        self.broker = broker
        self.target = target
        self._name = name
        self._new_series = new_series
        self.chunk_bytes = chunk_bytes
        self.clock = clock or SystemClock()
        self.progress = progress
        self._tell = tell
        self.began = self.published = self.clock.monotonic()
        self.report: BackupReport | None = None
        #: It has had everything once, and follows.
        self._follows = False
        self._stopping = asyncio.Event()

    async def run(self) -> BackupReport:
        """Copy the log up to its present end. Raises BackupError, CorruptBackup, StreamDamaged, CallFailed, OSError."""
        async with self._copying() as copying:
            await copying.to_the_end()
        assert self.report is not None
        return self.report

    async def follow(self, every_s: float) -> None:
        """Until `stop_soon` or cancelled: a manifest every so often, if anything is new. A broker that is away is
        waited for.
        """
        problem = None
        while not self._stopping.is_set():
            try:
                async with self._copying() as copying:
                    problem = None
                    await self._follow(copying, every_s)
            except (BrokerGone, CallFailed) as error:
                if self.report is None:  # it never worked: likely it is not where it was said to be
                    raise
                if str(error) != problem:
                    self._tell(f"{error}: trying again")
                problem = str(error)
                await self._pause()

    def stop_soon(self) -> bool:
        """Add the new bytes, and end. Returns False and does nothing if it does not follow yet: cancel it."""
        if self._follows:
            self._stopping.set()
        return self._follows

    async def _follow(self, copying: _Copying, every_s: float) -> None:
        """Copy until stopped; then once more."""
        await copying.to_the_end()
        if not self._follows:
            self._tell(f"following, every {every_s:g} s; Ctrl-C adds what is new, and stops")
        self._follows = True
        while not self._stopping.is_set():
            await self._until_worth_it(copying, every_s)
            await copying.look_again()
            await copying.to_the_end()

    async def _until_worth_it(self, copying: _Copying, every_s: float) -> None:
        began = self.clock.monotonic()
        while not self._stopping.is_set() and self.clock.monotonic() - began < every_s:
            await self._pause()
            if await self.broker.end() - copying.end >= self.chunk_bytes:
                return

    async def _pause(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOOK_SECONDS):
                await self._stopping.wait()

    # --- one connection ----------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _copying(self) -> AsyncIterator[_Copying]:
        """Raises BackupError when the broker's log does not go on from the backup."""
        last = newest(self.target)
        if last is not None and not self._new_series:
            await asyncio.to_thread(refuse_incomplete, self.target, last)
        files = save_small_files(await self.broker.small_files(), self.target, last)
        state = await self.broker.log_state()
        going_on = None if self._new_series else last
        log = _as_log(self.broker.address, state)
        if going_on is not None:
            refuse_another(self.target, going_on, log, same_tail=None)
        source = Source(self._name or state.name, "", self.broker.address)
        base = begun(going_on, last, log, source, tuple(files), self.clock.now_ms())
        arriving = Arriving(
            base.end, state.segment_bytes, self.chunk_bytes, end_of(going_on, state.start) if going_on else ()
        )
        if not state.ours and going_on is not None:
            await self._be_settled(going_on)
        async with log_line(state.ha_address, arriving.position, ours=state.ours) as line:
            copying = _Copying(self, line, arriving, Step(last, base, (), live=True), state.end)
            try:
                yield copying
            except AnotherLog:
                assert going_on is not None
                refuse_another(self.target, going_on, log, same_tail=False)
                raise
            except (BrokerGone, StreamDamaged, BackupError, CallFailed) as error:
                raise copying.ended(error) from error
            finally:
                copying.keep()
                self._new_series = self._new_series and self.report is None

    async def _be_settled(self, last: Manifest) -> None:
        wait_s = settled_in(last.made_ms, self.clock.now_ms())
        if wait_s > 0:
            self._tell(f"the last run has just ended: going on in {wait_s:.0f} s, when no send waits that it has")
            await asyncio.sleep(wait_s)


class _Copying:
    """One connection with the broker, and what became of it."""

    def __init__(self, backup: LiveBackup, line: LogLine, arriving: Arriving, step: Step, until: int) -> None:
        self._backup = backup
        self._line = line
        self._arriving = arriving
        self._step = step
        self._until = until
        self._saver = _Saver(backup.target, step.base.series)
        self._first = step.base.end

    @property
    def end(self) -> int:
        return self._arriving.good_to

    async def to_the_end(self) -> None:
        """Everything up to where the broker's log ended when it was asked."""
        arriving, backup = self._arriving, self._backup
        while arriving.position < self._until:
            for gathered in arriving.take(await self._line.following(self._until)):
                await self._saver.put(gathered)
                if backup.clock.monotonic() - backup.published >= PUBLISH_SECONDS:
                    await self._saver.settled()
                    self._publish()
            if backup.progress is not None:
                backup.progress(max(arriving.good_to - self._first, 0), max(self._until - self._first, 0))
        for gathered in arriving.cut():
            await self._saver.put(gathered)
        await self._saver.settled()
        self._publish()

    async def look_again(self) -> None:
        """Ask again for tables and end, for the next manifest."""
        backup = self._backup
        files = save_small_files(await backup.broker.small_files(), backup.target, self._step.last)
        self._step = replace(self._step, base=replace(self._step.base, files=tuple(files)))
        self._until = await backup.broker.end()

    def _publish(self) -> None:
        """All that was saved; then the next step begins behind it."""
        backup, chunks = self._backup, self._saver.taken()
        now_ms = backup.clock.now_ms()
        made = publish(replace(self._step, base=replace(self._step.base, made_ms=now_ms)), backup.target, chunks)
        backup.published = backup.clock.monotonic()
        manifest = made.manifest
        if not made.unchanged:
            self._step = Step(
                manifest, replace(manifest, number=manifest.number + 1, previous=manifest.number), (), True
            )
        before = backup.report
        backup.report = replace(
            made,
            chunks=made.chunks + (before.chunks if before else 0),
            bytes=made.bytes + (before.bytes if before else 0),
            records=made.records + (before.records if before else 0),
            unchanged=made.unchanged and (before is None or before.unchanged),
            seconds=backup.published - backup.began,
        )

    def keep(self) -> None:
        """Save the good received bytes, however the run ended. Does nothing if there are none."""
        with contextlib.suppress(BackupError, OSError):  # the first error is reported already
            self._saver.finish(self._arriving.cut())
        if self._saver.chunks:
            with contextlib.suppress(BackupError, OSError):
                self._publish()
        self._saver.close()

    def ended(self, error: Exception) -> Exception:
        """Save the received bytes; return the error with the backup's end added to its text."""
        self.keep()
        has = f"The backup has the log up to position {self._step.base.end}: run it again, and it goes on there"
        if isinstance(error, BrokerGone):
            return BrokerGone(f"{error}. {has}")
        if isinstance(error, StreamDamaged):
            return BackupError(f"{error}. {has}")
        return error


class _Saver:
    """Writes one chunk after the other on a thread, while the next is received."""

    def __init__(self, target: Target, series: int) -> None:
        self._target = target
        self._series = series
        self._thread = ThreadPoolExecutor(1, "pyromq-backup")
        self._waiting: list[Gathered] = []
        self._under_way: Future[Chunk] | None = None
        #: One could not be written: nothing behind it may be, for the backup would have a gap.
        self._is_broken = False
        #: Those that were written, in order.
        self.chunks: list[Chunk] = []

    async def put(self, gathered: Gathered) -> None:
        """Returns when its writing has begun. Raises what the one before met."""
        self._waiting.append(gathered)
        await self.settled()
        self._begin()

    async def settled(self) -> None:
        if self._under_way is not None:
            await asyncio.shield(asyncio.wrap_future(self._under_way))
            self._collect()

    def _begin(self) -> None:
        self._under_way = self._thread.submit(save_gathered, self._waiting.pop(0), self._target, self._series)

    def _collect(self) -> None:
        """Raises BackupError."""
        under_way, self._under_way = self._under_way, None
        if under_way is not None:
            try:
                self.chunks.append(under_way.result())
            except BaseException:
                self._is_broken = True
                raise

    def finish(self, more: list[Gathered]) -> None:
        """Write everything that waits, and wait for it. Raises BackupError."""
        self._waiting += more
        self._collect()
        while self._waiting and not self._is_broken:
            self._begin()
            self._collect()

    def taken(self) -> list[Chunk]:
        chunks, self.chunks = self.chunks, []
        return chunks

    def close(self) -> None:
        self._thread.shutdown()


def _as_log(address: str, state: LogState) -> ReadableLog:
    """A broker's log as that of a directory, to be judged by the same rules."""
    return ReadableLog(Path(f"{state.name} ({address})"), state.segment_bytes, (), state.start, state.end, live=True)
