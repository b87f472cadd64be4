from collections.abc import Callable, Sequence

from pyromq.accel._intake import Inlet, Shortcut
from pyromq.broker.state.clients import Consumers
from pyromq.net.connection import Connection
from pyromq.store.queues.consume_queue import ConsumeQueue

class PullPlan:
    queue: ConsumeQueue
    group: str
    topic: str
    queue_id: int
    commits: bool
    pulls: int
    messages: int
    bytes_out: int
    #: The last pull got no answer because its first message is larger than the room.
    is_too_large: bool
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
    def answer(
        self, offset: int, correlation_id: int, inlet: Inlet | None = None, room: int = ..., has_turn: bool = False
    ) -> bytes | None: ...

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
