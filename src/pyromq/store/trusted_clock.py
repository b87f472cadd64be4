"""Decides whether the wall clock may be used to expire data.

A wall clock can be set hours ahead by a mistake, a dead battery or a bad time server, and back again seconds later:
retention that believed it would remove everything at once. The uptime of the machine cannot be set, so the two are
compared: a wall clock that has moved further than the uptime has jumped, and is not believed until it has gone on
without another jump for `confirm_ms`. Jumps backwards are believed at once: an earlier time expires nothing.

The last believed reading is kept in the store (`trustedclock`), so that a restart does not forget a jump. After a
reboot the uptime begins again: then the wall clock may be `TOLERANCE_MS` ahead of the last believed time, and a longer
downtime has to be confirmed like a jump. In a store without that file the newest record stands in for it.
"""

from __future__ import annotations

import contextlib
import json
import logging
from dataclasses import dataclass, replace
from pathlib import Path

from pyromq.clock import Clock, SystemClock, boot_id, uptime
from pyromq.files.disk import Disk

log = logging.getLogger("pyromq.store")

#: The wall clock may be this much ahead of the expected time: steps of a time service, a quick reboot.
TOLERANCE_MS = 600_000
#: And by this share of the elapsed time: clocks of cheap machines drift, time services slew at most 0.05 %.
DRIFT = 0.01
#: The share counts for at most this long. After a year of uptime it would otherwise excuse a jump of 88 hours.
ANCHOR_MS = 86_400_000
#: Save the believed time this often, and repeat the warning this often.
SAVE_MS = 60_000
WARN_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class Reading:
    """The clocks at one moment. `uptime_ms` counts suspended time; `boot` names this run of the machine."""

    wall_ms: int
    uptime_ms: int
    boot: str

    def elapsed_ms(self, since: Reading) -> int | None:
        """Return the time since an earlier reading; `None` if the machine was started again since."""
        same = self.boot == since.boot and self.uptime_ms >= since.uptime_ms
        return self.uptime_ms - since.uptime_ms if same else None


@dataclass(frozen=True, slots=True)
class ClockState:
    """The decisions so far. `suspect` is the first reading after a jump."""

    anchor: Reading | None = None
    #: The last wall time that was believed.
    seen_ms: int = 0
    suspect: Reading | None = None
    #: The lead of the wall clock over the trusted time; 0 while it is trusted.
    ahead_ms: int = 0

    @property
    def is_trusted(self) -> bool:
        return self.suspect is None


def judge(state: ClockState, now: Reading, *, newest_store_ms: int, confirm_ms: int) -> ClockState:
    """Return the next state. `newest_store_ms`: store time of the newest record at the start; 0 if there is none."""
    ahead = _ahead_ms(state, now, newest_store_ms)
    if ahead is None:
        elapsed = now.elapsed_ms(state.anchor) if state.anchor is not None else None
        keeps_anchor = elapsed is not None and elapsed < ANCHOR_MS
        behind = state.anchor is not None and now.wall_ms < state.seen_ms - TOLERANCE_MS
        anchor = state.anchor if keeps_anchor and not behind else now
        return ClockState(anchor, now.wall_ms)
    if state.suspect is None or _jumped_again(state.suspect, now):
        suspect = now
    else:
        suspect = state.suspect
    waited = now.elapsed_ms(suspect)
    if waited is not None and waited >= confirm_ms:
        return ClockState(now, now.wall_ms)
    return replace(state, suspect=suspect, ahead_ms=ahead)


def _ahead_ms(state: ClockState, now: Reading, newest_store_ms: int) -> int | None:
    """Return how far the wall clock is ahead of the expected time; `None` if that is believable."""
    if state.anchor is None:
        if not newest_store_ms:
            return None
        ahead, allowed = now.wall_ms - newest_store_ms, TOLERANCE_MS
    elif (elapsed := now.elapsed_ms(state.anchor)) is None:
        ahead, allowed = now.wall_ms - state.seen_ms, TOLERANCE_MS
    else:
        ahead = now.wall_ms - state.anchor.wall_ms - elapsed
        allowed = _allowed_ms(elapsed)
    return ahead if ahead > allowed else None


