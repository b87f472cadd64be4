"""The committed offset of a group in each queue, kept by brokers; or for broadcasting, in a file of this consumer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Protocol

from pyromq.client.group.places import Places
from pyromq.errors import PyroMQError, StoreError, WrongShape
from pyromq.files.disk import OsDisk
from pyromq.files.json_file import JsonFile
from pyromq.model.json_form import INT64, JsonObject, an_object
from pyromq.model.queue import MessageQueue

log = logging.getLogger("pyromq.client")

#: Returns the committable offset of a queue at the time of the call.
Tell = Callable[[], int | None]


class Progress(Protocol):
    async def read(self, queue: MessageQueue) -> int | None:
        """None if there is none yet. Raises PyroMQError if it is unknown: consuming must not begin then."""

    async def write(
        self, offsets: Mapping[MessageQueue, Tell], *, may_go_back: Collection[MessageQueue] = ()
    ) -> Mapping[MessageQueue, int]:
        """Return the offsets committed for each queue; others are retried later. An offset falls only where it may."""


class BrokerProgress:
    """The members of a group share it."""

    def __init__(self, places: Places, group: str, *, zero_if_near: bool) -> None:
        self._places = places
        self._group = group
        self._zero_if_near = zero_if_near

    async def read(self, queue: MessageQueue) -> int | None:
        return await self._places.committed(queue, self._group, zero_if_near=self._zero_if_near)

    async def write(
        self, offsets: Mapping[MessageQueue, Tell], *, may_go_back: Collection[MessageQueue] = ()
    ) -> Mapping[MessageQueue, int]:
        told = await asyncio.gather(
            *(self._write(queue, tell, queue in may_go_back) for queue, tell in offsets.items())
        )
        return {queue: offset for queue, offset in zip(offsets, told, strict=True) if offset is not None}

    async def _write(self, queue: MessageQueue, tell: Tell, may_go_back: bool) -> int | None:
        """Brokers accept any offset. During a hand-over the old and the new owner may both commit, and the one that is
        behind must not undo the other's commit. Nor may it undo the commit of a fetch: the offset is read last and
        sent at once."""
        try:
            known = None if may_go_back else await self._places.committed(queue, self._group)
            offset = tell()
            if offset is not None and (known is None or known < offset):
                await self._places.commit(queue, self._group, offset)
        except PyroMQError as error:
            log.warning("the progress of %s in %s is not kept yet: %s", self._group, _shown(queue), error)
            return None
        return offset


class FileProgress:
    """The offsets of one consumer in a JSON file that is replaced as a whole, with a copy of the previous version.

    Two consumers of one group on a machine need a directory each.
    """

    def __init__(self, directory: Path, group: str) -> None:
        self._directory = directory
        self._disk = OsDisk(directory / "staging")
        self._file = JsonFile(self._disk, directory / f"{group}.json", _check)
        self._offsets: dict[MessageQueue, int] | None = None
        #: The file is read and replaced as a whole: by one at a time.
        self._turn = asyncio.Lock()

    async def read(self, queue: MessageQueue) -> int | None:
        """Raises CorruptFile when neither the file nor its copy can be read, StoreError when the disk refuses."""
        async with self._turn:
            if self._offsets is None:
                self._offsets = await self._load()
        return self._offsets.get(queue)

    async def _load(self) -> dict[MessageQueue, int]:
        try:
            loaded = await asyncio.to_thread(self._file.load)
        except OSError as error:
            raise StoreError(f"the progress in {self._file.path} cannot be read: {error}") from None
        return {} if loaded is None else _check(loaded.value)

    async def write(
        self, offsets: Mapping[MessageQueue, Tell], *, may_go_back: Collection[MessageQueue] = ()
    ) -> Mapping[MessageQueue, int]:
        async with self._turn:
            told = {queue: offset for queue, tell in offsets.items() if (offset := tell()) is not None}
            kept = {**(self._offsets or {}), **told}
            try:
                await asyncio.to_thread(self._save, kept)
            except OSError as error:
                log.warning("the progress is not kept in %s yet: %s", self._file.path, error)
                return {}
            self._offsets = kept
        return told

    def _save(self, offsets: Mapping[MessageQueue, int]) -> None:
        self._disk.make_dir(self._directory / "staging")
        topics: JsonObject = {}
        for queue, offset in sorted(offsets.items()):
            topics.setdefault(queue.topic, {}).setdefault(queue.broker_name, {})[str(queue.queue_id)] = offset
        self._file.save({"offsets": topics})


def _check(value: JsonObject) -> dict[MessageQueue, int]:
    """The offsets in the file's JSON. Raises WrongShape."""
    try:
        return {
            MessageQueue(topic, broker_name, int(queue_id)): INT64(offset)
            for topic, brokers in an_object(value.get("offsets")).items()
            for broker_name, queues in an_object(brokers).items()
            for queue_id, offset in an_object(queues).items()
        }
    except ValueError:
        raise WrongShape("the number of a queue expected") from None


def _shown(queue: MessageQueue) -> str:
    return f"{queue.topic}/{queue.queue_id} of {queue.broker_name}"
