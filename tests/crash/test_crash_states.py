"""After every power cut the store is whole: ten thousand crash states, and planted bugs that must be found.

A failure prints its seed and story; `Lab(seed, setting).run(STATES_PER_LIFE)` plays it again.
`PYROMQ_CRASH_STATES=1000000` makes a soak of each setting; `PYROMQ_CRASH_SEED` starts it elsewhere.
"""

from __future__ import annotations
import __future__

import inspect
import os
import textwrap
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest

from crash.crash_lab import Lab, Setting, Violation, read_everything, wanted_states
from pyromq.model.message import Draft
from pyromq.store import cleaner
from pyromq.store.cleaner import Cleaner
from pyromq.store.durability.flusher import Flusher
from pyromq.store.durability.recover_points import RecoverPoints
from pyromq.store.log.commit_log import CommitLog
from pyromq.store.message_store import MessageStore
from pyromq.store.recovery import log_recovery
from pyromq.store.recovery.opening import Opening
from pyromq.store.recovery.start import Start

STATES_PER_LIFE = 100
FIRST_SEED = int(os.environ.get("PYROMQ_CRASH_SEED", "0"))


def check_states(setting: Setting, states: int, first_seed: int = FIRST_SEED) -> int:
    checked, seed = 0, first_seed
    while checked < states:
        checked += Lab(seed, setting).run(min(STATES_PER_LIFE, states - checked))
        seed += 1
    return checked


@pytest.mark.parametrize(
    ("setting", "states"),
    [
        pytest.param(Setting(), 4500, id="plain"),
        pytest.param(Setting(even=True), 1000, id="records of one size"),
        pytest.param(Setting(transient=True), 2500, id="transient pool"),
        pytest.param(Setting(record_crc=False), 1500, id="without record CRC"),
        pytest.param(Setting(sync=True), 1500, id="flush before each answer"),
        pytest.param(Setting(sync=True, reads_before_sync=True), 1000, id="a group reads what is not flushed yet"),
    ],
)
def test_no_crash_breaks_a_promise(setting: Setting, states: int) -> None:
    wanted = wanted_states(states)
    assert check_states(setting, wanted) >= wanted


def test_a_seed_repeats_its_story() -> None:
    stories = []
    for _ in range(2):
        lab = Lab(7)
        lab.run(60)
        stories.append(lab.story)
    assert stories[0] == stories[1]


def test_what_a_killed_process_costs_with_the_transient_pool() -> None:
    """The pool's price: gathered, uncommitted messages die with the process. Nothing committed does."""
    lab = Lab(1, Setting(transient=True))
    lab.store.open()
    lab.store.append([Draft(b"orders", 0, b"committed")])
    lab.store.commit_gathered()
    lab.store.append([Draft(b"orders", 0, b"gathered")])
    after = lab.open_on(lab.disk.kill())
    (message,) = read_everything(after)[b"orders", 0]
    assert b"committed" in message


def test_a_killed_process_costs_nothing_without_it() -> None:
    lab = Lab(1)
    lab.store.open()
    lab.store.append([Draft(b"orders", 0, b"one"), Draft(b"orders", 0, b"two")])
    assert len(read_everything(lab.open_on(lab.disk.kill()))[b"orders", 0]) == 2


# --- planted bugs: a test that cannot fail proves nothing ------------------------------------------------------------


PLAIN = Setting()


@dataclass(frozen=True)
class Bug:
    """One line of the store, written carelessly."""

    name: str
    owner: type | ModuleType
    function: str
    right: str
    wrong: str
    setting: Setting = PLAIN
    #: Lives before this one did not show it when it was planted: there is no need to play them again each time.
    seed: int = FIRST_SEED

    def plant(self, patch: pytest.MonkeyPatch) -> None:
        original = getattr(self.owner, self.function)
        source = textwrap.dedent(inspect.getsource(original))
        assert self.right in source, f"{self.function} has changed: this bug must be planted anew"
        scope: dict[str, Any] = {}
        flags = __future__.annotations.compiler_flag
        exec(compile(source.replace(self.right, self.wrong), self.name, "exec", flags), original.__globals__, scope)
        patch.setattr(self.owner, self.function, scope[self.function])


BUGS = [
    Bug("synced moves although nothing was synced", Flusher, "_sync", "segment.file.sync()", "pass"),
    Bug("only the last segment is synced", Flusher, "_sync", "in segments", "in segments[-1:]"),
    Bug(
        "a cut leaves the stale tail",
        log_recovery,
        "cut_log",
        "zero(segment.buffer, at, behind)",
        "pass",
        Setting(even=True),
    ),
    Bug("a cut is not synced", log_recovery, "cut_log", "segment.file.sync()", "pass"),
    Bug(
        "a removed segment keeps its records",
        log_recovery,
        "cut_log",
        "if segment.base > end:",
        "if segment.base >= end:",
        seed=79,
    ),
    Bug("what a kill left is not synced", Start, "_cut_log", "segment.file.sync()", "pass"),
    Bug("queues are not synced for a recover point", RecoverPoints, "write", "queue.sync(offset)", "pass"),
    Bug("the recover point claims too much", RecoverPoints, "plan", "synced=synced", "synced=self._log.end"),
    Bug("queues are claimed too far", RecoverPoints, "plan", "min(dispatched, synced)", "synced"),
    Bug("retention forgets to note the start", Cleaner, "clean", "self._points.carry_out(plan)", "pass"),
    Bug("retention removes what is young", cleaner, "decide", "max_age_hours * HOUR_MS", "max_age_hours"),
    Bug("retention loses the next offset", RecoverPoints, "plan_log_start", "point=point)", "point=point, queues=[])"),
    Bug("a scan believes any checksum", log_recovery, "scan_segment", "segment.base, True", "segment.base, False"),
    Bug(
        "any index is kept",
        Start,
        "_keep_index",
        "index.keep_synced(point.index_to, point.index_file)",
        "True",
        seed=59,
    ),
    Bug(
        "a killed pool promises too much",
        MessageStore,
        "_grew",
        "self._transient is None",
        "True",
        Setting(transient=True),
    ),
    Bug("a segment is left without its blank", CommitLog, "_roll", "MAGIC_BLANK", "MAGIC_V1"),
    Bug("the abort mark is set too late", Opening, "_recover", "self._abort.set()", "pass"),
]
#: Each planted bug must be found within this many states.
PATIENCE = 20_000


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_found(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    bug.plant(monkeypatch)
    with pytest.raises(Violation):
        check_states(bug.setting, PATIENCE, bug.seed)
