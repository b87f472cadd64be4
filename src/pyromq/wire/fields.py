"""Typed values in the text fields of a header: a dataclass field names its wire name and kind once.

    queue_id: int = int32("queueId")
    suspend_ms: int = int64("suspendTimeoutMillis", default=0)

A field without a default must be there. `read_fields` raises `BadRequest` with the name of the field that does not fit;
`write_fields` leaves None out, as RocketMQ does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

from pyromq.errors import BadRequest

_REQUIRED: Any = dataclasses.MISSING


class _Kind(NamedTuple):
    #: The most frequent values, looked up instead of parsed; None for text, which stays as it is.
    known: dict[str, Any] | None
    read: Callable[[str], Any]
    write: Callable[[Any], str]
    what: str


def _in_range(bits: int) -> Callable[[str], int]:
    limit = 1 << bits - 1

    def read(text: str) -> int:
        # int() would take "1_000", " 7 " and other scripts' digits as well; no peer writes a number so.
        digits = text if text[:1] != "-" else text[1:]
        if not digits.isdigit() or not digits.isascii() or len(digits) > 19:
            raise ValueError
        number = int(text)
        if not -limit <= number < limit:
            raise ValueError
        return number

    return read


def _read_bool(text: str) -> bool:
    return text.lower() == "true"  # anything else is false, as Java reads it


_SMALL = {str(number): number for number in range(-1, 256)}

_TEXT = _Kind(None, str, str, "text")
_INT32 = _Kind(_SMALL, _in_range(32), str, "a 32-bit number")
_INT64 = _Kind(_SMALL, _in_range(64), str, "a 64-bit number")
_BOOL = _Kind({"true": True, "false": False}, _read_bool, lambda value: "true" if value else "false", "true or false")


def _on_wire(kind: _Kind, name: str, default: Any, short: str | None) -> Any:
    return dataclasses.field(default=default, metadata={"name": name, "short": short or name, "kind": kind})


def text(name: str, *, default: Any = _REQUIRED, short: str | None = None) -> Any:
    return _on_wire(_TEXT, name, default, short)


def int32(name: str, *, default: Any = _REQUIRED, short: str | None = None) -> Any:
    return _on_wire(_INT32, name, default, short)


def int64(name: str, *, default: Any = _REQUIRED, short: str | None = None) -> Any:
    return _on_wire(_INT64, name, default, short)


def boolean(name: str, *, default: Any = _REQUIRED, short: str | None = None) -> Any:
    return _on_wire(_BOOL, name, default, short)


class _Field(NamedTuple):
    attribute: str
    name: str
    short: str
    kind: _Kind
    is_required: bool


@cache
def _fields_of(kind: type[Any]) -> tuple[_Field, ...]:
    return tuple(
        _Field(one.name, one.metadata["name"], one.metadata["short"], one.metadata["kind"], one.default is _REQUIRED)
        for one in dataclasses.fields(kind)
        if one.metadata
    )


def wire_names(kind: type, *, short: bool = False) -> dict[str, str]:
    """Attribute to wire name: the table of one request or answer."""
    return {one.attribute: one.short if short else one.name for one in _fields_of(kind)}


# The minimum the loops below need of each field: they run for every request and every answer.


@cache
def _to_read(kind: type, short: bool) -> tuple[tuple[str, str, dict[str, Any] | None, _Field], ...]:
    return tuple((one.attribute, one.short if short else one.name, one.kind.known, one) for one in _fields_of(kind))


@cache
def _to_write(kind: type, short: bool) -> tuple[tuple[str, str, Callable[[Any], str]], ...]:
    return tuple((one.attribute, one.short if short else one.name, one.kind.write) for one in _fields_of(kind))


def read_fields(kind: type, fields: Mapping[str, str], *, short: bool = False) -> dict[str, Any]:
    """The arguments of a `kind`. Raises BadRequest."""
    values: dict[str, Any] = {}
    for attribute, name, known, field in _to_read(kind, short):
        found = fields.get(name)
        if found is None:
            if field.is_required:
                raise BadRequest(f"the field {field.name} is missing")
        elif known is None:
            values[attribute] = found
        else:
            value = known.get(found)
            values[attribute] = _read(field, found) if value is None else value
    return values


def _read(field: _Field, found: str) -> Any:
    try:
        return field.kind.read(found)
    except ValueError:
        shown = repr(found if len(found) <= 60 else found[:57] + "...")
        raise BadRequest(f"the field {field.name} is {shown}, and must be {field.kind.what}") from None


def write_fields(value: Any, *, short: bool = False) -> dict[str, str]:
    """The fields of a request or an answer as the header has them."""
    written: dict[str, str] = {}
    kind: type = type(value)
    for attribute, name, write in _to_write(kind, short):
        item = getattr(value, attribute)
        if item is not None:
            written[name] = item if type(item) is str else write(item)
    return written
