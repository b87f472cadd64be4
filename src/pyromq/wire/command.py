"""A command is what one frame carries, a request or an answer: a code, named text fields, and a body.

It is the protocol's envelope. What a request means is in `requests`, what an answer says in `responses`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

#: RocketMQ's number for its version 5.5.0. Clients keep a broker's number and leave out what an older one lacks.
PROTOCOL_VERSION = 513
#: Our name among the protocol's languages.
LANGUAGE = "PYTHON"

#: In the order of their numbers in a binary header.
LANGUAGES = (
    "JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY", "OTHER", "HTTP", "GO", "PHP", "OMS", "RUST",
    "NODE_JS",
)  # fmt: skip
OTHER_LANGUAGE = "OTHER"

FLAG_ANSWER = 1 << 0
FLAG_ONE_WAY = 1 << 1


class Serialization(IntEnum):
    """The encoding of a frame's header; it is in the high byte of the header's length."""

    JSON = 0
    BINARY = 1


#: The body of a frame. Several pieces are written one after the other.
Body = bytes | memoryview | list[memoryview]


@dataclass(slots=True)
class Command:
    """One frame, taken apart. `correlation_id` is what an answer is matched with (RocketMQ: opaque)."""

    code: int
    fields: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    correlation_id: int = 0
    flags: int = 0
    #: Why a request was not carried out (RocketMQ: remark).
    reason: str | None = None
    language: str = LANGUAGE
    version: int = PROTOCOL_VERSION
    serialization: Serialization = Serialization.JSON

    @property
    def is_answer(self) -> bool:
        return bool(self.flags & FLAG_ANSWER)

    @property
    def is_one_way(self) -> bool:
        return bool(self.flags & FLAG_ONE_WAY)
