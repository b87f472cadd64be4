"""The number of messages per pull, so that several pulls can be in flight. Pure.

A pull that is sent before the last answer must guess its first offset. Requesting exactly as many as a broker
returns makes the guess right: the answer has them all, and the next pull begins after them. How many that
is depends on their size and on a limit of the broker's that it does not tell: RocketMQ's gives 32, or 8 of old ones.
Both are learnt from the answers.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Of the first pull, when nothing is known: as many as our broker gives.
FIRST_COUNT = 1024
#: A pull is asked to be so full, so that one with larger messages in it is not cut short.
FILLING = 0.9
#: Request more once after this many full answers.
STEADY = 16
#: Short answers allow more pulls in flight, up to this many.
MOST_IN_FLIGHT = 16


@dataclass(slots=True)
class Pace:
    pull_bytes: int
    in_flight: int
    #: The mean size of messages; 0: nothing came yet.
    mean_bytes: float = 0.0
    #: The broker's limit per answer, by count.
    broker_gives: int = FIRST_COUNT
    _steady: int = 0

    @property
    def is_known(self) -> bool:
        return self.mean_bytes > 0

    @property
    def count(self) -> int:
        """Messages to ask for."""
        fitting = self.pull_bytes * FILLING / self.mean_bytes if self.is_known else FIRST_COUNT
        return max(1, min(int(fitting), self.broker_gives))

    @property
    def pulls(self) -> int:
        """Pulls under way at once: one until it is known how long answers are, more when they are short."""
        if not self.is_known:
            return 1
        return max(self.in_flight, min(int(self.in_flight * self.pull_bytes / self.expected_bytes), MOST_IN_FLIGHT))

    @property
    def expected_bytes(self) -> float:
        return max(self.count * self.mean_bytes, 1.0)

    def learn(self, asked: int, given: int, size: int) -> None:
        """Learn from an answer: messages requested, messages received, bytes."""
        if given <= 0:
            return
        mean = size / given
        self.mean_bytes = (self.mean_bytes * 3 + mean) / 4 if self.is_known else mean
        if given < asked:
            self._steady = 0
            if size < self.pull_bytes * FILLING / 2:  # it was not too large: so there were too many
                self.broker_gives = given
        elif asked >= self.broker_gives:
            self._steady += 1
            if self._steady >= STEADY:
                self._steady, self.broker_gives = 0, self.broker_gives * 2
