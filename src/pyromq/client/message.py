"""A message as programs make it, and its properties as RocketMQ writes them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, TypedDict

from pyromq.errors import IllegalMessage
from pyromq.records import property_names as names

_NO_PROPERTIES: Mapping[str, str] = {}


class MessageFields(TypedDict, total=False):
    """The optional fields of a message besides topic and body."""

    tags: str | None
    keys: str | Iterable[str]
    properties: Mapping[str, str] | None
    sharding_key: str | None
    delay_level: int
    deliver_at: datetime | float | None
    deliver_after: timedelta | float | None
    user_flag: int


class Message:
    """One message.

    Message("orders", b"...", tags="paid", keys=["o-17"], properties={"country": "IT"})

    `tags` is one word that consumers choose by; `keys` are what it can be found by. Messages with the same
    `sharding_key` go to the same queue, in order. `delay_level` (1 to 18, as the broker has them), `deliver_at` (a
    time) or `deliver_after` (seconds) hold it back. A body given as text is sent as UTF-8.
    """

    __slots__ = (
        "body",
        "delay_level",
        "deliver_after",
        "deliver_at",
        "keys",
        "properties",
        "sharding_key",
        "tags",
        "topic",
        "user_flag",
    )  # fmt: skip

    topic: str
    body: bytes
    tags: str | None
    keys: tuple[str, ...]
    #: The program's own; those that RocketMQ adds are not among them.
    properties: Mapping[str, str]
    sharding_key: str | None
    delay_level: int
    #: Seconds since 1970.
    deliver_at: float | None
    #: Seconds after it was sent.
    deliver_after: float | None
    user_flag: int

    def __init__(
        self,
        topic: str,
        body: bytes | bytearray | memoryview | str = b"",
        *,
        tags: str | None = None,
        keys: str | Iterable[str] = (),
        properties: Mapping[str, str] | None = None,
        sharding_key: str | None = None,
        delay_level: int = 0,
        deliver_at: datetime | float | None = None,
        deliver_after: timedelta | float | None = None,
        user_flag: int = 0,
    ) -> None:
        self.topic = topic
        self.body = body if type(body) is bytes else _as_bytes(body)
        self.tags = tags
        self.keys = keys if type(keys) is tuple else (keys,) if isinstance(keys, str) else tuple(keys)
        self.properties = properties if properties is not None else {}
        self.sharding_key = sharding_key
        self.delay_level = delay_level
        self.deliver_at = None if deliver_at is None else _seconds(deliver_at)
        self.deliver_after = None if deliver_after is None else _seconds(deliver_after)
        self.user_flag = user_flag

    @property
    def text(self) -> str:
        """The body as text. Raises UnicodeDecodeError when it is none."""
        return self.body.decode()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Message):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in Message.__slots__)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shown = self.body if len(self.body) <= 40 else self.body[:37] + b"..."
        more = "".join(f", {name}={value!r}" for name, value in self._set_fields())
        return f"{type(self).__name__}({self.topic!r}, {shown!r}{more})"

    def _set_fields(self) -> Iterator[tuple[str, Any]]:
        for name in ("tags", "keys", "properties", "sharding_key", "delay_level", "deliver_at", "deliver_after"):
            value = getattr(self, name)
            if value:
                yield name, value


def _as_bytes(body: object) -> bytes:
    if isinstance(body, str):
        return body.encode()
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body)
    # bytes(5) would be five zeros.
    raise TypeError(f"the body of a message is bytes or text, not {type(body).__name__}: write it as JSON, for example")


def _seconds(given: datetime | timedelta | float) -> float:
    if isinstance(given, datetime):
        return given.timestamp()
    return given.total_seconds() if isinstance(given, timedelta) else given


def wire_properties(message: Message, unique_id: str, extra: Mapping[str, str] = _NO_PROPERTIES) -> dict[str, str]:
    """All properties by the names that RocketMQ has for them. Raises IllegalMessage for what cannot be sent."""
    properties = dict(message.properties)
    for name in properties:
        if name in names.RESERVED:
            raise IllegalMessage(f"the property {name!r} is one of RocketMQ's own; choose another name")
    if message.tags:
        properties[names.TAGS] = message.tags
    if message.keys:
        properties[names.KEYS] = _joined(message.keys)
    if message.sharding_key:
        properties[names.SHARDING_KEY] = message.sharding_key
    if message.delay_level or message.deliver_at is not None or message.deliver_after is not None:
        properties.update(_when(message))
    properties[names.UNIQUE_KEY] = unique_id
    properties[names.WAIT] = "true"
    properties.update(extra)
    return properties


def _joined(keys: tuple[str, ...]) -> str:
    for key in keys:
        if not key or key.split() != [key]:
            raise IllegalMessage(f"{key!r} cannot be a key: a key has no spaces in it and is not empty")
    return " ".join(keys)


def _when(message: Message) -> Iterator[tuple[str, str]]:
    ways = [message.delay_level or None, message.deliver_at, message.deliver_after]
    if sum(way is not None for way in ways) > 1:
        raise IllegalMessage("a message has one of delay_level, deliver_at and deliver_after, not several")
    if message.deliver_at is not None:
        yield names.DELIVER_AT_MS, str(math.ceil(message.deliver_at * 1000))  # not even a part of a millisecond early
    elif message.deliver_after is not None:
        if message.deliver_after < 0:
            raise IllegalMessage(f"deliver_after is {message.deliver_after:g} s: it cannot be negative")
        yield names.DELIVER_AFTER_MS, str(math.ceil(message.deliver_after * 1000))
    else:
        if message.delay_level < 0:
            raise IllegalMessage(f"the delay level {message.delay_level} is negative; levels begin at 1")
        yield names.DELAY_LEVEL, str(message.delay_level)


def property_text(message: Message, unique_id: str, extra: Mapping[str, str] = _NO_PROPERTIES) -> str:
    """All properties in record form, as a request carries them. Raises IllegalMessage."""
    if (
        not (extra or message.properties or message.keys or message.sharding_key or message.tags or message.delay_level)
        and message.deliver_at is message.deliver_after is None
    ):
        return f"{names.UNIQUE_KEY}\x01{unique_id}\x02{names.WAIT}\x01true\x02"
    properties = wire_properties(message, unique_id, extra)
    for name, value in properties.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise IllegalMessage(f"the property {name!r} is not text: {value!r}")
        if not name or not value:
            raise IllegalMessage(f"the property {name!r} has an empty name or value, which a message cannot hold")
        if "\x01" in name or "\x02" in name or "\x01" in value or "\x02" in value:
            raise IllegalMessage(f"the property {name!r} contains a separator (0x01 or 0x02)")
    return "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
