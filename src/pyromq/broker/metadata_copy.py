"""What a slave has beside the log: topics, groups, progress, delays, request modes, copied from its master by requests.

Every `replication.metadata_interval_ms`, and as soon as a master is known. What the master cannot give (it is gone, it
is old, its answer is broken) leaves everything as it was. Progress goes both ways: see `replication.progress_merge`.

What was taken over is remembered on the disk: else a slave that was restarted would take all that it has for something
that consumers told it, and set a group forward again that was set back while it was away. So is up to where in the log
all topics are known: a slave that leads makes those that began behind it, and none that was removed before.

No table speaks of messages that the copy of the log does not have: a slave that becomes the master gives their places
in the queues to other messages. The offsets of groups are clamped to the ends of the queues here. The positions of
delays and of transactions depend on more than their queues (the delivered copies, the records of ends): a master of
ours tells the log end of each (`store.log_history`), and the newest ones that our log supports are taken. A master of
RocketMQ's is asked for its log end after the tables, and they wait until our log has reached it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pyromq.broker.clamping import COPIES_OF_A_TABLE, LogEnds
from pyromq.broker.tables import Tables
from pyromq.config import BrokerConfig
from pyromq.errors import CallFailed, CallTimeout, PyroMQError, Unreachable
from pyromq.model import names
from pyromq.model.json_form import OFFSET, JsonObject, an_object
from pyromq.model.topic import TopicConfig
from pyromq.net.address import VIP_PORTS_BELOW, parse_address, shown_address
from pyromq.net.client import Client
from pyromq.replication.progress_merge import Place, merge
from pyromq.store import log_history
from pyromq.store.config_files import ConsumerOffsets, JsonFile
from pyromq.store.disk import Disk
from pyromq.store.platform import what_to_do
from pyromq.wire import admin_requests as ask
from pyromq.wire.bodies.assignment import request_modes_from_json
from pyromq.wire.codes import ResponseCode
from pyromq.wire.fastjson import loads
from pyromq.wire.requests import QueryConsumerOffset, Request, UpdateConsumerOffset

log = logging.getLogger("pyromq.broker")

CALL_SECONDS = 5.0
TAKEN_FILE = "progressTaken.json"
TOPICS_KNOWN_TO = "topicsKnownTo"
#: Of one that led: it knew the topics of all of its log, wherever that ends by now.
WHOLE_LOG = (1 << 63) - 1


class Taken(NamedTuple):
    """What a slave has from its master, as it was then."""

    progress: dict[Place, int]
    #: Where the log ended when all topics were asked for last; 0: they never were.
    topics_known_to: int = 0


class TakenProgress:
    """`progressTaken.json`: the progress that a slave has from its master, and how far it knows its topics."""

    def __init__(self, disk: Disk, directory: Path) -> None:
        self._file = JsonFile(disk, directory / TAKEN_FILE, _read_taken)
        self.saved = Taken({})

    def load(self) -> Taken:
        """Nothing, when there is no such file. Raises CorruptFile."""
        found = self._file.load()
        self.saved = Taken({}) if found is None else _read_taken(found.value)
        return Taken(dict(self.saved.progress), self.saved.topics_known_to)

    def save(self, taken: Taken) -> None:
        """Returns when it is durable. Raises OSError."""
        table: dict[str, JsonObject] = {}
        for place, offset in taken.progress.items():
            table.setdefault(f"{place.topic}@{place.group}", {})[str(place.queue)] = offset
        self._file.save({TOPICS_KNOWN_TO: taken.topics_known_to, ConsumerOffsets.TABLE: table})
        self.saved = taken

    def clamp(self, ends: LogEnds) -> bool:
        """Lower the offsets like those of the slave's groups: a difference would look like news from consumers.

        Raises CorruptFile.
        """
        taken = self.load()
        clamped = {
            place: min(offset, ends.queue_end(place.topic, place.queue)) for place, offset in taken.progress.items()
        }
        self.saved = taken._replace(progress=clamped)
        return clamped != taken.progress

    def save_clamped(self) -> None:
        """Raises OSError."""
        for _ in range(COPIES_OF_A_TABLE):
            self.save(self.saved)


def _read_taken(document: JsonObject) -> Taken:
    """Raises WrongShape."""
    return Taken(as_places(ConsumerOffsets.places_in(document)), OFFSET(document.get(TOPICS_KNOWN_TO, 0)))


def forget_own_progress(offsets: ConsumerOffsets, taken: TakenProgress) -> None:
    """Of one that led: what groups told it then is no news for the master that came after it. Raises OSError.

    That one has heard it, or has other messages there: a group that was set forward would miss them.
    """
    taken.save(Taken(as_places(offsets.all()), WHOLE_LOG))


class Waiting(NamedTuple):
    """Positions of a master that tells no log ends with them, until the log here reaches the end of its log."""

    log_end: int
    delays: JsonObject | None
    transactions: dict[str, int]


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
        queue_end: Callable[[str, int], int],
        taken: TakenProgress,
        trusts: Callable[[str], bool] = lambda address: True,
        catch_up: Callable[[], None] = lambda: None,
    ) -> None:
        self._config = config
        self._tables = tables
        self._client = client
        self._topics_changed = topics_changed
        self._groups_changed = groups_changed
        self._log_end = log_end
        self._queue_end = queue_end
        #: Fills the queues from the log.
        self._catch_up = catch_up
        self._waiting: Waiting | None = None
        #: Positions of this round for which the end of the master's log is still to be asked.
        self._delays: JsonObject | None = None
        self._transactions: dict[str, int] = {}
        self._master: str | None = None
        self._known = asyncio.Event()
        self._taken_file = taken
        self._taken, known_to = taken.load()
        #: Where the log ended when all topics were asked for last. It may have been cut back since.
        self._topics_known_to = min(known_to, log_end())
        self._trusts = trusts
        self._lock = asyncio.Lock()
        self._saving: asyncio.Task[None] | None = None
        self._problem: str | None = None
        #: Whether everything has been copied once since the start.
        self.is_complete = False

    @property
    def problem(self) -> str | None:
        """Why topics, groups and progress are not all copied; `None` if they are."""
        if self._problem is not None or self.is_complete:
            return self._problem
        return "no master has been found yet" if self._master is None else "they have not been copied yet"

    def master_is_at(self, address: str | None) -> None:
        if address != self._master:
            self._master = address
            self._known.set()

    def copy_soon(self) -> None:
        """There is something to copy now, or it may be copied now."""
        self._known.set()

    async def run(self) -> None:
        """Until cancelled."""
        try:
            while True:
                self._known.clear()
                await self.copy_now()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._config().replication.metadata_interval_ms / 1000):
                        await self._known.wait()
        finally:
            await self.settled()

    async def copy_now(self) -> None:
        """Once, from whoever is the master as far as is known."""
        async with self._lock:
            if self._master is not None and self._trusts(self._master):
                await self._copy_from(self._master)

    async def _copy_from(self, master: str) -> None:
        problem = None
        copies = (
            self._copy_topics, self._copy_groups, self._copy_progress, self._copy_delays, self._tie_to_log,
            self._copy_modes,
        )  # fmt: skip
        for copy in copies:
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
        self.is_complete = self.is_complete or problem is None

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
        log_end = self._log_end()
        if self._tables.topics.adopt(await self._ask(master, ask.GetAllTopics())):
            self._topics_changed()
        self._topics_known_to = log_end

    def name_new_topics(self, begun_since: Callable[[int], Mapping[str, int]]) -> None:
        """Of a slave that is to lead: a topic that came with the last messages, and was not copied yet, is made.

        `begun_since` gives topics whose first message is behind a position, and how many queues they have here. Older
        ones that the master did not know were removed there. One that has never asked its master makes them all: better
        a removed topic comes back than that acknowledged messages cannot be reached.
        """
        for name, queues in begun_since(self._topics_known_to).items():
            if name not in self._tables.topics:
                log.warning("the topic %s is new: it is made with the %d queues that have messages here", name, queues)
                self._tables.topics.put(TopicConfig(name, queues, queues))
                self._tables.settings_saver.changed()

    async def _copy_groups(self, master: str) -> None:
        if self._tables.groups.adopt(await self._ask(master, ask.GetAllGroups())):
            self._groups_changed()

    async def _copy_delays(self, master: str) -> None:
        document = await self._ask(master, ask.GetAllDelayOffsets())
        history = log_history.from_document(document)
        if history.entries:
            self._tables.delays.adopt_history(history, self._log_end())
        else:
            self._delays = document

    async def _tie_to_log(self, master: str) -> None:
        """Keep positions without log ends until our log has everything that the master's has now."""
        self._take_waiting()
        delays, transactions = self._delays, self._transactions
        self._delays, self._transactions = None, {}
        # Older ones go first: a slave that lags would wait for ever newer log ends.
        if self._waiting is None and (delays is not None or transactions):
            figures = an_object((await self._ask(master, ask.GetRuntimeInfo())).get("table", {}))
            self._waiting = Waiting(_position(figures.get("commitLogMaxOffset")), delays, transactions)
            self._take_waiting()

    def _take_waiting(self) -> None:
        waiting = self._waiting
        if waiting is None or self._log_end() < waiting.log_end:
            return
        self._waiting = None
        if waiting.delays is not None:
            self._tables.delays.adopt_at(waiting.delays, waiting.log_end)
        if waiting.transactions:
            self._tables.offsets.set_transactions(waiting.transactions, waiting.log_end)

    async def _copy_modes(self, master: str) -> None:
        if self._tables.request_modes.adopt(request_modes_from_json(await self._ask(master, ask.GetRequestModes()))):
            self._tables.settings_saver.changed()

    # --- progress ----------------------------------------------------------------------------------------------------

    async def _copy_progress(self, master: str) -> None:
        document = await self._ask(master, ask.GetAllOffsets())
        told = as_places(ConsumerOffsets.places_in(document))
        history = log_history.from_document(document)
        if history.entries:
            self._tables.offsets.adopt_transactions(history, self._log_end())
        else:
            self._transactions = {place.topic: offset for place, offset in told.items() if _is_transactions(place)}
        self._catch_up()
        told = {
            place: min(offset, self._queue_end(place.topic, place.queue))
            for place, offset in told.items()
            if not _is_transactions(place)
        }
        mine = {
            place: offset
            for place, offset in as_places(self._tables.offsets.all()).items()
            if not _is_transactions(place)
        }
        if not told:  # a master that lost its table must not take ours with it
            told = {place: offset for place, offset in mine.items() if self._taken.get(place) == offset}
        merged = merge(told, mine, self._taken)
        self._take_over(merged.offsets, mine)
        self._taken = {place: offset for place, offset in merged.offsets.items() if place not in merged.to_tell}
        self._remember_soon()
        refusals = []
        for place, offset in merged.to_tell.items():
            refusal = await self._tell(master, place, offset)
            if refusal is None:
                self._taken[place] = offset
            else:  # told again in the next round
                refusals.append(f"{place.group} in {place.topic}/{place.queue}: {refusal}")
        if refusals:
            raise CallFailed(f"{master} does not take the progress that was told here of {'; '.join(refusals)}")

    def _remember_soon(self) -> None:
        """Beside: a slow disk must not hold up what is copied."""
        if self._saving is None or self._saving.done():
            self._saving = asyncio.get_running_loop().create_task(self._remember())

    async def _remember(self) -> None:
        """What we hold first: taken for told here, an older word of ours would be told the master as news."""
        taken = Taken(dict(self._taken), self._topics_known_to)
        if taken == self._taken_file.saved:
            return
        try:
            await asyncio.to_thread(self._tables.topics.save)
            await asyncio.to_thread(self._tables.offsets.save)
            await asyncio.to_thread(self._taken_file.save, taken)
        except OSError as error:
            log.warning("what progress was copied cannot be written down, trying on: %s", what_to_do(error))

    async def settled(self) -> None:
        """Return when what was copied is on the disk."""
        self._take_waiting()
        if self._saving is not None:
            await self._saving
        await self._remember()

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
        # RocketMQ's brokers set whatever they are told: hence the question. Ours never go back by this.
        request = UpdateConsumerOffset(**where, offset=offset, only_forward=True)
        answer = await self._client.call(master, request, CALL_SECONDS)
        return None if answer.code == ResponseCode.SUCCESS else answer.reason or f"code {answer.code}"


def _is_transactions(place: Place) -> bool:
    """Whether it is a position of the broker's own, which depends on more than its queue."""
    return place.group == names.TRANSACTION_GROUP and place.topic in names.TRANSACTION_TOPICS


def _position(text: object) -> int:
    """What a broker says of its log; one that says nothing has nothing to wait for."""
    return int(text) if isinstance(text, str) and text.isascii() and text.isdigit() else 0


def _ways_to(master: str) -> Iterator[str]:
    host, port = parse_address(master)
    if port > VIP_PORTS_BELOW:
        yield shown_address(host, port - VIP_PORTS_BELOW)
    yield master


def as_places(offsets: dict[tuple[str, str], dict[int, int]]) -> dict[Place, int]:
    return {
        Place(topic, group, queue): offset
        for (topic, group), by_queue in offsets.items()
        for queue, offset in by_queue.items()
    }