def _jumped_again(suspect: Reading, now: Reading) -> bool:
    elapsed = now.elapsed_ms(suspect)
    if elapsed is None:
        return True
    return abs(now.wall_ms - suspect.wall_ms - elapsed) > _allowed_ms(elapsed)


def _allowed_ms(elapsed_ms: int) -> int:
    """Return how far the wall clock may be from the expected time after this long."""
    return TOLERANCE_MS + int(min(elapsed_ms, ANCHOR_MS) * DRIFT)


class TrustedClock:
    """Reads the clocks, and keeps the state in the store."""

    def __init__(self, disk: Disk, path: Path, clock: Clock) -> None:
        self._disk = disk
        self._path = path
        self._clock = clock
        self._boot = boot_id()
        self._newest_store_ms = 0
        self._warned_at_ms: int | None = None
        self._saved = ClockState()
        self.state = ClockState()

    def start(self, newest_store_ms: int) -> None:
        """Load the state, with the store time of the newest record that the start found."""
        self._newest_store_ms = newest_store_ms
        self.state = self._saved = _load(self._disk, self._path)

    def look(self, confirm_hours: float) -> bool:
        """Read the clocks; True if the wall clock may be believed."""
        now = self._read()
        before = self.state
        confirm_ms = int(confirm_hours * 3_600_000)
        self.state = judge(before, now, newest_store_ms=self._newest_store_ms, confirm_ms=confirm_ms)
        if self.state.is_trusted:
            if self._warned_at_ms is not None:
                log.warning("the clock is believed again: expired messages are removed")
                self._warned_at_ms = None
        elif self._warned_at_ms is None or now.uptime_ms - self._warned_at_ms >= WARN_MS:
            self._warned_at_ms = now.uptime_ms
            log.warning("%s", self.why_not(confirm_hours))
        return self.state.is_trusted

    def why_not(self, confirm_hours: float) -> str:
        """Return a sentence on why nothing expires; empty if the clock is believed."""
        if self.state.is_trusted:
            return ""
        return (
            f"the clock is {self.state.ahead_ms / 3_600_000:.1f} hours ahead of the time that has passed: expired "
            f"messages stay until it is set right, or has gone on for {confirm_hours:g} hours "
            "(retention.clock_confirm_hours)"
        )

    def save_if_due(self) -> None:
        """Make the state durable if it changed enough. A full disk keeps the older state, which is stricter."""
        state, saved = self.state, self._saved
        is_due = (state.anchor, state.suspect) != (saved.anchor, saved.suspect)
        if is_due or abs(state.seen_ms - saved.seen_ms) >= SAVE_MS:
            with contextlib.suppress(OSError):
                self._disk.replace_bytes(self._path, _encode(state))
                self._saved = state

    def _read(self) -> Reading:
        seconds = uptime() if isinstance(self._clock, SystemClock) else self._clock.monotonic()
        return Reading(self._clock.now_ms(), int(seconds * 1000), self._boot)


def _encode(state: ClockState) -> bytes:
    def fields(reading: Reading | None) -> list[object] | None:
        return None if reading is None else [reading.wall_ms, reading.uptime_ms, reading.boot]

    facts = {
        "anchor": fields(state.anchor),
        "seenMs": state.seen_ms,
        "suspect": fields(state.suspect),
        "aheadMs": state.ahead_ms,
    }
    return json.dumps(facts).encode() + b"\n"


def _load(disk: Disk, path: Path) -> ClockState:
    """Return the saved state; an empty one if there is none, or it cannot be read."""
    try:
        facts = json.loads(disk.read_bytes(path)) if disk.exists(path) else {}
        anchor, suspect = (_reading(facts.get(name)) for name in ("anchor", "suspect"))
        return ClockState(anchor, int(facts.get("seenMs", 0)), suspect, int(facts.get("aheadMs", 0)))
    except (OSError, ValueError, TypeError, AttributeError):
        return ClockState()


def _reading(fields: object) -> Reading | None:
    if fields is None:
        return None
    if not isinstance(fields, list):
        raise TypeError(fields)
    wall_ms, uptime_ms, boot = fields
    return Reading(int(wall_ms), int(uptime_ms), str(boot))
