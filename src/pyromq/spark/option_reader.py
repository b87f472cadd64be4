"""Reads the options of a format one by one; a wrong option is refused with a sentence.

    given = Given(options, known=CONNECTION + ("topic", "linger"))
    linger = given.seconds("linger", 0.005)

Spark writes the names in lower case and all values as text, so names are compared without regard to case. An option
that is unknown is refused before any work: a misspelt option must not become a default.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from datetime import UTC, datetime

from pyromq.config.fields import nearest
from pyromq.errors import ConfigError

INT64_MAX = (1 << 63) - 1

_BOOLEANS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
_NUMBER = re.compile(r"[0-9]{1,19}")
_AMOUNT = re.compile(r"([0-9]{1,19})\s*([a-z]*)")
_BYTES = {"": 1, "b": 1, "k": 1 << 10, "kb": 1 << 10, "m": 1 << 20, "mb": 1 << 20, "g": 1 << 30, "gb": 1 << 30}
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
#: Options that Spark adds to a reader or writer, or that people pass to Spark.
SPARKS_OWN = (
    "checkpointLocation",
    "queryName",
    "asyncProgressTrackingEnabled",
    "asyncProgressTrackingCheckpointIntervalMs",
)


class Given:
    """See the module. Raises ConfigError for options that are not known."""

    def __init__(self, options: Mapping[str, str], known: Collection[str]) -> None:
        self._values = {name.lower(): str(value) for name, value in options.items()}
        names = {name.lower(): name for name in (*known, *SPARKS_OWN)}
        for name in self._values:
            if name not in names:
                raise ConfigError(f"there is no option {name!r}{nearest(name, known)}", name)

    def has(self, name: str) -> bool:
        return name.lower() in self._values

    def text(self, name: str, default: str | None = None) -> str | None:
        """Treat None and blank text as absent."""
        return self._values.get(name.lower(), "").strip() or default

    def required(self, name: str, example: str) -> str:
        found = self.text(name)
        if found is None:
            raise ConfigError(f"the option {name} is missing: for example .option({name!r}, {example!r})", name)
        return found

    def choice(self, name: str, allowed: Collection[str], default: str) -> str:
        """One of some words, whatever their case."""
        found = self.text(name, default) or default
        for word in allowed:
            if found.lower() == word.lower():
                return word
        raise self.wrong(name, f"it is {' or '.join(allowed)}")

    def flag(self, name: str, default: bool) -> bool:
        found = self.text(name)
        if found is None:
            return default
        if found.lower() not in _BOOLEANS:
            raise self.wrong(name, "it is true or false")
        return _BOOLEANS[found.lower()]

    def number(self, name: str, *, least: int = 0, most: int = INT64_MAX) -> int | None:
        found = self.text(name)
        if found is None:
            return None
        if not _NUMBER.fullmatch(found) or not least <= int(found) <= most:
            above = f"from {least} on" if most == INT64_MAX else f"from {least} to {most}"
            raise self.wrong(name, f"it is a whole number {above}")
        return int(found)

    def size(self, name: str, *, least: int = 1, most: int = INT64_MAX) -> int | None:
        """A number of bytes: `2m`, `64k`, `1000000`."""
        found = self.text(name)
        if found is None:
            return None
        amount = _AMOUNT.fullmatch(found.lower())
        size = int(amount[1]) * _BYTES[amount[2]] if amount and amount[2] in _BYTES else 0
        if not least <= size <= most:
            limits = f"of at least {least} bytes" if most == INT64_MAX else f"from {least} to {most} bytes"
            raise self.wrong(name, f"it is a size {limits}, as in 2m, 512k or 1000000")
        return size

    def seconds(self, name: str, default: float) -> float:
        """A span of time: `500ms`, `30s`, `15m`, `1h`."""
        found = self.text(name)
        if found is None:
            return default
        amount = _AMOUNT.fullmatch(found.lower())
        if amount is None or amount[2] not in _SECONDS:
            raise self.wrong(name, "it is a span of time, as in 500ms, 30s, 15m or 1h")
        return int(amount[1]) * _SECONDS[amount[2]]

    def moment_ms(self, name: str) -> int | None:
        found = self.text(name)
        if found is None:
            return None
        moment = moment_ms(found)
        if moment is None:
            raise self.wrong(name, "it is a time as in 2026-01-31T12:00:00Z, or the milliseconds since 1970")
        return moment

    def json(self, name: str) -> object:
        """Return the value of the text; None if it is absent."""
        found = self.text(name)
        if found is None:
            return None
        try:
            return json.loads(found)
        except (ValueError, RecursionError):
            raise self.wrong(name, "it is no JSON") from None

    def wrong(self, name: str, allowed: str) -> ConfigError:
        return ConfigError(f"the option {name} cannot be {_short(self.text(name) or '')!r}: {allowed}", name)

    def refuse_together(self, name: str, others: Collection[str], why: str) -> None:
        for other in others:
            if self.text(name) is not None and self.text(other) is not None:
                raise ConfigError(f"the options {name} and {other} cannot be given together: {why}", name)

    def refuse(self, names: Collection[str], why: str) -> None:
        for name in names:
            if self.text(name) is not None:
                raise ConfigError(f"the option {name} {why}", name)


def moment_ms(text: str) -> int | None:
    """Milliseconds since 1970, of such a number or of a time in ISO's form; one that names no zone is in UTC's."""
    if _NUMBER.fullmatch(text):
        return min(int(text), INT64_MAX)
    try:
        moment = datetime.fromisoformat(text)
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return max(int(moment.timestamp() * 1000), 0)
    except (ValueError, OverflowError):
        return None


def _short(text: str) -> str:
    return text if len(text) <= 100 else f"{text[:100]}…"
