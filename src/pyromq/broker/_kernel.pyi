from collections.abc import Callable, Mapping, Sequence

from pyromq.broker.state.clients import Consumers
from pyromq.net._kernel import Inlet, Shortcut
from pyromq.net.connection import Connection
from pyromq.store._kernel import BatchWriter
from pyromq.store.queues.consume_queue import ConsumeQueue

class FastTopic:
    name: bytes
    queues: int
    flags: int
    messages: int
    body_bytes: int
    def __init__(self, name: bytes, queues: int, flags: int) -> None: ...

class HeldAnswers:
    count: int
    last_position: int
    def hold(self, position: int, connection: Connection, answers: bytes, sends: int) -> None: ...
    def release(self, position: int) -> None: ...
    def take_back(self, position: int) -> list[tuple[Connection, bytes]]: ...

class SendLoop(Shortcut):
    answers: bytes
    answer_count: int
    def __init__(
        self,
        writer: BatchWriter,
        topics: Mapping[bytes, FastTopic],
        store_host: bytes,
        stamp: bytes,
        plain_answer: Sequence[bytes],
        keyed_answer: Sequence[bytes],
        max_frame: int,
        held: HeldAnswers,
    ) -> None: ...
    def is_send(self, data: memoryview, at: int) -> bool: ...
    def take(self, data: memoryview, at: int, born_host: bytes) -> int: ...

class PullPlan:
    queue: ConsumeQueue
    group: str
    topic: str
    queue_id: int
    commits: bool
    pulls: int
    messages: int
    bytes_out: int
    def __init__(
        self,
        queue: ConsumeQueue,
        group: str,
        topic: str,
        queue_id: int,
        commits: bool,
        tag_codes: frozenset[int] | None,
        max_messages: int,
        max_bytes: int,
        pieces: Sequence[bytes],
    ) -> None: ...
    def open_window(
        self,
        entries: memoryview,
        first_offset: int,
        offset: int,
        end: int,
        min_offset: int,
        first_base: int,
        segment_bytes: int,
        buffers: list[memoryview | None],
        readable: int,
        hot_from: int,
    ) -> None: ...
    def close_window(self) -> None: ...
    def answer(self, offset: int, correlation_id: int, inlet: Inlet | None = None) -> bytes | None: ...

class PullLoop(Shortcut):
    planned_at: int
    def __init__(
        self,
        plans: dict[bytes, PullPlan],
        consumers: Consumers,
        resets: dict[tuple[str, str, int], int],
        commit: Callable[[PullPlan, int, Connection], None],
    ) -> None: ...

class ShortcutsInTurn(Shortcut):
    sends: Shortcut | None
    def __init__(self, pulls: PullLoop | None) -> None: ...
