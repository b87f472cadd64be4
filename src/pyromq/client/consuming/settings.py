"""The settings of consumers; checked when a consumer is created."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pyromq.client.group.starting_point import ConsumeFrom
from pyromq.client.group.strategies import Strategy, average
from pyromq.client.received import ReceivedMessage
from pyromq.errors import ConfigError
from pyromq.model.names import check_group

#: A delay level, or a function that chooses one for a message that failed. 0 leaves it to the broker.
RetryDelay = int | Callable[[ReceivedMessage], int]

#: Deliveries of a message, unless it is set otherwise.
ATTEMPTS = 16
NO_END = (1 << 31) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    group: str
    strategy: Strategy = average
    consume_from: ConsumeFrom | float = ConsumeFrom.LAST
    #: Handlers at work at the same time. When order matters, one for each queue instead.
    concurrency: int = 20
    ordered: bool = False
    broadcast: bool = False
    #: Deliveries in all; a message that failed the last one is a dead letter. None: 16; where order matters there is no
    #: end, as with RocketMQ's own clients, for what follows a message must not overtake it.
    max_attempts: int | None = None
    retry_delay: RetryDelay = 0
    #: The pause before a failed message is tried again in ordered mode, and in broadcasting.
    pause_s: float = 1.0
    #: Of one fetch. A broker gives as many as it allows: RocketMQ's 32, unless it is set otherwise.
    fetch_messages: int = 1024
    fetch_bytes: int = 1 << 20
    #: The broker holds a fetch without messages for this long.
    hold_s: float = 15.0
    #: Fetched and not handled, of all queues together; every queue may fetch once in any case.
    max_buffered_messages: int = 20_000
    max_buffered_bytes: int = 64 << 20
    commit_every_s: float = 5.0
    #: Running handlers may take this long at the stop.
    stop_grace_s: float = 10.0
    #: The directory of a broadcasting consumer's offsets.
    offsets_dir: Path | None = None

    def __post_init__(self) -> None:
        if not self.group.strip():
            raise ConfigError('no group is given: consumers that share their work have the same name, group="mailer"')
        check_group(self.group)
        if not callable(self.strategy):
            raise ConfigError(f"strategy is a function, as in pyromq.strategies, not {self.strategy!r}", "strategy")
        if self.max_attempts is not None and self.max_attempts < 1:
            raise ConfigError("max_attempts must be 1 at least", "max_attempts")
        for name in ("concurrency", "fetch_messages", "fetch_bytes", "max_buffered_messages"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be 1 at least", name)
        for name in ("hold_s", "commit_every_s", "stop_grace_s", "pause_s", "max_buffered_bytes"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be above 0", name)

    @property
    def last_attempt(self) -> int:
        """The number of the delivery after which there is no other."""
        if self.max_attempts is not None:
            return self.max_attempts
        return NO_END if self.ordered else ATTEMPTS

    @property
    def needs_locks(self) -> bool:
        """Order is kept by one member at a time; who gets every message has no others to keep out."""
        return self.ordered and not self.broadcast

    @property
    def model(self) -> str:
        """RocketMQ's word for it."""
        return "BROADCASTING" if self.broadcast else "CLUSTERING"
