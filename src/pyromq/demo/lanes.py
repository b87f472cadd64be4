"""A way to sign up, as its visitors see it: how long it takes, who fails, who gives up, who still waits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from pyromq.clock import SystemClock
from pyromq.errors import PyroMQError
from pyromq.metrics import FINE_BOUNDS, Histogram

#: The time of an event loop goes in whole milliseconds, which is too coarse to measure by.
monotonic = SystemClock().monotonic

#: Signs one user up.
SignUp = Callable[[str], Awaitable[None]]


class Steps:
    """The duration of each step of a sign-up."""

    def __init__(self) -> None:
        self._by_name: dict[str, Histogram] = {}

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """A step that fails took no time that anybody would want to know."""
        began = monotonic()
        yield
        self.of(name).record(monotonic() - began)

    def of(self, name: str) -> Histogram:
        return self._by_name.setdefault(name, Histogram(FINE_BOUNDS))

    def medians(self) -> dict[str, float]:
        return {name: one.quantile(0.5) for name, one in self._by_name.items()}


class Lane:
    """One of the two ways. Figures count from the last `reset`."""

    def __init__(self, name: str, sign_up: SignUp, patience_s: float) -> None:
        self.name = name
        self._sign_up = sign_up
        self._patience_s = patience_s
        self._visits: set[asyncio.Task[None]] = set()
        self.waiting = 0
        self.reset()

    def reset(self) -> None:
        self.latencies = Histogram(FINE_BOUNDS)
        self.steps = Steps()
        self.came = self.failed = self.gave_up = 0
        self._fresh: list[float] = []
        self._began = monotonic()

    @property
    def done(self) -> int:
        return self.latencies.count

    @property
    def rate(self) -> float:
        """Sign-ups per second since the last reset."""
        return self.done / max(monotonic() - self._began, 1e-9)

    def arrive(self, user: str) -> None:
        """A visitor comes, whether or not those before are served."""
        visit = asyncio.get_running_loop().create_task(self.visit(user))
        self._visits.add(visit)
        visit.add_done_callback(self._visits.discard)

    async def visit(self, user: str) -> None:
        """Sign up, or be told that it failed, or lose patience."""
        began = monotonic()
        self.came += 1
        self.waiting += 1
        try:
            async with asyncio.timeout(self._patience_s):
                await self._sign_up(user)
        except TimeoutError:
            self.gave_up += 1
            self._fresh.append(monotonic() - began)
        except PyroMQError:
            self.failed += 1
        else:
            self.latencies.record(monotonic() - began)
            self._fresh.append(monotonic() - began)
        finally:
            self.waiting -= 1

    def take_fresh(self) -> list[float]:
        """Return the waiting times of the visits that ended since the last call."""
        fresh, self._fresh = self._fresh, []
        return fresh

    async def settled(self) -> None:
        """Wait for the visitors who are here."""
        await asyncio.gather(*self._visits)

    def close(self) -> None:
        for visit in self._visits:
            visit.cancel()
