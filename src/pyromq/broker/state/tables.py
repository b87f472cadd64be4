"""The small tables that a broker keeps in its store directory (topics, groups, progress, writers), and their saving."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from pyromq.broker.idempotence.keeper import SequenceKeeper
from pyromq.broker.idempotence.producer_file import WritersFile
from pyromq.broker.idempotence.sequences import Sequences
from pyromq.broker.state.clamping import DelayLevels, GroupOffsets, LogTable
from pyromq.broker.state.request_modes import RequestModeTable
from pyromq.broker.state.saving import Saver
from pyromq.clock import Clock
from pyromq.config import BrokerConfig
from pyromq.store.message_store import MessageStore
from pyromq.store.tables.config_files import GroupTable, TopicTable
from pyromq.store.tables.offset_files import ConsumerOffsets, DelayOffsets

HOUR_MS = 3_600_000


class Tables:
    """Loaded when the store is open, and saved in the background: settings at each change, progress at an interval."""

    def __init__(self, config: BrokerConfig, store: MessageStore, clock: Clock) -> None:
        files = store.table_files()
        place = (files.disk, files.directory, clock)
        self.topics = TopicTable(*place)
        self.groups = GroupTable(*place)
        self.offsets = ConsumerOffsets(*place)
        self.delays = DelayOffsets(*place)
        self.request_modes = RequestModeTable(files.disk, files.directory)
        for table in (self.topics, self.groups, self.offsets, self.delays, self.request_modes):
            table.load()
        file = WritersFile(files.disk, files.directory)
        self.writers = SequenceKeeper(
            Sequences(config.idempotence.retention_hours * HOUR_MS), file, store, clock, reads_copy=config.is_slave
        )
        self.writers.load()
        #: The tables that every start clamps to the log.
        self.log_tables: list[LogTable] = [GroupOffsets(self.offsets), DelayLevels(self.delays), self.writers]
        self.settings_saver = Saver(self.topics, self.groups, self.request_modes)
        self.offsets_saver = Saver(self.offsets, every_ms=config.offsets_flush_interval_ms, write=files.write)
        delays_saver = Saver(self.delays, every_ms=config.config_flush_interval_ms, write=files.write)
        self._savers = (self.settings_saver, self.offsets_saver, delays_saver)
        self._is_slave = config.is_slave

    def work(self) -> list[Coroutine[Any, Any, None]]:
        """Run the background saves."""
        # A slave saves offsets together with what it has from its master: see `metadata_copy`.
        savers = [saver for saver in self._savers if saver is not self.offsets_saver or not self._is_slave]
        return [*(saver.run() for saver in savers), self.writers.run()]

    async def save(self) -> None:
        """Write everything, at a clean stop: topics and groups as whole files, which RocketMQ reads."""
        self.topics.keep_whole()
        self.groups.keep_whole()
        for saver in self._savers:
            await saver.save()
        await self.writers.save()
