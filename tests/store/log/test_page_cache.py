"""Resident pages: read a stretch at a time, cached for a short time, never guessed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

from pyromq.clock import ManualClock
from pyromq.store.log.page_cache import BELIEVED_SECONDS, MAX_STRETCHES, STRETCH_BYTES, Warmth
from pyromq.store.log.segmented_file import SegmentedFile

SEGMENT = 4 * STRETCH_BYTES


@dataclass
class FakeFile:
    """One segment of the log, of which some stretches are in memory."""

    warm: set[int] = field(default_factory=set)
    asked: list[int] = field(default_factory=list)

    def is_resident(self, start: int, end: int) -> bool:
        assert end - start <= STRETCH_BYTES
        self.asked.append(start // STRETCH_BYTES)
        return start // STRETCH_BYTES in self.warm


@dataclass
class FakeLog:
    file: FakeFile
    base: int = 0
    size: int = SEGMENT

    def find(self, position: int) -> FakeLog | None:
        return self if 0 <= position < SEGMENT else None


def scene(*warm: int) -> tuple[Warmth, FakeFile, ManualClock]:
    clock, file = ManualClock(), FakeFile(set(warm))
    return Warmth(cast(SegmentedFile, FakeLog(file)), clock), file, clock


def test_a_stretch_that_is_in_memory_is_given_with_the_next_one() -> None:
    warmth, _, _ = scene(0, 1)
    assert warmth.stretch(100) == (0, 2 * STRETCH_BYTES)
    assert warmth.stretch(STRETCH_BYTES + 1) == (STRETCH_BYTES, 2 * STRETCH_BYTES)
    assert warmth.stretch(2 * STRETCH_BYTES) is None


def test_an_answer_is_believed_for_a_moment_and_asked_for_again_after_it() -> None:
    warmth, file, clock = scene(0)
    for _ in range(3):
        warmth.stretch(100)
    assert file.asked.count(0) == 1
    clock.advance(BELIEVED_SECONDS + 0.001)
    file.warm.clear()
    assert warmth.stretch(100) is None


def test_cold_is_asked_for_each_time() -> None:
    warmth, file, _ = scene()
    assert warmth.stretch(5) is None
    file.warm.add(0)
    assert warmth.stretch(5) == (0, STRETCH_BYTES)


def test_positions_outside_of_the_log_are_not_in_memory() -> None:
    warmth, _, _ = scene(0, 1, 2, 3)
    assert warmth.stretch(SEGMENT + 1) is None
    assert warmth.stretch(3 * STRETCH_BYTES) == (3 * STRETCH_BYTES, SEGMENT)


def test_what_is_remembered_has_a_limit() -> None:
    warmth, _, _ = scene(0)
    warmth._warm_until.update({-number: 0.0 for number in range(1, MAX_STRETCHES + 1)})
    assert warmth.stretch(0) is not None
    assert len(warmth._warm_until) == 1
