from collections.abc import Mapping, Sequence

from pyromq.accel._append_batch import BatchWriter
from pyromq.accel._intake import Shortcut
from pyromq.net.connection import Connection

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
