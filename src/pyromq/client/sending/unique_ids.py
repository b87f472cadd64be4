"""Ids that no two messages share, in the form of RocketMQ's clients: 32 hexadecimal digits.

    4 address of the client, 2 process id, 4 salt, 4 milliseconds since the month began, 2 counter

Tools read the time back out of an id, to look for the message from then on. Time and counter together only grow, even
when the clock steps back. The salt is random for every object and every month, so that
neither two processes that look alike (containers, forks) nor two months repeat an id.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from datetime import datetime

#: Ids per millisecond; above that, the time part advances on its own.
_PER_MS = 1 << 16
#: A byte in hexadecimal.
_HEX = tuple(f"{byte:02X}" for byte in range(256))

#: Returns this many random bytes, like `os.urandom`.
Chance = Callable[[int], bytes]


class UniqueIds:
    """Makes ids. `chance` gives the salt."""

    __slots__ = ("_chance", "_count", "_month_began_ms", "_month_ends_ms", "_ms", "_of_month", "_of_ms", "_who")

    def __init__(self, host: str, pid: int, chance: Chance) -> None:
        self._chance = chance
        self._who = _packed_host(host, chance) + (pid & 0xFFFF).to_bytes(2, "big")
        self._month_began_ms = self._month_ends_ms = 0
        #: The millisecond that ids are made for, how many of them there are, and what they begin with.
        self._ms = 0
        self._count = 0
        self._of_month = self._of_ms = ""

    def next(self, now_ms: int) -> str:
        """An id for a message that is made now."""
        count = self._count + 1
        if now_ms > self._ms or count >= _PER_MS:
            self._begin(max(now_ms, self._ms + 1))
            count = 0
        self._count = count
        return self._of_ms + _HEX[count >> 8] + _HEX[count & 0xFF]

    def _begin(self, now_ms: int) -> None:
        if now_ms >= self._month_ends_ms:
            self._month_began_ms, self._month_ends_ms = _month_of(now_ms)
            self._of_month = (self._who + self._chance(4)).hex().upper()
        self._ms = now_ms
        self._of_ms = f"{self._of_month}{now_ms - self._month_began_ms:08X}"


def _packed_host(host: str, chance: Chance) -> bytes:
    """Four bytes for the client's address; of chance where it has no such address."""
    try:
        return ipaddress.IPv4Address(host).packed
    except ValueError:
        return chance(4)


def _month_of(now_ms: int) -> tuple[int, int]:
    """Return the start and the end of the current month: by the local calendar, as the other clients count."""
    first = datetime.fromtimestamp(now_ms / 1000).replace(day=1, hour=0, minute=0, second=0, microsecond=0)  # noqa: DTZ006
    following = first.replace(year=first.year + first.month // 12, month=first.month % 12 + 1)
    return int(first.timestamp() * 1000), int(following.timestamp() * 1000)
