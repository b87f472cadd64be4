"""However often something is said, the log stays readable, and says what it left out."""

from __future__ import annotations

import logging

from pyromq.cli.servers.log_floods import LINES_PER_WINDOW, MAX_KINDS, WINDOW_SECONDS, NoFloods
from pyromq.clock import ManualClock


class Lines:
    """What a handler with the filter would write."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.filter = NoFloods(self.clock)
        self.written: list[str] = []

    def say(self, sentence: str, *values: object, level: int = logging.WARNING) -> None:
        record = logging.LogRecord("pyromq.broker", level, __file__, 1, sentence, values, None)
        if self.filter.filter(record):
            self.written.append(record.getMessage())


def test_a_flood_of_one_kind_is_cut_and_counted() -> None:
    lines = Lines()
    for number in range(LINES_PER_WINDOW + 70):
        lines.say("%d is refused", number)
    assert len(lines.written) == LINES_PER_WINDOW
    lines.say("something else: 100%")
    assert lines.written[-1] == "something else: 100%"
    lines.clock.advance(WINDOW_SECONDS)
    lines.say("%d is refused", 1)
    lines.say("%d is refused", 2)
    assert lines.written[-2:] == ["1 is refused (70 lines like this were left out before)", "2 is refused"]


def test_what_ends_the_program_is_always_said() -> None:
    lines = Lines()
    for _ in range(LINES_PER_WINDOW * 2):
        lines.say("the disk failed", level=logging.CRITICAL)
    assert len(lines.written) == LINES_PER_WINDOW * 2


def test_memory_is_bounded_whatever_is_said() -> None:
    lines = Lines()
    for number in range(MAX_KINDS * 2):
        lines.say(f"sentence {number}")
    assert len(lines.written) == MAX_KINDS * 2
    assert len(lines.filter._windows) <= MAX_KINDS
