"""Network limits of a server. Each limit has its reason next to it."""

from __future__ import annotations

from dataclasses import dataclass

from pyromq.config.checks import KIB, MIB, fixed, require, require_at_least


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsConfig:
    """Network limits of a server."""

    #: Most connections; further ones are closed at once. Twice the connections of a large installation, and below the
    #: usual limit of file descriptors.
    max_connections: int = 20_000
    #: Most connections from one address. 0: no limit, because clients may share an address.
    max_connections_per_host: int = 0
    #: Close a connection after this long without a request. Clients send a heartbeat every 30 s.
    idle_close_ms: int = 120_000
    #: Largest request, header and body: RocketMQ's own limit.
    max_frame_bytes: int = 16 * MIB
    #: Largest header of a request. Typical headers have a few KiB; message properties have at most 32 KiB.
    max_header_bytes: int = fixed(256 * KIB)
    #: Most header fields of a request. The widest known request has fewer than 40.
    max_header_fields: int = fixed(512)
    #: Stop reading from a connection above this many bytes of unanswered requests.
    max_in_flight_bytes_per_connection: int = fixed(64 * MIB)
    #: Stop reading from a connection above this many unsent answer bytes.
    max_unsent_bytes_per_connection: int = 16 * MIB
    #: Most unsent answer bytes of all connections: the memory that slow peers may cost. Above a quarter of it pulls get
    #: small answers, above three quarters the connection with the most unsent bytes is closed. Unparsed requests count
    #: towards `max_partial_bytes`.
    max_unsent_bytes: int = 256 * MIB
    #: Close a connection whose peer reads none of its unsent answers for this long.
    stalled_close_ms: int = fixed(60_000)
    #: Most bytes of incomplete and unparsed requests of all connections: the memory that half-sent requests may cost.
    #: Above it, the connection that has waited longest is closed.
    max_partial_bytes: int = 256 * MIB
    #: Close a connection whose request takes longer than this to arrive. The largest takes 13 s at 10 Mbit/s.
    partial_close_ms: int = fixed(60_000)
    #: Time that a stopping server gives to requests in progress.
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
