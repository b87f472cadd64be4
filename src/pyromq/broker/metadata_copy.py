"""What a slave has beside the log: topics, groups, progress, delays, request modes, copied from its master by requests.

Every `replication.metadata_interval_ms`, and as soon as a master is known. What the master cannot give (it is gone, it
is old, its answer is broken) leaves everything as it was. Progress goes both ways: see `replication.progress_merge`.

How far delayed messages are delivered is taken over only when the copy of the log has what was delivered: else a slave
that becomes the master would take messages for delivered that it does not have.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pyromq.broker.tables import Tables
from pyromq.config import BrokerConfig
from pyromq.errors import CallFailed, CallTimeout, PyroMQError, Unreachable
from pyromq.model.json_form import JsonObject, an_object
from pyromq.net.address import parse_address, shown_address
from pyromq.net.client import Client
from pyromq.replication.progress_merge import Place, merge
from pyromq.store.config_files import ConsumerOffsets
from pyromq.wire import admin_requests as ask
from pyromq.wire.bodies.assignment import request_modes_from_json
from pyromq.wire.codes import ResponseCode
from pyromq.wire.fastjson import loads
from pyromq.wire.requests import QueryConsumerOffset, Request, UpdateConsumerOffset

log = logging.getLogger("pyromq.broker")

#: RocketMQ's brokers answer each other two ports below the one that clients are told.
VIP_PORTS_BELOW = 2
CALL_SECONDS = 5.0


class MetadataCopy:
    """Runs beside a slave."""

    def __init__(
        self,
        config: Callable[[], BrokerConfig],
        tables: Tables,
        client: Client,
        *,
        topics_changed: Callable[[], None],
        groups_changed: Callable[[], None],
        log_end: Callable[[], int],
    ) -> None:
        self._config = config
        self._tables = tables
        self._client = client
        self._topics_changed = topics_changed
        self._groups_changed = groups_changed
        self._log_end = log_end
        #: Progress of delays that waits for the log to get to a position.
        self._delays: tuple[int, JsonObject] | None = None
        self._master: str | None = None
        self._known = asyncio.Event()
        self._taken: dict[Place, int] = {}
        self._problem: str | None = None

    def master_is_at(self, address: str | None) -> None:
        if address != self._master:
            self._master = address
            self._known.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self._known.clear()
            if self._master is not None:
                await self._copy_from(self._master)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._config().replication.metadata_interval_ms / 1000):
                    await self._known.wait()

    async def _copy_from(self, master: str) -> None:
        problem = None
        for copy in (self._copy_topics, self._copy_groups, self._copy_progress, self._copy_delays, self._copy_modes):
            try:
                await copy(master)
            except (Unreachable, CallTimeout) as error:
                problem = str(error)
                break  # the others would wait for it as long
            except PyroMQError as error:
                problem = str(error)
        if problem is not None and problem != self._problem:
            log.warning(
                "not all that %s knows of topics, groups and progress is copied, trying on: %s", master, problem
            )
        self._problem = problem

    async def _ask(self, master: str, request: Request) -> JsonObject:
        """Raises CallFailed, NotJson, WrongShape."""
        answer = None
        for address in _ways_to(master):
            try:
                answer = await self._client.call(address, request, CALL_SECONDS)
                break
            except CallFailed:
                if address == master:
                    raise
        assert answer is not None
        if answer.code != ResponseCode.SUCCESS:
            raise CallFailed(f"{master} refused {request.CODE.name} ({answer.code}): {answer.reason}")
        return an_object(loads(bytes(answer.body)))

    async def _copy_topics(self, master: str) -> None:
        if self._tables.topics.adopt(await self._ask(master, ask.GetAllTopics())):
            self._topics_changed()

    async def _copy_groups(self, master: str) -> None:
        if self._tables.groups.adopt(await self._ask(master, ask.GetAllGroups())):
            self._groups_changed()

    async def _copy_delays(self, master: str) -> None:
        self._take_delays()
        document = await self._ask(master, ask.GetAllDelayOffsets())
        figures = an_object((await self._ask(master, ask.GetRuntimeInfo())).get("table", {}))
        self._delays = _position(figures.get("commitLogMaxOffset")), document
        self._take_delays()

    def _take_delays(self) -> None:
        """Once the log has what was delivered when the master told of it."""
        if self._delays is not None and self._log_end() >= self._delays[0]:
            self._tables.delays.adopt(self._delays[1])
            self._delays = None

    async def _copy_modes(self, master: str) -> None:
        if self._tables.request_modes.adopt(request_modes_from_json(await self._ask(master, ask.GetRequestModes()))):
            self._tables.settings_saver.changed()

    # --- progress ----------------------------------------------------------------------------------------------------

    async def _copy_progress(self, master: str) -> None:
        told = _as_places(ConsumerOffsets.places_in(await self._ask(master, ask.GetAllOffsets())))
        mine = _as_places(self._tables.offsets.all())
        if not told:  # a master that lost its table must not take ours with it
            told = {place: offset for place, offset in mine.items() if self._taken.get(place) == offset}
        merged = merge(told, mine, self._taken)
        self._take_over(merged.offsets, mine)
        self._taken = {place: offset for place, offset in merged.offsets.items() if place not in merged.to_tell}
        refusals = []
        for place, offset in merged.to_tell.items():
            refusal = await self._tell(master, place, offset)
            if refusal is None:
                self._taken[place] = offset
            else:  # told again in the next round
                refusals.append(f"{place.group} in {place.topic}/{place.queue}: {refusal}")
        if refusals:
            raise CallFailed(f"{master} does not take the progress that was told here of {'; '.join(refusals)}")

    def _take_over(self, offsets: Mapping[Place, int], mine: Mapping[Place, int]) -> None:
        table = self._tables.offsets
        for place, offset in offsets.items():
            if mine.get(place) != offset:
                table.reset(place.group, place.topic, place.queue, offset)
        for place in mine.keys() - offsets.keys():  # the master has forgotten the group, or the topic
            table.forget(place.group, place.topic, place.queue)

    async def _tell(self, master: str, place: Place, offset: int) -> str | None:
        """Why the master does not take it; None: it does, or knows more by now. Raises CallFailed."""
        where: dict[str, Any] = {"group": place.group, "topic": place.topic, "queue_id": place.queue}
        question = QueryConsumerOffset(**where, zero_if_not_found=False)
        answer = await self._client.call(master, question, CALL_SECONDS)
        if answer.code == ResponseCode.SUCCESS and _position(answer.fields.get("offset")) >= offset:
            return None
        answer = await self._client.call(master, UpdateConsumerOffset(**where, offset=offset), CALL_SECONDS)
        return None if answer.code == ResponseCode.SUCCESS else answer.reason or f"code {answer.code}"


def _position(text: object) -> int:
    """What a broker says of its log; one that says nothing has nothing to wait for."""
    return int(text) if isinstance(text, str) and text.isascii() and text.isdigit() else 0


def _ways_to(master: str) -> Iterator[str]:
    host, port = parse_address(master)
    if port > VIP_PORTS_BELOW:
        yield shown_address(host, port - VIP_PORTS_BELOW)
    yield master


def _as_places(offsets: dict[tuple[str, str], dict[int, int]]) -> dict[Place, int]:
    return {
        Place(topic, group, queue): offset
        for (topic, group), by_queue in offsets.items()
        for queue, offset in by_queue.items()
    }
