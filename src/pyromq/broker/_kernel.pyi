from collections.abc import Mapping, Sequence

from pyromq.store._kernel import LogRun

class FastTopic:
    name: bytes
    queues: int
    flags: int
    messages: int
    body_bytes: int
    def __init__(self, name: bytes, queues: int, flags: int) -> None: ...

class SendLoop:
    answers: bytes
    correlation_ids: list[int]
    def __init__(
        self,
        run: LogRun,
        topics: Mapping[bytes, FastTopic],
        store_host: bytes,
        cluster_property: bytes,
        plain_answer: Sequence[bytes],
        keyed_answer: Sequence[bytes],
        max_frame: int,
        keep_ids: bool,
    ) -> None: ...
    def is_send(self, data: memoryview, at: int) -> bool: ...
    def take(self, data: memoryview, at: int, born_host: bytes) -> int: ...
