"""What is measured, and what is wanted of it: only values, nothing runs here."""

from __future__ import annotations

from dataclasses import dataclass

#: The systems, as they are called in every table and file.
OURS, THEIRS = "PyroMQ", "RocketMQ"

QUEUES = 8
PULL_BATCH = 32
#: Holds what was sent to warm the brokers up, as many messages in each: what pulls read.
WARM_TOPIC = "bench_warm"
SEND_TOPIC = "bench"

#: Wanted of every load: our share of RocketMQ's processor time for a message, and of its slowest answers.
CPU_SHARE_MAX = 0.25
TAIL_SHARE_MAX = 1.0
#: Wanted once: seconds until the first message is stored, and anonymous memory after the load.
START_SECONDS_MAX = 1.0
ANONYMOUS_MIB_MAX = 150
#: Without a compiler.
READABLE_SPEED_MIN = 1.0


@dataclass(frozen=True, slots=True)
class Load:
    kind: str  #: "send" or "pull", a command of the generator
    flush: str  #: "async" or "sync"
    connections: int
    window: int  #: requests in flight on each connection
    size: int  #: bytes of a body
    speed_min: float  #: the wanted ratio to RocketMQ
    rate_min: float | None = None  #: wanted of us on any machine, messages a second

    @property
    def name(self) -> str:
        size = f"{self.size >> 10} KiB" if self.size >= 1024 else f"{self.size} B"
        if self.kind == "pull":
            return f"pull {PULL_BATCH} × {size} {self.connections}×{self.window}"
        return f"send {size} {self.connections}×{self.window} {self.flush}"

    @property
    def topic(self) -> str:
        return WARM_TOPIC if self.kind == "pull" else SEND_TOPIC


LOADS = (
    # First: far behind the end of its log RocketMQ takes messages for cold, and hands out fewer at a time.
    Load("pull", "async", 8, 1, 1024, speed_min=1.5),
    Load("send", "async", 8, 32, 1024, speed_min=3.0, rate_min=100_000),
    Load("send", "async", 64, 1, 1024, speed_min=2.0),
    Load("send", "async", 1, 1, 1024, speed_min=1.5),
    Load("send", "async", 8, 32, 128, speed_min=3.0),
    Load("send", "sync", 8, 32, 1024, speed_min=2.0),
    Load("send", "sync", 64, 1, 1024, speed_min=2.0),
    Load("send", "sync", 1, 1, 1024, speed_min=2.0),
)

#: What `--only` takes: part of the loads, or a start without any.
SELECTIONS = ("all", "sends", "pulls", "async", "sync", "start")


def selected(only: str) -> list[Load]:
    """The loads of a selection; none for "start"."""
    return [load for load in LOADS if only in ("all", f"{load.kind}s", load.flush)]


def flushes(only: str) -> list[str]:
    """The settings that servers are started with; a selection without loads still starts them once."""
    return list(dict.fromkeys(load.flush for load in selected(only))) or ["async"]
