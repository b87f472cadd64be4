"""The tables of a slave: topics, groups, progress, delays, request modes, copied from its master by requests.

All of it every `replication.metadata_interval_ms`, and as soon as a master is known; the progress that changed every
`replication.progress_interval_ms`, which bounds the redeliveries after a fail-over. A table that the master cannot give
(it is gone, it is old, its answer is broken) leaves everything as it was. Progress goes both ways: see
`replication.progress_merge`.

The copied progress is saved on the disk: else a restarted slave would take all its offsets for ones
that consumers committed here, and set a group forward again that was set back in its absence. So is the position up
to which
all topics are known: a slave that leads makes those that began after it, and none that was removed before.

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

from pyromq.broker.failover.progress_sync import ProgressCopy, is_transactions
from pyromq.broker.state.clamping import COPIES_OF_A_TABLE, LogEnds
from pyromq.broker.state.tables import Tables
from pyromq.config import BrokerConfig
from pyromq.errors import CallFailed, CallTimeout, PyroMQError, Unreachable
from pyromq.files.disk import Disk
from pyromq.files.json_file import JsonFile
from pyromq.files.platform import what_to_do
from pyromq.model import lenient_json
from pyromq.model.json_form import OFFSET, JsonObject, an_object
from pyromq.model.topic import TopicConfig
from pyromq.net.address import VIP_PORTS_BELOW, parse_address, shown_address
from pyromq.net.client import Client
from pyromq.replication.progress_merge import Place
from pyromq.store.tables import log_history
from pyromq.store.tables.log_history import LogHistory
from pyromq.store.tables.offset_files import ConsumerOffsets
from pyromq.wire.bodies.assignment import request_modes_from_json
from pyromq.wire.bodies.offsets import CHANGES, DELAY_CHANGES, IS_DELTA
from pyromq.wire.codes import ResponseCode
from pyromq.wire.command import Command
from pyromq.wire.fastjson import loads
from pyromq.wire.requests import admin as ask
from pyromq.wire.requests.client import QueryConsumerOffset, Request, UpdateConsumerOffset

log = logging.getLogger("pyromq.broker")

CALL_SECONDS = 5.0
TAKEN_FILE = "progressTaken.json"
TOPICS_KNOWN_TO = "topicsKnownTo"
#: Of one that led: it knew the topics of all of its log, wherever that ends by now.
WHOLE_LOG = (1 << 63) - 1


class Taken(NamedTuple):
    """The state that a slave has copied from its master, as it was then."""

    progress: dict[Place, int]
    #: The end of the log when all topics were last requested; 0 if they never were.
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
    """Copies the master's tables in the background of a slave."""

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
        #: Fills the queues from the log.
        self._catch_up = catch_up
        self._waiting: Waiting | None = None
        #: Positions of this round for which the end of the master's log is still to be asked.
        self._delays: JsonObject | None = None
        self._transactions: dict[str, int] = {}
        self._master: str | None = None
        self._known = asyncio.Event()
        self._taken_file = taken
        progress, known_to = taken.load()
        self._progress = ProgressCopy(tables.offsets, progress, queue_end)
        #: Of the master's progress as it was told last; `None` if it has to be told as a whole.
        self._token: str | None = None
        #: Positions that the master told with their log ends, and the token that came with those of delays.
        self._told_transactions = self._told_delays = LogHistory()
        self._delays_token: str | None = None
        self._delays_changed = False
        #: The end of the log when all topics were last requested. It may have been cut back since.
        self._topics_known_to = min(known_to, log_end())
        self._trusts = trusts
        self._lock = asyncio.Lock()
        self._saving: asyncio.Task[None] | None = None
        self._problem: str | None = None
        #: True once everything has been copied since the start.
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
            self._token = None
            self._known.set()

    def copy_soon(self) -> None:
        """There is something to copy now, or it may be copied now."""
        self._known.set()

    async def run(self) -> None:
        """Until cancelled."""
        now = asyncio.get_running_loop().time
        whole_at = saved_at = now()
        try:
            while True:
                is_whole = self._known.is_set() or now() >= whole_at
                self._known.clear()
                config = self._config()
                if is_whole:
                    await self.copy_now()
                    whole_at = now() + config.replication.metadata_interval_ms / 1000
                else:
                    await self.copy_changes()
                if now() >= saved_at:
                    self._remember_soon()
                    saved_at = now() + config.offsets_flush_interval_ms / 1000
                pause_s = min(config.replication.progress_interval_ms / 1000, whole_at - now(), saved_at - now())
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause_s):
                        await self._known.wait()
        finally:
            await self.settled()

    async def copy_now(self) -> None:
        """Copy once, from the master as far as it is known."""
        async with self._lock:
            if self._master is not None and self._trusts(self._master):
                await self._copy_from(self._master)

    async def copy_changes(self) -> None:
        """Copy the progress that changed since the last copy, if the master can tell it."""
        async with self._lock:
            master = self._master
            if master is None or self._token is None or not self._trusts(master):
                return
            try:
                await self._copy_progress(master)
                await self._copy_changed_delays(master)
            except PyroMQError:  # the next copy of everything reports the error
                self._token = None

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
        return an_object(loads(bytes((await self._answer(master, request)).body)))

    async def _answer(self, master: str, request: Request) -> Command:
        """Raises CallFailed."""
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
        return answer

    async def _copy_topics(self, master: str) -> None:
        log_end = self._log_end()
        if self._tables.topics.adopt(await self._ask(master, ask.GetAllTopics())):
            self._topics_changed()
        self._topics_known_to = log_end

    def name_new_topics(self, begun_since: Callable[[int], Mapping[str, int]]) -> None:
        """Of a slave that is to lead: a topic that came with the last messages, and was not copied yet, is made.

        `begun_since` gives topics whose first message is behind a position, and how many queues they have here. Older
        ones that the master did not know were removed there. One that has never asked its master makes them all: better
        a removed topic exists again than that acknowledged messages cannot be reached.
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
        self._delays_changed = False
        document = await self._ask(master, ask.GetAllDelayOffsets())
        self._told_delays = log_history.from_document(document)
        if self._told_delays.entries:
            self._tables.delays.adopt_history(self._told_delays, self._log_end())
        else:
            self._delays = document

    async def _copy_changed_delays(self, master: str) -> None:
        if self._delays_changed:
            await self._copy_delays(master)
            self._delays = None  # without log ends they come with the copies of everything
        else:
            self._tables.delays.adopt_history(self._told_delays, self._log_end())

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
        answer = await self._answer(master, ask.GetAllOffsets(changed_since=self._token or ""))
        read = lenient_json.loads if CHANGES in answer.fields else loads
        document = an_object(read(bytes(answer.body)))
        is_delta = answer.fields.get(IS_DELTA) == "true"
        told = ConsumerOffsets.places_in(document)
        history = log_history.from_document(document)
        if history.entries:
            self._told_transactions = history
        elif not is_delta:
            self._told_transactions = LogHistory()
            self._transactions = {
                pair[0]: by_queue[0] for pair, by_queue in told.items() if is_transactions(pair) and 0 in by_queue
            }
        self._tables.offsets.adopt_transactions(self._told_transactions, self._log_end())
        self._catch_up()
        to_tell = self._progress.changed(told) if is_delta else self._progress.whole(told)
        self._token = answer.fields.get(CHANGES)
        self._note_delays(answer.fields.get(DELAY_CHANGES))
        await self._tell_all(master, to_tell)

    def _note_delays(self, token: str | None) -> None:
        self._delays_changed = self._delays_changed or token != self._delays_token
        self._delays_token = token

    async def _tell_all(self, master: str, to_tell: Mapping[Place, int]) -> None:
        """Raises CallFailed."""
        refusals = []
        for place, offset in to_tell.items():
            refusal = await self._tell(master, place, offset)
            if refusal is None:
                self._progress.was_told(place, offset)
            else:  # told again in the next round
                refusals.append(f"{place.group} in {place.topic}/{place.queue}: {refusal}")
        if refusals:
            self._token = None
            raise CallFailed(f"{master} does not take the progress that was told here of {'; '.join(refusals)}")

    def _remember_soon(self) -> None:
        """Save in the background: a slow disk must not delay the copy."""
        if self._saving is None or self._saving.done():
            self._saving = asyncio.get_running_loop().create_task(self._remember())

    async def _remember(self) -> None:
        """Save our offsets before the copied ones: else an older offset of ours would be sent to the master as new."""
        try:
            await asyncio.to_thread(self._tables.topics.save)
            by_pairs, known_to = self._progress.taken(), self._topics_known_to
            if await self._tables.offsets_saver.save():
                await asyncio.to_thread(self._save_taken, by_pairs, known_to)
        except OSError as error:
            log.warning("what progress was copied cannot be written down, trying on: %s", what_to_do(error))

    def _save_taken(self, by_pairs: Mapping[tuple[str, str], Mapping[int, int]], known_to: int) -> None:
        """On a thread: thousands of places take a while. Raises OSError."""
        taken = Taken(as_places(by_pairs), known_to)
        if taken != self._taken_file.saved:
            self._taken_file.save(taken)

    async def settled(self) -> None:
        """Return when the copied tables are on the disk."""
        self._take_waiting()
        if self._saving is not None:
            await self._saving
        await self._remember()

    async def _tell(self, master: str, place: Place, offset: int) -> str | None:
        """Why the master does not take it; None: it does, or knows more by now. Raises CallFailed."""
        where: dict[str, Any] = {"group": place.group, "topic": place.topic, "queue_id": place.queue}
        question = QueryConsumerOffset(**where, zero_if_not_found=False)
        answer = await self._client.call(master, question, CALL_SECONDS)
        if answer.code == ResponseCode.SUCCESS and _position(answer.fields.get("offset")) >= offset:
            return None
        # RocketMQ's brokers set any offset they receive: hence the question. Ours never set one back by this.
        request = UpdateConsumerOffset(**where, offset=offset, only_forward=True)
        answer = await self._client.call(master, request, CALL_SECONDS)
        return None if answer.code == ResponseCode.SUCCESS else answer.reason or f"code {answer.code}"


def _position(text: object) -> int:
    """Return a position from a broker's answer; 0 if there is none."""
    return int(text) if isinstance(text, str) and text.isascii() and text.isdigit() else 0


def _ways_to(master: str) -> Iterator[str]:
    host, port = parse_address(master)
    if port > VIP_PORTS_BELOW:
        yield shown_address(host, port - VIP_PORTS_BELOW)
    yield master


def as_places(offsets: Mapping[tuple[str, str], Mapping[int, int]]) -> dict[Place, int]:
    return {
        Place(topic, group, queue): offset
        for (topic, group), by_queue in offsets.items()
        for queue, offset in by_queue.items()
    }
