"""Decoders for answers of brokers to admin requests. Bodies are in fastjson's dialect (see `wire.fastjson`).

Versions of RocketMQ differ: missing fields have defaults, unknown fields are ignored. An unreadable body raises
`NotJson` or `WrongShape`.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyromq.errors import NotJson, WrongShape
from pyromq.model.json_form import Json, JsonObject
from pyromq.model.queue import MessageQueue
from pyromq.wire import fastjson
from pyromq.wire.codes import ResponseCode
from pyromq.wire.command import Command

#: RocketMQ's version 4.0.0; each patch has two numbers from there on (a snapshot, a release), each minor version ten.
_VERSION_4_0_0 = 213


def form_of(answer: Command) -> JsonObject:
    """The object in the body; an empty body is an empty one."""
    value = fastjson.loads(answer.body) if answer.body else {}
    if not isinstance(value, dict):
        raise WrongShape("the answer is no object")
    return value


def number_in(answer: Command, name: str) -> int:
    """A number among the fields of an answer. Raises WrongShape where there is none."""
    written = answer.fields.get(name, "")
    digits = written.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 19):
        raise WrongShape(f"the answer's field {name} is {written[:60]!r}, which is no number")
    return int(written)


def offset_or_none(answer: Command) -> int | None:
    """A group's offset; None where the broker says that it has none."""
    if answer.code != ResponseCode.SUCCESS:
        return None
    offset = number_in(answer, "offset")
    return offset if offset >= 0 else None


def whole(form: Json, key: str, default: int = 0) -> int:
    value = form.get(key) if isinstance(form, dict) else None
    return value if type(value) is int else default


def real(form: Json, key: str) -> float:
    value = form.get(key) if isinstance(form, dict) else None
    return float(value) if isinstance(value, int | float) else 0.0


def words(form: Json, key: str) -> str:
    value = form.get(key) if isinstance(form, dict) else None
    return "" if value is None else str(value)


def several(form: JsonObject, key: str) -> list[Json]:
    value = form.get(key)
    return value if isinstance(value, list) else []


def named(form: JsonObject, key: str) -> JsonObject:
    """An object inside; a map whose keys are objects is none."""
    value = form.get(key)
    return value if isinstance(value, dict) else {}


def by_queue(form: JsonObject, key: str) -> Iterator[tuple[MessageQueue, Json]]:
    """A map that has queues for keys: as objects, or as the text of an object."""
    table = form.get(key)
    pairs = table.pairs if isinstance(table, fastjson.ObjectKeyed) else (table or {}).items()
    for name, value in pairs:
        queue = _queue(name)
        if queue is not None:
            yield queue, value


def _queue(name: Json) -> MessageQueue | None:
    if isinstance(name, str):
        try:
            name = fastjson.loads(name.encode())
        except NotJson:
            return None
    return MessageQueue(words(name, "topic"), words(name, "brokerName"), whole(name, "queueId"))


def version_name(number: int) -> str:
    """RocketMQ's number for a version of itself, as people write it: 513 is 5.5.0."""
    steps = number - _VERSION_4_0_0
    if steps < 0:
        return f"before 4.0.0 ({number})"
    release, is_snapshot = steps + steps % 2, steps % 2
    major, minor = divmod(release // 20, 10)
    return f"{4 + major}.{minor}.{release % 20 // 2}{'-SNAPSHOT' if is_snapshot else ''}"
