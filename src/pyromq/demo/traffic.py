"""The arrivals of visitors: a fixed number without pauses, or a stream at a given rate."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Sequence

from pyromq.demo.lanes import Lane


class Visitors:
    """Every user has a name of their own, in this run and in any other."""

    def __init__(self, run: str, rng: random.Random) -> None:
        self._run = run
        self._numbers = itertools.count(1)
        self._rng = rng
        #: Visitors per second of the stream; 0 when none is on.
        self.rate = 0.0

    def _next_user(self) -> str:
        return f"{self._run}-{next(self._numbers)}"

    async def take_turns(self, lane: Lane, desks: int, seconds: float) -> None:
        """Keep `desks` visits running, to measure the lane's throughput."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds

        async def desk() -> None:
            while loop.time() < until:
                await lane.visit(self._next_user())

        async with asyncio.TaskGroup() as desks_open:
            for _ in range(desks):
                desks_open.create_task(desk())

    async def stream(self, lanes: Sequence[Lane]) -> None:
        """Come at `rate`, to all lanes alike, until cancelled."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            due = max(due, loop.time() - 0.2) + self._rng.expovariate(self.rate)
            await asyncio.sleep(due - loop.time())
            user = self._next_user()
            for lane in lanes:
                lane.arrive(user)
