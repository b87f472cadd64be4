"""The epochs of a log and their leaders: RocketMQ's EpochEntryCache, with further fields between PyroMQ's brokers.

A broker of RocketMQ leaves `by`, `member` and the rest out, and its readers skip them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

import orjson

from pyromq.errors import WrongShape
from pyromq.model.json_form import INT64, OFFSET, Json, expect, from_json, in_json, some_objects, text, to_json
from pyromq.wire.bodies.reading import read_body

#: A life has one: more lives than any broker has.
MAX_ENTRIES = 100_000
MAX_BYTES = 16 << 20
MAX_MEMBERS = 100


@dataclass(frozen=True, slots=True)
class EpochEntry:
    """One leadership, from `start` on; `end` is the start of the next one, or the log's end."""

    number: int = field(metadata=in_json("epoch", OFFSET))
    start: int = field(metadata=in_json("startOffset", OFFSET))
    end: int = field(default=0, metadata=in_json("endOffset", INT64))
    #: The member and which of its lives; RocketMQ's brokers do not say.
    by: str = field(default="", metadata=in_json("by", text))
    unknown: Mapping[str, Json] = field(default_factory=dict)

    def to_json(self) -> dict[str, Json]:
        return {"epoch": self.number, "startOffset": self.start, "endOffset": self.end, "by": self.by}


def _lives(value: Json) -> tuple[str, ...]:
    expect(isinstance(value, list) and len(value) <= MAX_ENTRIES, "a list", value)
    return tuple(text(one) for one in value)


def _entries(value: Json) -> tuple[EpochEntry, ...]:
    objects = some_objects(value)
    if len(objects) > MAX_ENTRIES:
        raise WrongShape(f"{len(objects)} epochs, the limit is {MAX_ENTRIES}")
    entries = tuple(from_json(EpochEntry, one) for one in objects)
    for one, following in pairwise(entries):
        expect(one.number <= following.number and one.start <= following.start, "epochs in their order", value)
    return entries


@dataclass(frozen=True, slots=True)
class KnownMember:
    """Another broker of the name, as the one that answers knows it."""

    address: str = field(metadata=in_json("address", text))
    broker_id: int = field(metadata=in_json("brokerId", OFFSET))
    ha_address: str = field(default="", metadata=in_json("haAddress", text))
    member: str = field(default="", metadata=in_json("member", text))
    unknown: Mapping[str, Json] = field(default_factory=dict)


def _members(value: Json) -> tuple[KnownMember, ...]:
    objects = some_objects(value)
    if len(objects) > MAX_MEMBERS:
        raise WrongShape(f"{len(objects)} members, the limit is {MAX_MEMBERS}")
    return tuple(from_json(KnownMember, one) for one in objects)


@dataclass(frozen=True, slots=True)
class BrokerEpochs:
    """The answer of one broker."""

    cluster: str = field(default="", metadata=in_json("clusterName", text))
    name: str = field(default="", metadata=in_json("brokerName", text))
    broker_id: int = field(default=0, metadata=in_json("brokerId", INT64))
    entries: tuple[EpochEntry, ...] = field(default=(), metadata=in_json("epochList", _entries))
    end: int = field(default=0, metadata=in_json("maxOffset", OFFSET))
    #: Ours: where the log begins.
    start: int = field(default=0, metadata=in_json("minOffset", OFFSET))
    #: Ours: the largest number known, which may be of an epoch without a byte. 0: none.
    number: int = field(default=0, metadata=in_json("number", OFFSET))
    #: Ours: which store this is. Empty: a broker of RocketMQ.
    member: str = field(default="", metadata=in_json("member", text))
    role: str = field(default="", metadata=in_json("role", text))
    address: str = field(default="", metadata=in_json("address", text))
    #: Ours: where slaves copy the log.
    ha_address: str = field(default="", metadata=in_json("haAddress", text))
    #: Ours: what its clock says, which counts from some moment of its own. 0: it does not say.
    clock_ms: int = field(default=0, metadata=in_json("clockMillis", OFFSET))
    #: Ours: for one role request or one replication connection of the asker, which has proved the group secret.
    nonce: str = field(default="", metadata=in_json("nonce", text))
    #: Ours: the names of its last lives as a leader, `EpochEntry.by` of each; empty if it does not say.
    led_as: tuple[str, ...] = field(default=(), metadata=in_json("ledAs", _lives))
    #: Ours: the lives in other logs that its promotions gave up: bytes that they wrote may be cut.
    gave_up: tuple[str, ...] = field(default=(), metadata=in_json("gaveUp", _lives))
    #: Ours: the member whose log is a fork of its own, so that it neither leads nor follows; empty if there is none.
    held_for: str = field(default="", metadata=in_json("heldFor", text))
    #: Ours: the other brokers of the name that it knows; None if it does not say.
    members: tuple[KnownMember, ...] | None = field(default=None, metadata=in_json("members", _members))
    unknown: Mapping[str, Json] = field(default_factory=dict)

    @property
    def newest(self) -> int:
        """Return the largest known epoch number, of this broker or of an entry."""
        return max((self.number, *(one.number for one in self.entries)))

    def for_strangers(self) -> BrokerEpochs:
        """Return the part for askers without a proof: the log, without the stores and addresses of this name.

        A slave that has its master from the settings and no shared secret still compares logs by it.
        """
        return BrokerEpochs(
            cluster=self.cluster, name=self.name, broker_id=self.broker_id, entries=self.entries, end=self.end,
            start=self.start, number=self.number, gave_up=self.gave_up,
        )  # fmt: skip

    def encode(self) -> bytes:
        return orjson.dumps(
            {
                "clusterName": self.cluster,
                "brokerName": self.name,
                "brokerId": self.broker_id,
                "epochList": [one.to_json() for one in self.entries],
                "maxOffset": self.end,
                "minOffset": self.start,
                "number": self.number,
                "member": self.member,
                "role": self.role,
                "address": self.address,
                "haAddress": self.ha_address,
                "clockMillis": self.clock_ms,
                "nonce": self.nonce,
                "ledAs": list(self.led_as),
                "gaveUp": list(self.gave_up),
                "heldFor": self.held_for,
                "members": None if self.members is None else [to_json(one) for one in self.members],
            }
        )

    @classmethod
    def decode(cls, body: bytes) -> BrokerEpochs:
        """Raises BadRequest."""
        return read_body(cls, body, "the list of epochs", MAX_BYTES)
