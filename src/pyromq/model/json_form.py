"""Frozen dataclasses in RocketMQ's JSON: a field names its key and its rule once, with its default.

    read_queues: int = field(default=16, metadata=in_json("readQueueNums", COUNT))

`from_json` takes what RocketMQ wrote, any version of it: an absent or null field has its default, and
fields that we do not know are kept in `unknown`, so that `to_json` gives them back as they were. A value
that breaks the rule of its field raises `WrongShape`: it is never bent into something that fits.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Protocol, TypeVar

from pyromq.errors import WrongShape

#: Whatever orjson makes of JSON: dict, list, str, int, float, bool or None.
Json = Any
JsonObject = dict[str, Json]
Rule = Callable[[Json], Json]

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1


class InJson(Protocol):
    """A dataclass whose fields have `in_json` metadata."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]

    @property
    def unknown(self) -> Mapping[str, Json]: ...


T = TypeVar("T", bound=InJson)


def in_json(key: str, rule: Rule) -> dict[str, Any]:
    """Metadata for `dataclasses.field`."""
    return {"key": key, "rule": rule}


def expect(holds: bool, expected: str, found: Json) -> None:
    if not holds:
        shown = repr(found)
        raise WrongShape(f"{expected} expected, {shown if len(shown) <= 60 else shown[:57] + '...'} found")


def whole_number(least: int, most: int) -> Rule:
    expected = f"a whole number from {least} to {most}"

    def rule(value: Json) -> int:
        # Not isinstance: True is an int to Python.
        expect(type(value) is int and least <= value <= most, expected, value)
        return int(value)

    return rule


INT32 = whole_number(-INT32_MAX - 1, INT32_MAX)
INT64 = whole_number(-INT64_MAX - 1, INT64_MAX)
COUNT = whole_number(0, INT32_MAX)
OFFSET = whole_number(0, INT64_MAX)


def true_or_false(value: Json) -> bool:
    expect(type(value) is bool, "true or false", value)
    return bool(value)


def text(value: Json) -> str:
    expect(isinstance(value, str), "text", value)
    try:
        value.encode()
    except UnicodeEncodeError:  # half a surrogate pair: no file could hold it
        raise WrongShape(f"text expected, {value!r} found, which has no UTF-8 form") from None
    return str(value)


def a_name(value: Json) -> str:
    expect(value != "", "a name", value)
    return text(value)


def an_object(value: Json) -> JsonObject:
    expect(isinstance(value, dict), "an object", value)
    return dict(value)


def texts_by_name(value: Json) -> dict[str, str]:
    return {text(key): text(item) for key, item in an_object(value).items()}


def some_objects(value: Json) -> tuple[JsonObject, ...]:
    expect(isinstance(value, (list, tuple)), "a list", value)
    return tuple(an_object(item) for item in value)


def from_json(kind: type[T], value: Json) -> T:
    """One `kind` from a parsed object. Raises `WrongShape` with the key that does not fit."""
    unknown = an_object(value)
    known: JsonObject = {}
    for field in dataclasses.fields(kind):
        if not field.metadata:
            continue
        key = field.metadata["key"]
        found = unknown.pop(key, None)
        if found is not None:
            known[field.name] = _apply(field.metadata["rule"], key, found)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise WrongShape(f"{key} is missing")
    make: Callable[..., T] = kind
    return make(**known, unknown=unknown)


def to_json(value: InJson) -> JsonObject:
    """All of it, defaults too: a reader may have others. None is left out, as RocketMQ does."""
    form: JsonObject = dict(value.unknown)
    for field in dataclasses.fields(value):
        item = getattr(value, field.name)
        if field.metadata and item is not None:
            form[field.metadata["key"]] = list(item) if isinstance(item, tuple) else item
    return form


def _apply(rule: Rule, key: str, value: Json) -> Json:
    try:
        return rule(value)
    except WrongShape as problem:
        raise WrongShape(f"{key}: {problem}") from None
