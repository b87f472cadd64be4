"""How much one server takes on before it says no. Every limit has its reason beside it."""

from __future__ import annotations

from dataclasses import dataclass

from pyromq.config.checks import KIB, MIB, require, require_at_least


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsConfig:
    """What one server takes on before it says no."""

    #: Connections at once; the next one is closed at once. Twice what a large installation's clients open, and below
    #: the file descriptors that a usual system gives.
    max_connections: int = 20_000
    #: Connections at once from one address. 0: no such limit, as clients may share one address.
    max_connections_per_host: int = 0
    #: A connection that sent nothing for this long is closed. Clients send a heartbeat every 30 s.
    idle_close_ms: int = 120_000
    #: Longest request, header and body: RocketMQ's own limit.
    max_frame_bytes: int = 16 * MIB
    #: Longest header of a request. Real ones have a few KiB; the properties of a message are at most 32 KiB.
    max_header_bytes: int = 256 * KIB
    #: Fields in the header of one request. The widest known request has under forty.
    max_header_fields: int = 512
    #: Bytes that one connection may have asked for and not been answered before reading from it pauses.
    max_in_flight_bytes_per_connection: int = 64 * MIB
    #: Answers waiting for a peer that reads slowly, on one connection, before nothing more is read from it.
    max_unsent_bytes_per_connection: int = 16 * MIB
    #: The same over all connections: what slow readers may cost in memory, together. Requests of theirs that are not
    #: looked at yet count for `max_partial_bytes`.
    max_unsent_bytes: int = 256 * MIB
    #: How long a peer may take none of its waiting answers before it is cut off.
    stalled_close_ms: int = 60_000
    #: Bytes of requests that have not arrived whole or cannot be looked at yet, over all connections: what peers that
    #: send the half of something may cost in memory, together. Above it, whoever has waited longest is cut off.
    max_partial_bytes: int = 256 * MIB
    #: How long a request may take from its first byte to its last. The largest one takes 13 s at 10 Mbit/s.
    partial_close_ms: int = 60_000
    #: How long a stopping server waits for what it has started.
    stop_grace_ms: int = 10_000

    def __post_init__(self) -> None:
        require_at_least(1, "limits.max_connections", self.max_connections)
        require_at_least(0, "limits.max_connections_per_host", self.max_connections_per_host)
        require_at_least(1000, "limits.idle_close_ms", self.idle_close_ms)
        require(
            4 * KIB <= self.max_frame_bytes <= 1024 * MIB,
            "limits.max_frame_bytes",
            self.max_frame_bytes,
            "4 KiB to 1 GiB",
        )
        require(
            KIB <= self.max_header_bytes <= min(self.max_frame_bytes, 16 * MIB - 1),
            "limits.max_header_bytes",
            self.max_header_bytes,
            "1 KiB to the frame's limit, and below 16 MiB (its length has 24 bits)",
        )
        require_at_least(64, "limits.max_header_fields", self.max_header_fields)
        require(
            self.max_in_flight_bytes_per_connection >= self.max_frame_bytes,
            "limits.max_in_flight_bytes_per_connection",
            self.max_in_flight_bytes_per_connection,
            f"it must hold one frame (limits.max_frame_bytes = {self.max_frame_bytes})",
        )
        require_at_least(64 * KIB, "limits.max_unsent_bytes_per_connection", self.max_unsent_bytes_per_connection)
        require(
            self.max_unsent_bytes >= self.max_unsent_bytes_per_connection,
            "limits.max_unsent_bytes",
            self.max_unsent_bytes,
            f"it must be at least limits.max_unsent_bytes_per_connection ({self.max_unsent_bytes_per_connection})",
        )
        require_at_least(100, "limits.stalled_close_ms", self.stalled_close_ms)
        require(
            self.max_partial_bytes >= self.max_frame_bytes,
            "limits.max_partial_bytes",
            self.max_partial_bytes,
            f"it must hold one frame (limits.max_frame_bytes = {self.max_frame_bytes})",
        )
        require_at_least(100, "limits.partial_close_ms", self.partial_close_ms)
        require_at_least(0, "limits.stop_grace_ms", self.stop_grace_ms)
