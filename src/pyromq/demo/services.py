"""The services that greet a new user. Each call takes real time, and a service runs a limited number at once."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass

from pyromq.errors import PyroMQError

#: A call takes a little more or less than usual.
SPREAD = 0.1


class ServiceDown(PyroMQError):
    """A service that is called while it is stopped."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A service: its name, the duration of one call, and the number of calls it runs at once."""

    name: str
    seconds: float
    capacity: int = 4

    @property
    def per_second(self) -> float:
        return self.capacity / self.seconds


#: Together with the registration itself, the 200 ms of the story.
KINDS = (Kind("SMS", 0.045), Kind("push", 0.035), Kind("coupon", 0.040), Kind("gift", 0.030))
#: The duration of a sign-up's own work, with or without a queue: check the form, write the user to a database.
REGISTRATION_SECONDS = 0.050


class Service:
    """One of them. Who comes when all its hands are busy waits in line."""

    def __init__(self, kind: Kind, rng: random.Random) -> None:
        self.kind = kind
        self.is_up = True
        self.done = 0
        self._rng = rng
        self._hands = asyncio.Semaphore(kind.capacity)

    @property
    def name(self) -> str:
        return self.kind.name

    async def call(self) -> None:
        """Raises ServiceDown."""
        async with self._hands:
            if not self.is_up:
                raise ServiceDown(f"the {self.name} service is down")
            await work(self.kind.seconds, self._rng)
        self.done += 1


async def work(seconds: float, rng: random.Random) -> None:
    """Wait as long as such work takes: the answer of a database, of a telephone company."""
    await asyncio.sleep(seconds * rng.uniform(1 - SPREAD, 1 + SPREAD))
