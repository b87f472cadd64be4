"""One moment of the story as plain values, for a screen or a log."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class LaneView:
    """One way to sign up, since its act began. Times in seconds."""

    name: str
    done: int = 0
    rate: float = 0.0
    p50_s: float = 0.0
    p99_s: float = 0.0
    waiting: int = 0
    failed: int = 0
    gave_up: int = 0
    #: Waiting times of visitors, a figure for each moment of the act; 0 before the first visit ended.
    history: tuple[float, ...] = ()
    #: Medians of its steps.
    steps: dict[str, float] = field(default_factory=dict)
    #: False when it shows an act that is over.
    is_live: bool = True


@dataclass(frozen=True, slots=True)
class ServiceView:
    """One service behind the queue."""

    name: str
    is_up: bool
    backlog: int
    peak: int
    handled: int
    rate: float
    history: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Frame:
    act: int
    title: str
    #: One or two plain sentences.
    told: str
    #: The current activity.
    now: str
    elapsed_s: float
    #: Addresses of the name servers.
    name_servers: str = ""
    in_line: LaneView | None = None
    queued: LaneView | None = None
    services: tuple[ServiceView, ...] = ()
    #: Visitors a second, a figure for each moment of the act; empty where people take turns.
    traffic: tuple[float, ...] = ()
    acknowledged: int = 0
    #: Findings of the previous acts, one line each.
    findings: tuple[str, ...] = ()
