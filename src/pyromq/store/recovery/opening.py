"""Opens a store directory for writing, and closes it: locks, recovery, the recover point, and the files."""

from __future__ import annotations

import contextlib
import errno
import logging
from typing import TYPE_CHECKING

from pyromq.errors import CorruptLog, DiskFull
from pyromq.files import platform
from pyromq.files.platform import what_to_do
from pyromq.store.durability.checkpoint import AbortMark, CheckpointFile, RecoverPoint, RecoverPointFile
from pyromq.store.durability.presence import Presence
from pyromq.store.log import log_place
from pyromq.store.recovery.log_recovery import RecoveryReport
from pyromq.store.recovery.start import Start

if TYPE_CHECKING:
    from pyromq.store.message_store import MessageStore

log = logging.getLogger("pyromq.store")

#: A stop does not index more than this: the next start does.
MAX_INDEXED_AT_STOP = 256 << 20


class Opening:
    """The files that say how a store was left, and its locks."""

    def __init__(self, store: MessageStore) -> None:
        """The store has its disk, its paths and its log."""
        self._store = store
        self.point_file = RecoverPointFile(store.disk, store.paths.recover_point)
        self.checkpoint_file = CheckpointFile(store.disk, store.paths.checkpoint)
        self.presence = Presence(store.disk, store.paths, store.log)
        self._abort = AbortMark(store.disk, store.paths.abort)
        self._locks: contextlib.ExitStack | None = None

    def open(self, *, truncate_at: int | None, rebuild: bool, hold_back: bool) -> RecoveryReport:
        """Lock the directory and recover it; see `MessageStore.open`."""
        store = self._store
        started = store.clock.monotonic()
        store.disk.make_dir(store.config.root)
        self._locks = log_place.lock(store.disk, store.paths)
        try:
            self.presence.note()
            platform.raise_open_file_limit()
            store.disk.remove_tree(store.paths.staging)
            store.disk.remove_tree(store.paths.log_staging)
            report = self._recover(truncate_at, rebuild, hold_back)
            store.reserve.take()
            self.presence.note()
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise DiskFull(f"the store cannot start without room on the disk ({error}); make some") from error
            raise
        report.seconds = store.clock.monotonic() - started
        return report

    def _recover(self, truncate_at: int | None, rebuild: bool, hold_back: bool) -> RecoveryReport:
        store = self._store
        start = Start(
            paths=store.paths,
            threads=store.config.recovery_threads,
            log=store.log,
            queues=store.queues,
            index=store.index,
            dispatcher=store.dispatcher,
            marks=store.marks,
            checkpoint_file=self.checkpoint_file,
            repair=store.repair,
        )
        point = self.point_file.load()
        if truncate_at is None:
            log_place.refuse_another(store.disk, store.paths, point)
        clean = not self._abort.is_set()
        point, found, report = start.examine(point, clean=clean, truncate_at=truncate_at)
        store.reserve.give_up()
        log_place.note(store.disk, store.paths)
        self._abort.set()
        start.put_in_order(point, found, report, rebuild=rebuild, hold_back=hold_back)
        store.found_below = found.end
        store.flusher.last_timestamp_ms = store.log.last_timestamp_ms
        store.cleaner.trusted_clock.start(store.log.last_timestamp_ms)
        store.points.current = point or RecoverPoint()
        store.points.save()  # from now on a crash starts from here
        return report

    def finish(self) -> None:
        """Sync the log, complete queues and index, and note that the store was closed cleanly. Raises StoreFenced."""
        store = self._store
        store.commit_gathered()
        store.flusher.sync_now()  # first: under sync flush queues follow the synced mark
        self._complete()
        try:
            if store.index is not None:
                store.index.sync_all()
            store.points.save(clean=True)
        except OSError as error:
            log.warning("the recover point could not be written; the next start has more to scan: %s", error)
        else:
            self._abort.clear()

    def _complete(self) -> None:
        """Dispatch and index. Damage here is no error: both can be built again from the log."""
        store = self._store
        try:
            store.dispatcher.dispatch()
            if store.marks.written.value - store.marks.indexed.value <= MAX_INDEXED_AT_STOP:
                store.dispatcher.index()
        except CorruptLog as damage:
            log.error("the key index is not complete: %s", damage)
        except OSError as error:
            log.warning("queues or index are not complete, the next start completes them: %s", what_to_do(error))

    def close(self) -> None:
        """Close all files and release the locks."""
        store = self._store
        store.log.close()
        store.queues.close()
        if store.index is not None:
            store.index.close(write_header=not store.is_fenced)
        self.point_file.close()
        self.checkpoint_file.close()
        if self._locks is not None:
            self._locks.close()
            self._locks = None
