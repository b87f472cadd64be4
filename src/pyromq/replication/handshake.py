"""The handshake of PyroMQ's own followers, before RocketMQ's stream begins. No input or output.

    follower → primary   HELLO, length, JSON   its identity, epochs and extent of its log, a digest of its last bytes
    primary → follower   HELLO, length, JSON   a nonce, its broker's address, and a proof over both; or a refusal
    follower → primary   HELLO, length, JSON   the follower's proof, over that nonce and over all of its first frame
    primary → follower   HELLO, length, JSON   whether it counts for acknowledgements; or a refusal

HELLO is a number that no report can be. Apache's brokers are never sent it, and never send it: their stream begins with
a report. A recorded handshake is worth nothing on another connection: the nonce is new on each.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol, TypeVar

import orjson

from pyromq.errors import BadFrame, BadRequest
from pyromq.model.json_form import OFFSET, InJson, Json, expect, in_json, some_objects, text, to_json, true_or_false
from pyromq.replication.frames import HELLO, IS_OURS, MAX_HELLO, PUSH, REPORT
from pyromq.replication.log_matching import Epoch, LogExtent
from pyromq.wire.bodies.reading import read_body

#: Bytes below the end of the follower's log that both sides compare.
DIGEST_BYTES = 64 << 10
OF_FOLLOWER = "replication follower"
OF_PRIMARY = "replication primary"

Body = TypeVar("Body", bound=InJson)


class Secret(Protocol):
    """The group secret: `pyromq.auth.group_secret`."""

    def proof(self, purpose: str, *parts: str) -> str: ...

    def verify(self, proof: str, purpose: str, *parts: str) -> bool: ...


def _epochs(value: Json) -> tuple[Epoch, ...]:
    found = tuple(
        Epoch(OFFSET(one.get("epoch")), OFFSET(one.get("startOffset")), text(one.get("by", "")))
        for one in some_objects(value)
    )
    for one, following in pairwise(found):
        expect(one.number <= following.number and one.start <= following.start, "epochs in their order", value)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """A follower's description of itself and its log."""

    cluster: str = field(metadata=in_json("cluster", text))
    name: str = field(metadata=in_json("brokerName", text))
    member: str = field(metadata=in_json("member", text))
    broker_id: int = field(metadata=in_json("brokerId", OFFSET))
    address: str = field(metadata=in_json("address", text))
    ha_address: str = field(default="", metadata=in_json("haAddress", text))
    process: str = field(metadata=in_json("process", text))
    nonce: str = field(metadata=in_json("nonce", text))
    epochs: tuple[Epoch, ...] = field(default=(), metadata=in_json("epochs", _epochs))
    start: int = field(metadata=in_json("start", OFFSET))
    end: int = field(metadata=in_json("end", OFFSET))
    #: Of the bytes from here to `end`.
    digest_from: int = field(metadata=in_json("digestFrom", OFFSET))
    digest: str = field(metadata=in_json("digest", text))
    unknown: Mapping[str, Json] = field(default_factory=dict)

    @property
    def extent(self) -> LogExtent:
        """Raises BadFrame if there is no such log."""
        if not self.start <= self.digest_from <= self.end:
            raise BadFrame(f"a follower has a log from {self.start} to {self.end}, compared from {self.digest_from} on")
        return LogExtent(self.start, self.end, self.epochs)

    def encode(self) -> bytes:
        epochs = [{"epoch": one.number, "startOffset": one.start, "by": one.by} for one in self.epochs]
        return orjson.dumps({**to_json(self), "epochs": epochs})


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome:
    """The primary's answer to a hello."""

    member: str = field(default="", metadata=in_json("member", text))
    nonce: str = field(default="", metadata=in_json("nonce", text))
    #: The address of the primary's broker, for its topics, groups and progress.
    address: str = field(default="", metadata=in_json("address", text))
    #: Over the address, too. Empty if the primary has no secret.
    proof: str = field(default="", metadata=in_json("proof", text))
    refused: str = field(default="", metadata=in_json("refused", text))
    for_good: bool = field(default=False, metadata=in_json("forGood", true_or_false))
    unknown: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """Empty if the follower has no secret."""

    proof: str = field(default="", metadata=in_json("proof", text))
    unknown: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """The end of a handshake: the stream follows, or the connection ends."""

    #: Why the follower does not count for acknowledgements; empty if it counts.
    uncounted: str = field(default="", metadata=in_json("uncounted", text))
    refused: str = field(default="", metadata=in_json("refused", text))
    for_good: bool = field(default=False, metadata=in_json("forGood", true_or_false))
    unknown: Mapping[str, Json] = field(default_factory=dict)


def framed(payload: bytes) -> bytes:
    assert len(payload) <= MAX_HELLO, f"a handshake of {len(payload)} bytes"
    return PUSH.pack(HELLO, len(payload)) + payload


def frame_of(value: InJson) -> bytes:
    return framed(orjson.dumps(to_json(value)))


def read(kind: type[Body], payload: bytes) -> Body:
    """Raises BadFrame."""
    try:
        return read_body(kind, payload, "a frame of the handshake", MAX_HELLO)
    except BadRequest as problem:
        raise BadFrame(str(problem)) from None


class HelloReader:
    """Takes the frames of a handshake from the first bytes of a connection, in any pieces."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> None:
        self._rest += data

    @property
    def is_undecided(self) -> bool:
        """Return whether too little has come to tell a handshake from a report."""
        return len(self._rest) < 8

    @property
    def is_hello(self) -> bool:
        return self._rest[:8] == PUSH.pack(HELLO, 0)[:8]

    def take_question(self) -> bool:
        """Return whether the next word asks if this is a primary of ours, and drop that word."""
        if self._rest[:8] != REPORT.pack(IS_OURS):
            return False
        self._rest = self._rest[8:]
        return True

    def next(self) -> bytes | None:
        """Return the payload of the next frame; `None` if it has not come yet. Raises BadFrame."""
        if len(self._rest) < PUSH.size:
            return None
        word, length = PUSH.unpack_from(self._rest)
        if word != HELLO or not 0 <= length <= MAX_HELLO:
            raise BadFrame(f"a frame of a handshake begins with {word} and has {length} bytes")
        if len(self._rest) < PUSH.size + length:
            return None
        payload = self._rest[PUSH.size : PUSH.size + length]
        self._rest = self._rest[PUSH.size + length :]
        return payload

    def take_rest(self) -> bytes:
        """Return the bytes that follow the handshake."""
        rest, self._rest = self._rest, b""
        return rest


def digest_start(log_start: int, log_end: int, primary_start: int) -> int:
    """Return the position from which both sides compare bytes: below it the primary may have removed its log."""
    return min(max(log_start, log_end - DIGEST_BYTES, primary_start), log_end)


def digest_between(read_log: Callable[[int, int], memoryview], start: int, end: int) -> str:
    """Return the digest of these bytes of a log, or of as many as there are. Raises OffsetNotFound."""
    found = hashlib.sha256()
    while start < end and (part := read_log(start, end - start)):
        found.update(part)
        start += len(part)
    return f"{start}:{found.hexdigest()}"


def follower_parts(hello: bytes, welcome: Welcome) -> tuple[str, ...]:
    """Return the parts of a follower's proof."""
    return welcome.nonce, welcome.member, hashlib.sha256(hello).hexdigest()


def primary_parts(hello: Hello, welcome: Welcome) -> tuple[str, ...]:
    """Return the parts of a primary's proof."""
    return hello.nonce, hello.member, welcome.member, welcome.nonce, welcome.address
