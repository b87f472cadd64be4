"""What there is to see at one moment of the story: plain values, for whoever draws them."""

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
    #: How long visitors waited, a figure for each moment of the act; 0 before the first was done.
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
    #: What goes on right now.
    now: str
    elapsed_s: float
    #: Whom clients ask for the broker.
    name_servers: str = ""
    in_line: LaneView | None = None
    queued: LaneView | None = None
    services: tuple[ServiceView, ...] = ()
    #: Visitors a second, a figure for each moment of the act; empty where people take turns.
    traffic: tuple[float, ...] = ()
    acknowledged: int = 0
    #: What the acts before have shown, one line each.
    findings: tuple[str, ...] = ()
