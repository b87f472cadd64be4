"""How far a group is in each queue, kept at the brokers; or for one that gets every message, in a file of its own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Protocol

from pyromq.client.consuming.places import Places
from pyromq.errors import PyroMQError, StoreError, WrongShape
from pyromq.model.json_form import INT64, JsonObject, an_object
from pyromq.model.queue import MessageQueue
from pyromq.store.config_files import JsonFile
from pyromq.store.disk import OsDisk

log = logging.getLogger("pyromq.client")


class Progress(Protocol):
    async def read(self, queue: MessageQueue) -> int | None:
        """None: there is none yet. Raises PyroMQError when it cannot be told: nobody may begin anywhere then."""

    async def write(
        self, offsets: Mapping[MessageQueue, int], *, may_go_back: Collection[MessageQueue] = ()
    ) -> set[MessageQueue]:
        """The queues whose progress is known now; the others are tried again later. It only goes back where it may."""


class BrokerProgress:
    """The members of a group share it."""

    def __init__(self, places: Places, group: str, *, zero_if_near: bool) -> None:
        self._places = places
        self._group = group
        self._zero_if_near = zero_if_near

    async def read(self, queue: MessageQueue) -> int | None:
        return await self._places.committed(queue, self._group, zero_if_near=self._zero_if_near)

    async def write(
        self, offsets: Mapping[MessageQueue, int], *, may_go_back: Collection[MessageQueue] = ()
    ) -> set[MessageQueue]:
        written = (self._write(queue, offset, queue in may_go_back) for queue, offset in offsets.items())
        taken = await asyncio.gather(*written)
        return {queue for queue, is_taken in zip(offsets, taken, strict=True) if is_taken}

    async def _write(self, queue: MessageQueue, offset: int, may_go_back: bool) -> bool:
        """Brokers take what they are told. While a queue changes hands its old and its new reader may both tell, and
        the one who is behind must not undo what the other has told."""
        try:
            known = None if may_go_back else await self._places.committed(queue, self._group)
            if known is None or known < offset:
                await self._places.commit(queue, self._group, offset)
        except PyroMQError as error:
            log.warning("the progress of %s in %s is not kept yet: %s", self._group, _shown(queue), error)
            return False
        return True


class FileProgress:
    """One consumer's own, in a JSON file that is replaced as a whole and has a previous copy beside it.

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
        self, offsets: Mapping[MessageQueue, int], *, may_go_back: Collection[MessageQueue] = ()
    ) -> set[MessageQueue]:
        async with self._turn:
            kept = {**(self._offsets or {}), **offsets}
            try:
                await asyncio.to_thread(self._save, kept)
            except OSError as error:
                log.warning("the progress is not kept in %s yet: %s", self._file.path, error)
                return set()
            self._offsets = kept
        return set(offsets)

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
