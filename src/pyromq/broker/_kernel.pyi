from collections.abc import Mapping, Sequence

from pyromq.net._kernel import Shortcut
from pyromq.net.connection import Connection
from pyromq.store._kernel import LogRun
from pyromq.store.consume_queue import ConsumeQueue

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
    def hold(self, position: int, connection: Connection, answers: bytes, correlation_ids: list[int]) -> None: ...
    def release(self, position: int) -> None: ...
    def take_back(self, position: int) -> list[tuple[Connection, bytes]]: ...
    def give_up(self) -> list[tuple[Connection, list[int]]]: ...

class SendLoop(Shortcut):
    answers: bytes
    correlation_ids: list[int]
    held: HeldAnswers
    def __init__(
        self,
        run: LogRun,
        topics: Mapping[bytes, FastTopic],
        store_host: bytes,
        stamp: bytes,
        plain_answer: Sequence[bytes],
        keyed_answer: Sequence[bytes],
        max_frame: int,
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
    def answer(
        self,
        entries: memoryview,
        first_offset: int,
        offset: int,
        end: int,
        first_base: int,
        segment_bytes: int,
        buffers: list[memoryview | None],
        readable: int,
        hot_from: int,
        min_offset: int,
        max_offset: int,
        correlation_id: int,
    ) -> bytes | None: ...
