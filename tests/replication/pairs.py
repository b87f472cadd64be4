"""Two stores and a real connection between them, and events to wait for."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from pyromq.auth.group_secret import GroupSecret
from pyromq.clock import SystemClock
from pyromq.config import FlushConfig, StoreConfig
from pyromq.model.message import Draft
from pyromq.replication.admission import Admission, Itself
from pyromq.replication.followers import Followers
from pyromq.replication.identity import Identity
from pyromq.replication.introduction import Introduction
from pyromq.replication.primary import Primary
from pyromq.replication.replica import Replica, ReplicaState
from pyromq.store.message_store import MessageStore
from pyromq.store.store_log import StoreLog

SEGMENT = 1 << 16
PATIENCE_SECONDS = 30
SECRET = GroupSecret(b"of the tests")
PRIMARY = Itself("cluster", "pair", "primary", "127.0.0.1:10911")
SLAVE = Identity("slave", 1, "127.0.0.1:10921", "127.0.0.1:10922", "first")


def admission(log: Any, **more: Any) -> Admission:
    """The rules of a primary that has the secret."""
    return Admission(log, **({"itself": lambda: PRIMARY, "secret": SECRET} | more))


def introduction(identity: Identity = SLAVE, **more: Any) -> Introduction:
    told: dict[str, Any] = {
        "cluster": PRIMARY.cluster, "name": PRIMARY.name, "identity": identity, "epochs": (),
        "primary": PRIMARY.member, "secret": SECRET, "expects_proof": True,
    }  # fmt: skip
    return Introduction(**(told | more))


INTRODUCED = introduction()


def config(root: Path, *, sync: bool = False, **more: Any) -> StoreConfig:
    settings: dict[str, Any] = {"segment_bytes": SEGMENT, "queue_file_entries": 1000, "prefault_bytes": 0} | more
    return StoreConfig(root=root, flush=FlushConfig(sync=sync), **settings)


def send(store: MessageStore, count: int, start: int = 0, size: int = 180) -> None:
    bodies = (b"%06d" % number * (size // 6) for number in range(start, start + count))
    store.append([Draft(b"orders", number % 4, body) for number, body in enumerate(bodies, start)])


def log_of(store: MessageStore) -> bytes:
    return b"".join(bytes(segment.buffer) for segment in store.log.files.segments)[: store.log.end - store.log.start]


class Changes:
    """Remembers the last report, and wakes the waiting test."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self.count = 0
        self._changed = asyncio.Event()

    def __call__(self, value: Any) -> None:
        self.value = value
        self.count += 1
        self._changed.set()

    async def until(self, holds: Callable[[Any], bool]) -> Any:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not holds(self.value):
                self._changed.clear()
                await self._changed.wait()
        return self.value


class Leading:
    """A primary, and what it knows of its replicas."""

    def __init__(self, store: MessageStore, log: StoreLog | None = None, **options: Any) -> None:
        self.followers = Changes(Followers())
        log = log or StoreLog(store)
        options.setdefault("admission", admission(log))
        self.primary = Primary(log, SystemClock(), self.followers, **options)
        self._store = store
        store.marks.written.listen(lambda _: self.primary.log_grew())

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.primary.port}"

    async def level(self) -> None:
        """Until a replica has everything, by its own word."""
        end = self._store.log.end
        await self.followers.until(lambda followers: followers.replicated(2, end) >= end)


@asynccontextmanager
async def leading(
    store: MessageStore, log: StoreLog | None = None, *, port: int = 0, **options: Any
) -> AsyncIterator[Leading]:
    one = Leading(store, log, **options)
    async with one.primary.serving("127.0.0.1", port):
        yield one


@asynccontextmanager
async def two_stores(root: Path, **options: Any) -> AsyncIterator[tuple[MessageStore, MessageStore, Leading]]:
    """One that leads, and one that may follow it. `options` are the primary's."""
    async with (
        MessageStore(config(root / "a")).running() as one,
        MessageStore(config(root / "b")).running() as other,
        leading(one, **options) as pair,
    ):
        yield one, other, pair


class Following:
    def __init__(self, store: MessageStore, told: Introduction | None, **options: Any) -> None:
        self.states = Changes(ReplicaState(None, False, 0, None))

        async def compare(address: str) -> Introduction | None:
            return told

        self.replica = Replica(StoreLog(store), SystemClock(), changed=self.states, compare=compare, **options)
        store.follow()
        store.marks.synced.listen(lambda _: self.replica.copy_became_safer())
        store.marks.written.listen(lambda _: self.replica.copy_became_safer())

    async def problem(self) -> ReplicaState:
        state: ReplicaState = await self.states.until(lambda state: state.problem is not None)
        return state


@asynccontextmanager
async def following(
    store: MessageStore, address: str | None, *, told: Introduction | None = INTRODUCED, **options: Any
) -> AsyncIterator[Following]:
    """`told`: the handshake; `None` for a follower that says nothing of itself, as Apache's."""
    one = Following(store, told, **options)
    one.replica.follow(address)
    task = asyncio.get_running_loop().create_task(one.replica.run())
    try:
        yield one
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
