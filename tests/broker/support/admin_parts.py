"""A broker's admin side on a disk in memory, asked as a tool asks it: by commands."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

from broker.support.fakes import FakePeer, Parts
from pyromq.broker.requests.admin.broker import BrokerAdmin
from pyromq.broker.requests.admin.clients import ClientAdmin
from pyromq.broker.requests.admin.groups import GroupAdmin
from pyromq.broker.requests.admin.offsets import OffsetAdmin
from pyromq.broker.requests.admin.topics import TopicAdmin
from pyromq.broker.settings import Settings
from pyromq.broker.state.clients import Consumers, ConsumerSeen, Member, Producers
from pyromq.broker.state.locks import QueueLocks
from pyromq.broker.state.offsets import Progress
from pyromq.broker.state.resets import Resets
from pyromq.broker.statistics.runtime_info import RuntimeInfo
from pyromq.broker.statistics.traffic import Statistics
from pyromq.clock import ManualClock
from pyromq.filters.subscription import build
from pyromq.model.group import GroupConfig
from pyromq.model.message import AppendedAt, Draft
from pyromq.model.topic import TopicConfig
from pyromq.net.service import Service
from pyromq.records.properties import encode_properties
from pyromq.wire import fastjson
from pyromq.wire.bodies.replication import encode_master
from pyromq.wire.requests.client import Request, encode_request
from pyromq.wire.responses import Response

ADDRESS = "127.0.0.1:10911"


class AdminParts(Parts):
    """All admin processors, wired as a broker wires them."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        assert isinstance(self.clock, ManualClock)
        self.time: ManualClock = self.clock
        self.settings = Settings(self.config, self.disk, self.store.paths.config, self.clock)
        self.settings.load()
        self.producers, self.consumers = Producers(), Consumers()
        self.progress = Progress(self.offsets, self.store)
        self.resets = Resets()
        self.locks = QueueLocks()
        self.statistics = Statistics(self.clock)
        self.woken: list[tuple[str, int]] = []
        self.admin_peer = FakePeer("10.9.8.7:5555")
        self.service = Service(self._handlers())

    def _handlers(self) -> dict[type[Request], Any]:
        config = self.settings.current
        info = RuntimeInfo(
            config,
            self.store,
            self.statistics,
            self.clock,
            delays=self.delay_offsets,
            delay_levels=18,
            numbered=self.numbered,
        )
        offsets = OffsetAdmin(
            config, ADDRESS, self.topics, self.groups, self.consumers, self.progress, self.resets, self.store,
            self.statistics, self.clock, wake=self.woken.extend, delays=self.delay_offsets, delay_levels=18,
        )  # fmt: skip
        topics = TopicAdmin(
            config, ADDRESS, self.topics, self.consumers, self.progress, self.resets, self.store, self.statistics
        )
        groups = GroupAdmin(self.groups, self.progress, self.resets, self.locks, self.statistics, self._changed)
        clients = ClientAdmin(config, self.topics, self.groups, self.producers, self.consumers, self.store)
        broker = BrokerAdmin(
            self.settings, self.statistics, info, lambda at_any_hour: self.store.clean_soon(at_any_hour=at_any_hour),
            copies=lambda: encode_master(self.store.marks.appended.value),
        )  # fmt: skip
        admins = (topics, groups, offsets, clients, broker)
        return {kind: handler for admin in admins for kind, handler in admin.handlers().items()}

    def ask(self, request: Request) -> Response:
        """The answer to a request, errors too."""
        return asyncio.run(self.answer(request))

    async def answer(self, request: Request) -> Response:
        try:
            answer = self.service.handle(encode_request(request, 1), self.admin_peer)
            found = await answer if isinstance(answer, Awaitable) else answer
        except Exception as error:  # noqa: BLE001  what an awaited handler raises is translated by the connection
            return Response(code=getattr(error, "code", 1), reason=str(error))
        assert found is not None
        return found

    def told(self, request: Request) -> Any:
        """The body of an answer that says yes, as a reader of fastjson sees it."""
        answer = self.ask(request)
        assert answer.code == 0, answer.reason
        assert isinstance(answer.body, bytes)
        return fastjson.loads(answer.body)

    # --- a broker that has been used ---------------------------------------------------------------------------------

    def make_topic(self, name: str = "orders", queues: int = 2) -> TopicConfig:
        return self.topics.make(TopicConfig(name, queues, queues))

    def make_group(self, name: str = "shop") -> GroupConfig:
        return self.groups.make(GroupConfig(name))

    def send(self, count: int = 1, topic: str = "orders", queue: int = 0, tag: str = "A") -> list[AppendedAt]:
        """Messages, each stored a second after the one before."""
        receipts = []
        for number in range(count):
            draft = Draft(topic.encode(), queue, f"{number}".encode(), encode_properties({"TAGS": tag}))
            receipts += self.store.append([draft])
            self.time.advance(1)
        self.store.dispatch()
        return receipts

    def consumer(self, client_id: str = "c1", group: str = "shop", topic: str = "orders", tags: str = "*") -> FakePeer:
        peer = FakePeer(f"10.0.0.1:{1000 + len(client_id)}")
        seen = ConsumerSeen(
            group, "CONSUME_PASSIVELY", "CLUSTERING", "CONSUME_FROM_FIRST_OFFSET",
            {topic: build(topic, tags, "TAG", 7)},
        )  # fmt: skip
        self.consumers.seen(seen, Member(peer, client_id, "JAVA", 513, self.clock.now_ms()), self.clock.now_ms())
        return peer


def pairs(form: Any) -> dict[Any, Any]:
    """A map with queues for keys, by queue number."""
    assert isinstance(form, fastjson.ObjectKeyed) or form == {}
    return {} if form == {} else {key["queueId"]: value for key, value in form.pairs}
