"""The version of a table, by which brokers and name servers tell the newer of two copies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pyromq.model.json_form import INT64, Json, in_json


@dataclass(frozen=True, slots=True)
class DataVersion:
    """RocketMQ's DataVersion: a counter of changes, the time of the last, and the master's epoch."""

    timestamp_ms: int = field(default=0, metadata=in_json("timestamp", INT64))
    counter: int = field(default=0, metadata=in_json("counter", INT64))
    #: Grows when another broker becomes master; 0 without elections.
    state_version: int = field(default=0, metadata=in_json("stateVersion", INT64))
    #: Fields that only a newer RocketMQ knows.
    unknown: Mapping[str, Json] = field(default_factory=dict)

    def next(self, now_ms: int) -> DataVersion:
        """The version after one more change."""
        return replace(self, timestamp_ms=now_ms, counter=self.counter + 1)
