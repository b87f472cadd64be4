"""The settings of a program as a flat table of dotted paths (`store.flush.sync`), and the way back to the dataclass.

Files, environment and flags all produce such paths, so that values are converted and checked in one place.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar, get_type_hints


class Dataclass(Protocol):
    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]


Settings = TypeVar("Settings", bound=Dataclass)

_BOOLEANS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
#: Variables that a shell or RocketMQ's start script expands, and PyroMQ does not.
_UNEXPANDED = re.compile(r"\$[{(A-Za-z_]|^~")


class BadValue(ValueError):
    """A value of the wrong type. Its text names the expected type; the caller adds the setting and the source."""


def to_bool(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in _BOOLEANS:
        return _BOOLEANS[value.strip().lower()]
    raise BadValue("it is true or false")


def to_int(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and _INTEGER.fullmatch(value.strip()):
        return int(value)
    raise BadValue("it is a whole number")


def to_float(value: object) -> float:
    if isinstance(value, str) and re.fullmatch(r"[+-]?[0-9]{1,19}(\.[0-9]{1,19})?", value.strip()):
        return float(value)
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return value
    raise BadValue("it is a number")


def to_text(value: object) -> str:
    if isinstance(value, str):
        return value.strip()
    raise BadValue('it is text, in quotes: "…"')


def to_optional_text(value: object) -> str | None:
    return to_text(value) or None if value is not None else None


def to_texts(value: object) -> tuple[str, ...]:
    """Accept a list, or text with parts separated by `;` or `,`."""
    if isinstance(value, str):
        return tuple(part.strip() for part in re.split("[;,]", value) if part.strip())
    if isinstance(value, list | tuple) and all(isinstance(part, str) for part in value):
        return tuple(value)
    raise BadValue('it is a list of texts: ["…", "…"]')


def to_ints(value: object) -> tuple[int, ...]:
    """Accept a list, or text such as `04;16` with parts separated by `;` or `,`."""
    if isinstance(value, str):
        return tuple(to_int(part) for part in to_texts(value))
    if isinstance(value, list | tuple):
        return tuple(to_int(part) for part in value)
    raise BadValue("it is a list of whole numbers: [4, 16]")


def to_path(value: object) -> Path:
    text = str(value) if isinstance(value, Path) else to_text(value)
    if not text or "\0" in text:
        raise BadValue("it is the path of a file or directory")
    if isinstance(value, str) and _UNEXPANDED.search(text):
        raise BadValue("~ and $… are not replaced here: write the whole path")
    return Path(text)


def to_optional_path(value: object) -> Path | None:
    return to_path(value) if value not in (None, "") else None


#: Converter for each evaluated annotation of a field.
CONVERTERS: dict[object, Callable[[object], object]] = {
    bool: to_bool,
    int: to_int,
    float: to_float,
    str: to_text,
    str | None: to_optional_text,
    tuple[str, ...]: to_texts,
    tuple[int, ...]: to_ints,
    Path: to_path,
    Path | None: to_optional_path,
}


def paths_of(settings: type, prefix: str = "") -> Iterator[tuple[str, Callable[[object], object]]]:
    """Yield the path and the converter of every setting of a dataclass and its nested tables, without constants."""
    hints = get_type_hints(settings)
    for field in dataclasses.fields(settings):
        kind = hints[field.name]
        if field.metadata.get("fixed"):
            continue
        if dataclasses.is_dataclass(kind):
            assert isinstance(kind, type)
            yield from paths_of(kind, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name, CONVERTERS[kind]


def tables_of(settings: type, prefix: str = "") -> Iterator[str]:
    """Yield the table names of the nested dataclasses."""
    for name, kind in get_type_hints(settings).items():
        if dataclasses.is_dataclass(kind):
            assert isinstance(kind, type)
            yield prefix + name
            yield from tables_of(kind, f"{prefix}{name}.")


def build(settings: type[Settings], values: Mapping[str, object]) -> Settings:
    """Return the dataclass with these values and defaults for all others. Raises ConfigError."""
    given: dict[str, Any] = {}
    hints = get_type_hints(settings)
    for field in dataclasses.fields(settings):
        below = {path[len(field.name) + 1 :]: one for path, one in values.items() if path.startswith(field.name + ".")}
        if field.name in values:
            given[field.name] = values[field.name]
        elif below:
            given[field.name] = build(hints[field.name], below)
    return settings(**given)


def replaced(config: Settings, values: Mapping[str, object]) -> Settings:
    """Return a copy with some settings changed, checked as a whole. Raises ConfigError."""
    changes: dict[str, Any] = {}
    for path, value in values.items():
        name, dot, rest = path.partition(".")
        if dot:
            changes.setdefault(name, {})[rest] = value
        else:
            changes[name] = value
    for name, change in changes.items():
        if dataclasses.is_dataclass(getattr(config, name)):
            changes[name] = replaced(getattr(config, name), change)
    return dataclasses.replace(config, **changes)


def value_at(config: object, path: str) -> object:
    for name in path.split("."):
        config = getattr(config, name)
    return config


#: Least similarity of a suggestion: one or two letters, or one word, may differ.
_ALIKE = 0.75
#: Suggest names within this similarity of the best one, too.
_AS_NEAR = 0.03
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[0-9]+")


def nearest(name: str, known: Collection[str], spelt: Callable[[str], str] = str) -> str:
    """Return `; did you mean …?`, or an empty text if no known name is similar. Case does not matter."""
    names = [spelt(one) for one in _near(name, known)]
    return f"; did you mean {' or '.join(names)}?" if names else ""


def _near(name: str, known: Collection[str]) -> list[str]:
    """Return similar names, or else names that contain all its words, as `listen_port` contains `port`."""
    alike = {one: _alikeness(name, one) for one in known}
    best = max(alike.values(), default=0.0)
    if best >= _ALIKE:
        return [one for one in sorted(known) if alike[one] > best - _AS_NEAR][:2]
    wanted = _words(name)
    longer = sorted((one for one in known if wanted and wanted <= _words(one)), key=lambda one: (len(one), one))
    table = name.rpartition(".")[0]
    longer = [one for one in longer if one.rpartition(".")[0] == table] or longer
    return longer if len(longer) <= 2 else []


def _alikeness(name: str, other: str) -> float:
    """Return the similarity, 0 to 1. Equal tables (before the last dot) do not count."""
    (table, _, leaf), (other_table, _, other_leaf) = name.rpartition("."), other.rpartition(".")
    pair = (leaf, other_leaf) if table == other_table else (name, other)
    return difflib.SequenceMatcher(None, pair[0].lower(), pair[1].lower()).ratio()


def _words(name: str) -> set[str]:
    return {word.lower() for word in _WORD.findall(name)}
