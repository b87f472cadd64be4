"""The broker's side of registration: every name server knows this broker and its topics, or does once it answers.

With each name server for itself: register at start, every `register_interval_ms`, and at once when topics change;
changes that come together go together. In between the name server is asked now and then whether it still knows us, so
that one that was restarted has our topics within seconds. One that does not answer is tried on, quietly: a log line
when it stops answering and one when it answers again.

Two brokers of one name would take each other's messages. A broker that finds another one alive under its name and id
does not register, says so in its log and its status, and tries again. Only the very first start of an empty store is
refused: that is a mistake in the settings, and nothing is lost. The same address is no other broker, nor is one that
does not answer: that is what a restart looks like. A broker that this one has replaced is no reason to wait either.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from pyromq.broker.together import within
from pyromq.clock import Clock
from pyromq.config import BrokerConfig
from pyromq.errors import CallFailed, ConfigError, PyroMQError
from pyromq.model.data_version import DataVersion
from pyromq.model.topic import Permission, TopicConfig
from pyromq.net.client import Client
from pyromq.records.checksum import positive_crc32
from pyromq.wire.bodies.routes import (
    MemberGroup,
    TopicConfigs,
    decode_kv_table,
    encode_data_version,
    encode_registration,
)
from pyromq.wire.codes import ResponseCode
from pyromq.wire.command import Command
from pyromq.wire.requests.admin import GetRuntimeInfo
from pyromq.wire.requests.client import Request
from pyromq.wire.requests.nameserver import GetMemberGroup, QueryDataVersion, RegisterBroker, UnregisterBroker

log = logging.getLogger("pyromq.broker")

#: The broker's topics for a registration: the version of the list, and the list.
Topics = Callable[[], tuple[DataVersion, Iterable[TopicConfig]]]

#: The time for which a start waits for name servers before it continues without them.
START_SECONDS = 1.0
#: The time for which a stop waits for name servers.
STOP_SECONDS = 2.0
#: The interval at which a name server is asked whether it still knows us.
CHECK_SECONDS = 5.0
#: Between two tries, at first and at most.
FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS = 0.5, 5.0
#: The time in which another broker with our name has to show that it is alive.
TWIN_SECONDS = 1.0
#: After a registration that took longer than a little, the next one waits this many times as long, and no longer than
#: this: name servers hear of new topics soon, and telling them takes a small part of the time.
LITTLE_SECONDS, REST_FACTOR, LONGEST_REST_SECONDS = 0.25, 9.0, 20.0
#: Topics in one request: some 5 MB, a third of what a name server takes in one.
TOPICS_PER_REQUEST = 20_000


class Registrar:
    """Keeps this broker known to its name servers."""

    def __init__(
        self,
        config: Callable[[], BrokerConfig],
        address: str,
        topics: Topics,
        client: Client,
        clock: Clock,
        *,
        ha_address: str = "",
        on_master: Callable[[str | None, str | None], None] = lambda address, ha_address: None,
        seeks_master: Callable[[], bool] = lambda: False,
        outranks: Callable[[str], Awaitable[bool]] | None = None,
        number: Callable[[], int] = lambda: 0,
    ) -> None:
        """`on_master` receives the broker address and the replication address of the master from a name server.

        Only a registration returns them: a broker that `seeks_master` registers more often. `outranks` decides between
        us and another one of our name and id; `number` is that of the epoch with which we lead.
        """
        self._config = config
        self.address = address
        self.ha_address = ha_address
        self.on_master = on_master
        self.seeks_master = seeks_master
        self.outranks = outranks
        self._number = number
        self._topics = topics
        self._links = [_Link(self, one, client, clock) for one in dict.fromkeys(config().name_servers)]
        self._tasks: list[asyncio.Task[None]] = []
        #: The order settings of all topics, as the name server that answered last has them.
        self.order_topics: Mapping[str, str] = {}

    @property
    def registered_with(self) -> tuple[str, ...]:
        """The name servers that know this broker now."""
        return tuple(link.address for link in self._links if link.is_registered)

    @property
    def conflict(self) -> str:
        """Which other broker has this one's name and id, as a name server says; empty if none has."""
        return next((link.conflict for link in self._links if link.conflict), "")

    async def start(self, *, refuse_twins: bool = False) -> None:
        """Register with the name servers that answer.

        Raises ConfigError with `refuse_twins` if another broker of this name and id is alive.
        """
        if refuse_twins:
            await self._refuse_twins()
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(link.run(), name=f"register with {link.address}") for link in self._links]
        for task in self._tasks:
            task.add_done_callback(_never_ends)
        await within(START_SECONDS, [link.tried.wait() for link in self._links])

    def topics_changed(self) -> None:
        """Tell all name servers, soon."""
        for link in self._links:
            link.changed.set()

    async def stop(self, *, says_goodbye: bool = True) -> None:
        """Unregister, with a short timeout. A broker that restarts at once need not."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        if says_goodbye:
            await within(STOP_SECONDS, [link.unregister() for link in self._links])

    async def _refuse_twins(self) -> None:
        for result in await within(START_SECONDS, [link.refuse_twin() for link in self._links]):
            if isinstance(result, ConfigError):
                raise result

    # --- requests ----------------------------------------------------------------------------------------------------

    @property
    def config(self) -> BrokerConfig:
        return self._config()

    def version(self) -> DataVersion:
        return self._known_topics()[0]

    def _known_topics(self) -> tuple[DataVersion, Iterable[TopicConfig]]:
        """Name servers take the topics of a master with a smaller number for those of one that was replaced."""
        version, topics = self._topics()
        return replace(version, state_version=max(version.state_version, self._number())), topics

    def registrations(self) -> Iterator[RegisterBroker]:
        """All topics, in as many requests as it takes."""
        version, topics = self._known_topics()
        left = [self._limited(topic) for topic in topics]
        while True:
            some, left = left[:TOPICS_PER_REQUEST], left[TOPICS_PER_REQUEST:]
            yield self._registration(TopicConfigs(version, tuple(some)))
            if not left:
                return

    def _registration(self, configs: TopicConfigs) -> RegisterBroker:
        config = self.config
        body = encode_registration(configs)
        return RegisterBroker(
            broker_name=config.name, address=self.address, cluster=config.cluster, ha_address=self.ha_address,
            broker_id=config.broker_id, timeout_ms=config.name_server_timeout_ms, acting_master=False,
            body_crc=positive_crc32(body), body=body,
        )  # fmt: skip

    def _limited(self, topic: TopicConfig) -> TopicConfig:
        """Restrict the permissions of topics to those of the broker."""
        allowed = self.config.permission
        if allowed & Permission.READ_WRITE == Permission.READ_WRITE:
            return topic
        return replace(topic, permission=topic.permission & allowed)


class _Link:
    """One name server."""

    def __init__(self, registrar: Registrar, address: str, client: Client, clock: Clock) -> None:
        self._registrar = registrar
        self.address = address
        self._client = client
        self._clock = clock
        #: The duration of the last successful registration, and the end of the last attempt.
        self._took_s = 0.0
        self._ended_at = 0.0
        self.changed = asyncio.Event()
        #: Set once a registration was tried.
        self.tried = asyncio.Event()
        self.is_registered = False
        #: Which other broker has our name and id there; empty if none has.
        self.conflict = ""
        #: The state that the last log line reported; None before the first.
        self._logged: type[PyroMQError] | bool | None = None

    async def run(self) -> None:
        retry_s = FIRST_RETRY_SECONDS
        while True:
            await self._rest()
            self.changed.clear()
            began = self._clock.monotonic()
            problem = await self._try()
            self._ended_at = self._clock.monotonic()
            self._took_s = 0.0 if problem is not None else self._ended_at - began
            self._note(problem)
            self.tried.set()
            if problem is None:
                retry_s = FIRST_RETRY_SECONDS
                await self._until_needed()
            else:
                await asyncio.sleep(retry_s)
                retry_s = min(2 * retry_s, LONGEST_RETRY_SECONDS)

    async def _rest(self) -> None:
        """Wait before the next registration, which names all topics: with many of them, changes are sent together."""
        rest_s = min(self._took_s * REST_FACTOR, LONGEST_REST_SECONDS) - (self._clock.monotonic() - self._ended_at)
        if self._took_s > LITTLE_SECONDS and rest_s > 0:
            await asyncio.sleep(rest_s)

    async def _try(self) -> PyroMQError | None:
        try:
            if not self.is_registered:
                await self.refuse_twin()
            await self._register()
        except PyroMQError as problem:
            self.is_registered = False
            self.conflict = str(problem) if isinstance(problem, ConfigError) else ""
            return problem
        self.is_registered = True
        self.conflict = ""
        return None

    def _note(self, problem: PyroMQError | None) -> None:
        """Say what changed, once."""
        about: type[PyroMQError] | bool = True
        if problem is not None:
            about = CallFailed if isinstance(problem, CallFailed) else type(problem)
        if about == self._logged:
            return
        self._logged = about
        if problem is None:
            log.info("registered with the name server %s", self.address)
        else:
            log.warning("not registered with the name server %s, trying on: %s", self.address, problem)

    async def _until_needed(self) -> None:
        """Until it is time to register again, the topics changed, or the name server has forgotten us."""
        due = self._clock.monotonic() + self._registrar.config.register_interval_ms / 1000
        while (left := due - self._clock.monotonic()) > 0:
            if await _comes(self.changed, min(left, CHECK_SECONDS)):
                return
            if left > CHECK_SECONDS and (self._registrar.seeks_master() or not await self._is_known()):
                return

    # --- requests ----------------------------------------------------------------------------------------------------

    async def _call(self, request: Request, timeout_s: float | None = None) -> Command:
        """The answer, if it says yes. Raises CallFailed."""
        timeout_s = timeout_s or self._registrar.config.register_timeout_ms / 1000
        answer = await self._client.call(self.address, request, timeout_s)
        if answer.code != ResponseCode.SUCCESS:
            raise CallFailed(f"{self.address} refused {request.CODE.name} ({answer.code}): {answer.reason}")
        return answer

    async def _register(self) -> None:
        for request in self._registrar.registrations():
            answer = await self._call(request)
            self._registrar.on_master(answer.fields.get("masterAddr"), answer.fields.get("haServerAddr"))
            if answer.body:
                self._registrar.order_topics = decode_kv_table(answer.body)

    async def _is_known(self) -> bool:
        config = self._registrar.config
        request = QueryDataVersion(
            broker_name=config.name, address=self._registrar.address, cluster=config.cluster,
            broker_id=config.broker_id, body=encode_data_version(self._registrar.version()),
        )  # fmt: skip
        try:
            return (await self._call(request)).fields.get("changed") == "false"
        except CallFailed:
            return False

    async def unregister(self) -> None:
        if not self.is_registered:
            return
        self.is_registered = False
        config = self._registrar.config
        request = UnregisterBroker(
            broker_name=config.name, address=self._registrar.address, cluster=config.cluster,
            broker_id=config.broker_id,
        )  # fmt: skip
        with contextlib.suppress(CallFailed):  # the name server notices the missing heartbeats
            await self._call(request, STOP_SECONDS)

    async def refuse_twin(self) -> None:
        """Raises ConfigError when the name server knows another broker by our name and id, and that one is alive."""
        config = self._registrar.config
        request = GetMemberGroup(cluster=config.cluster, broker_name=config.name)
        answer = await self._client.call(self.address, request)
        if answer.code != ResponseCode.SUCCESS:
            return  # RocketMQ before 5.0 does not know the request
        members = MemberGroup.decode(answer.body).addresses
        holder = members.get(config.broker_id)
        if holder is None or holder == self._registrar.address or not await self._is_alive(holder):
            return
        if self._registrar.outranks is None or not await self._registrar.outranks(holder):
            raise ConfigError(
                f"name = {config.name!r} is taken: a broker with this name and id {config.broker_id} runs at {holder}, "
                f"as the name server {self.address} knows; {_what_to_do(config, members)}",
                "name",
            )

    async def _is_alive(self, broker: str) -> bool:
        """Any answer is a sign of life, a refusal too."""
        try:
            async with asyncio.timeout(TWIN_SECONDS):
                await self._client.call(broker, GetRuntimeInfo(), TWIN_SECONDS)
        except (CallFailed, TimeoutError):
            return False
        return True


def _what_to_do(config: BrokerConfig, members: Mapping[int, str]) -> str:
    """For one whose name and number another broker has."""
    if config.is_slave:
        return f"give this one a number of its own (--id {max(members) + 1}, brokerId), or stop that one first"
    return (
        "give this one a name of its own, or stop that one first; for a copy of that one start a slave, with --role "
        "slave and a new store directory"
    )


def _never_ends(task: asyncio.Task[None]) -> None:
    """But for a mistake of ours, which must not pass unseen."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.critical("%s: given up because of a fault in the broker", task.get_name(), exc_info=error)


async def _comes(event: asyncio.Event, timeout_s: float) -> bool:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await event.wait()
    return event.is_set()
