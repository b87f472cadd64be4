"""The sign-ups, and the services that greeted each: proof that no message is lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Account:
    """The figures of one service."""

    #: Sign-ups that it handled at least once, that it handled again, and that it never saw.
    handled: int
    twice: int
    lost: int


class Ledger:
    """Counts every user at every service."""

    def __init__(self, services: Iterable[str]) -> None:
        self._acknowledged: set[str] = set()
        self._handled: dict[str, Counter[str]] = {name: Counter() for name in services}

    @property
    def acknowledged(self) -> int:
        return len(self._acknowledged)

    def acknowledge(self, user: str) -> None:
        """The broker has the message about this user."""
        self._acknowledged.add(user)

    def handle(self, service: str, user: str) -> None:
        """A service has done its work for this user."""
        self._handled[service][user] += 1

    def handled(self, service: str) -> int:
        return len(self._handled[service])

    def backlog(self, service: str) -> int:
        """Sign-ups that still wait for this service. A handler may be quicker than the acknowledgement."""
        return max(0, len(self._acknowledged) - len(self._handled[service]))

    @property
    def is_complete(self) -> bool:
        return not any(self._missing(service) for service in self._handled)

    def accounts(self) -> dict[str, Account]:
        return {name: self._account(name) for name in self._handled}

    def _account(self, service: str) -> Account:
        seen = self._handled[service]
        return Account(handled=len(seen), twice=seen.total() - len(seen), lost=len(self._missing(service)))

    def _missing(self, service: str) -> set[str]:
        return self._acknowledged - self._handled[service].keys()
