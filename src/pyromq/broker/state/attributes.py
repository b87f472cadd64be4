"""Attributes of topics and groups: how a change is written, and which attributes there are. Pure.

    +message.type=FIFO,+reserve.time=3,-cleanup.policy

A topic has only those that this broker honours; of a group any may be kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pyromq.errors import BadRequest


@dataclass(frozen=True, slots=True)
class _Attribute:
    #: Returns the fault of a value; None if it is valid.
    problem: Callable[[str], str | None]
    #: May it be changed after the topic was made?
    is_changeable: bool


def _one_of(*allowed: str) -> Callable[[str], str | None]:
    return lambda value: None if value in allowed else f"it is {' or '.join(allowed)}"


def _is_time(value: str) -> str | None:
    digits = value.removeprefix("-")
    is_number = digits.isascii() and digits.isdigit() and len(digits) <= 18
    return None if is_number and int(value) >= -1 else "it is a number from -1 on"


TOPIC_ATTRIBUTES = {
    "queue.type": _Attribute(_one_of("SimpleCQ"), is_changeable=False),
    "cleanup.policy": _Attribute(_one_of("DELETE"), is_changeable=False),
    "message.type": _Attribute(_one_of("UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION"), is_changeable=True),
    "reserve.time": _Attribute(_is_time, is_changeable=True),
}


def parse_changes(text: str) -> dict[str, str]:
    """The changes that a text asks for, by name with its sign. Raises BadRequest."""
    changes: dict[str, str] = {}
    for word in filter(None, text.split(",")):
        name, equals, value = word.partition("=")
        if name in changes or not name.startswith("+" if equals else "-"):
            raise BadRequest(
                f"attributes are changed by +key=value and removed by -key, each once: {word!r} is neither"
            )
        changes[name] = value
    return changes


def changed_topic_attributes(current: Mapping[str, str] | None, changes: Mapping[str, str]) -> dict[str, str]:
    """The attributes of a topic after changes; None: the topic is new. Raises BadRequest."""
    for name, value in changes.items():
        _check(current, name[:1], name[1:], value)
    return changed_attributes(current or {}, changes)


def changed_attributes(current: Mapping[str, str], changes: Mapping[str, str]) -> dict[str, str]:
    """Attributes after changes, of which no more is known than their names. Raises BadRequest."""
    result = dict(current)
    for name, value in changes.items():
        sign, key = name[:1], name[1:]
        if sign == "+" and key:
            result[key] = value
        elif sign == "-" and key:
            result.pop(key, None)
        else:
            raise BadRequest(f"attributes are changed by +key and removed by -key: {name!r} is neither")
    return result


def _check(current: Mapping[str, str] | None, sign: str, key: str, value: str) -> None:
    attribute = TOPIC_ATTRIBUTES.get(key)
    if attribute is None:
        raise BadRequest(f"unsupported key: {key} is no attribute of a topic; there are {', '.join(TOPIC_ATTRIBUTES)}")
    if current is not None and not attribute.is_changeable and current.get(key, "") != value:
        raise BadRequest(f"the attribute {key} cannot be changed once the topic is there")
    if sign == "-" and key not in (current or {}):
        raise BadRequest(f"the topic has no attribute {key} that could be removed")
    problem = attribute.problem(value) if sign == "+" else None
    if problem is not None:
        raise BadRequest(f"the attribute {key} cannot be {value!r}: {problem}")
