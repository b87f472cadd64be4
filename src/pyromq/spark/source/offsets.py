"""The position of a stream, as Spark keeps it in its checkpoint, and the rules to continue from it. Pure.

    {"v": 1, "q": {"orders@broker-a@0": 17, "orders@broker-a@1": 4}}     the next offset of each queue
    {"v": 1, "init": "latest"}                                           the beginning of a stream, see below

Spark compares offsets as text, so the same place has one text: queues are in order, and nothing else is in it.

An offset that is not yet in the checkpoint may be requested again and must then be the same. The start of a stream
depends on brokers' answers, which change as messages arrive; so the start is a constant, and the first batch, which is
empty, records the answer. A queue that appears later is treated alike: the first batch with it records its start, and
the next one reads it. The same holds for a queue whose topic was deleted and created again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyromq.errors import ConfigError
from pyromq.model.queue import MessageQueue
from pyromq.spark.option_reader import INT64_MAX
from pyromq.spark.source.queue_json import parse_queue_name, queue_name

VERSION = 1

#: Spark's form of an offset: what `json.loads` makes of its text.
Form = dict[str, Any]
Positions = Mapping[MessageQueue, int]


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """The messages of a queue from one offset up to another, which is not among them."""

    queue: MessageQueue
    start: int
    end: int

    @property
    def count(self) -> int:
        return max(self.end - self.start, 0)


def beginning(kind: str) -> Form:
    """The constant that stands for a place which is still to be found out."""
    return {"v": VERSION, "init": kind}


def is_beginning(form: Form) -> bool:
    return _checked(form).get("init") is not None


def to_form(positions: Positions) -> Form:
    return {"v": VERSION, "q": {queue_name(queue): positions[queue] for queue in sorted(positions)}}


def positions(form: Form) -> dict[MessageQueue, int]:
    """Return the next offset of each queue; empty for the start. Raises ConfigError for a foreign offset."""
    queues = _checked(form).get("q", {})
    if not isinstance(queues, dict):
        raise _unreadable(form, "its q is no object")
    return dict(_position(form, name, offset) for name, offset in queues.items())


def _position(form: Form, name: str, offset: object) -> tuple[MessageQueue, int]:
    if type(offset) is not int or not 0 <= offset <= INT64_MAX:
        raise _unreadable(form, f"{offset!r} is no offset of {name}")
    try:
        return parse_queue_name(name), offset
    except ValueError as error:
        raise _unreadable(form, str(error)) from None


def _checked(form: Form) -> Form:
    if not isinstance(form, dict) or form.get("v") != VERSION or ("q" in form) == ("init" in form):
        raise _unreadable(form, f"it is {{'v': {VERSION}, 'q': …}} or {{'v': {VERSION}, 'init': …}}")
    return form


def _unreadable(form: object, why: str) -> ConfigError:
    return ConfigError(
        f"the checkpoint has an offset that is not one of format pyromq: {str(form)[:200]}; {why}. Is it the "
        "checkpoint of another query? Give this one a directory of its own",
        "checkpointLocation",
    )


def spans_between(start: Positions, end: Positions) -> list[Span]:
    """Return the ranges between two offsets. A queue that first appears in `end`, or was reset there, is empty."""
    return [Span(queue, start[queue], end[queue]) for queue in sorted(end) if start.get(queue, end[queue]) < end[queue]]
