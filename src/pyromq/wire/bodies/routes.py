"""Bodies about who serves which topic: routes, clusters, topic lists, and what a broker registers.

Each is a value with `encode` and `decode`. What clients read is written in either JSON dialect (see `fastjson`).
For any bytes, `decode` returns a value or raises `NotJson` or `WrongShape`, and takes bounded memory: compressed
bytes are unpacked up to a limit only.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeVar

from pyromq.errors import NotJson, WrongShape
from pyromq.model import lenient_json
from pyromq.model.data_version import DataVersion
from pyromq.model.json_form import (
    COUNT,
    INT32,
    INT32_MAX,
    INT64_MAX,
    Json,
    JsonObject,
    a_name,
    an_object,
    expect,
    from_json,
    in_json,
    text,
    texts_by_name,
    to_json,
    true_or_false,
)
from pyromq.model.topic import TopicConfig
from pyromq.wire import fastjson

#: A frame: the compressed form has some 60 bytes for each topic before it is compressed.
MAX_INFLATED_BYTES = 16 << 20
#: Topics in one registration: as many as fit into a frame the way RocketMQ writes them.
MAX_TOPICS = 100_000
#: JSON values of one: each is an object in memory.
MAX_VALUES = 11 * MAX_TOPICS
#: From this version on a registration is more than a list of topics (RocketMQ 3.0.11).
_SINCE_REGISTRATION_BODY = 37
#: From this version on static topics follow in a compressed one (RocketMQ 5.0.0).
_SINCE_STATIC_TOPICS = 413

_INT = struct.Struct(">i")
_NOTHING: Mapping[str, Json] = MappingProxyType({})

Content = TypeVar("Content")
#: The queue mappings of a topic that spans brokers, as a broker registers them; passed to clients unchanged.
Mappings = Mapping[str, JsonObject]


def _nothing() -> Mapping[str, Json]:
    return _NOTHING


def _dumps(form: Json, standard: bool) -> bytes:
    return fastjson.dumps_standard(form) if standard else fastjson.dumps(form)


# --- rules -----------------------------------------------------------------------------------------------------------


def _a_list(value: Json) -> list[Json]:
    expect(isinstance(value, list), "a list", value)
    return list(value)


def _text_or_none(value: Json) -> str | None:
    return None if value is None else text(value)


def _names(value: Json) -> tuple[str, ...]:
    return tuple(text(item) for item in _a_list(value))


def _addresses(value: Json) -> dict[int, str]:
    """Broker ids are 64-bit numbers, here text as every key of JSON is."""
    found: dict[int, str] = {}
    for key, address in an_object(value).items():
        digits = key.removeprefix("-")
        is_number = digits.isascii() and digits.isdigit() and len(digits) <= 19
        expect(is_number and int(key) <= INT64_MAX, "a broker id", key)
        found[int(key)] = text(address)
    return found


def _part(form: JsonObject, key: str, rule: Callable[[Json], Content], default: Json) -> Content:
    """A part of a body, by its rule; one that is absent or null is the default."""
    found = form.get(key)
    return rule(default if found is None else found)


def _require_few(topics: int) -> int:
    if topics > MAX_TOPICS:
        raise WrongShape(f"it has {topics} topics; {MAX_TOPICS} are the limit")
    return topics


def _objects_by_name(value: Json) -> dict[str, JsonObject]:
    return {text(name): an_object(item) for name, item in an_object(value).items()}


# --- routes ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class QueueData:
    """A topic's queues on the brokers of one name."""

    broker_name: str = field(metadata=in_json("brokerName", a_name))
    read_queues: int = field(default=0, metadata=in_json("readQueueNums", COUNT))
    write_queues: int = field(default=0, metadata=in_json("writeQueueNums", COUNT))
    permission: int = field(default=0, metadata=in_json("perm", COUNT))
    system_flag: int = field(default=0, metadata=in_json("topicSysFlag", INT32))
    unknown: Mapping[str, Json] = field(default_factory=_nothing)


@dataclass(frozen=True, slots=True)
class BrokerData:
    """The brokers of one name. Id 0 is the master."""

    cluster: str = field(metadata=in_json("cluster", text))
    name: str = field(metadata=in_json("brokerName", a_name))
    addresses: Mapping[int, str] = field(default_factory=dict, metadata=in_json("brokerAddrs", _addresses))
    zone: str | None = field(default=None, metadata=in_json("zoneName", text))
    #: True if a slave may stand in for a missing master.
    acting_master: bool = field(default=False, metadata=in_json("enableActingMaster", true_or_false))
    unknown: Mapping[str, Json] = field(default_factory=_nothing)


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """RocketMQ's TopicRouteData: where a topic's queues are."""

    queues: tuple[QueueData, ...] = ()
    brokers: tuple[BrokerData, ...] = ()
    #: `broker:queues;broker:queues` for a topic whose messages are ordered over all brokers.
    order_conf: str | None = None
    #: By broker name; for a static topic only.
    mappings: Mappings = field(default_factory=dict)

    def encode(self, *, standard: bool) -> bytes:
        form: JsonObject = {
            "brokerDatas": [to_json(broker) for broker in self.brokers],
            "filterServerTable": {},
            "queueDatas": [to_json(queue) for queue in self.queues],
        }
        if self.order_conf is not None:
            form["orderTopicConf"] = self.order_conf
        if self.mappings:
            form["topicQueueMappingByBroker"] = dict(self.mappings)
        return _dumps(form, standard)

    @classmethod
    def decode(cls, data: bytes) -> TopicRoute:
        form = an_object(lenient_json.loads(data))
        return cls(
            tuple(from_json(QueueData, one) for one in _part(form, "queueDatas", _a_list, [])),
            tuple(from_json(BrokerData, one) for one in _part(form, "brokerDatas", _a_list, [])),
            _part(form, "orderTopicConf", _text_or_none, None),
            _part(form, "topicQueueMappingByBroker", _objects_by_name, {}),
        )


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """Every broker by name, and the names in each cluster."""

    brokers: Mapping[str, BrokerData] = field(default_factory=dict)
    clusters: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def encode(self, *, standard: bool) -> bytes:
        form = {
            "brokerAddrTable": {name: to_json(broker) for name, broker in self.brokers.items()},
            "clusterAddrTable": {cluster: list(names) for cluster, names in self.clusters.items()},
        }
        return _dumps(form, standard)

    @classmethod
    def decode(cls, data: bytes) -> ClusterInfo:
        form = an_object(lenient_json.loads(data))
        brokers = _part(form, "brokerAddrTable", an_object, {})
        clusters = _part(form, "clusterAddrTable", an_object, {})
        return cls(
            {text(name): from_json(BrokerData, one) for name, one in brokers.items()},
            {text(cluster): _names(names) for cluster, names in clusters.items()},
        )


@dataclass(frozen=True, slots=True)
class MemberGroup:
    """RocketMQ's BrokerMemberGroup: the brokers of one name."""

    cluster: str
    broker_name: str
    addresses: Mapping[int, str] = field(default_factory=dict)

    def encode(self, *, standard: bool) -> bytes:
        group = {
            "brokerAddrs": dict(self.addresses),
            "brokerName": self.broker_name,
            "cluster": self.cluster,
        }
        return _dumps({"brokerMemberGroup": group}, standard)

    @classmethod
    def decode(cls, data: bytes) -> MemberGroup:
        form = _part(an_object(lenient_json.loads(data)), "brokerMemberGroup", an_object, {})
        return cls(
            _part(form, "cluster", text, ""),
            _part(form, "brokerName", text, ""),
            _part(form, "brokerAddrs", _addresses, {}),
        )


@dataclass(frozen=True, slots=True)
class TopicList:
    topics: tuple[str, ...] = ()
    #: The next address to ask: a broker that has system topics of its own.
    broker_address: str | None = None

    def encode(self) -> bytes:
        form: JsonObject = {"topicList": list(self.topics)}
        if self.broker_address is not None:
            form["brokerAddr"] = self.broker_address
        return fastjson.dumps_standard(form)

    @classmethod
    def decode(cls, data: bytes) -> TopicList:
        form = an_object(lenient_json.loads(data))
        return cls(_part(form, "topicList", _names, []), _part(form, "brokerAddr", _text_or_none, None))


def encode_kv_table(table: Mapping[str, str]) -> bytes:
    return fastjson.dumps_standard({"table": dict(table)})


def decode_kv_table(data: bytes) -> dict[str, str]:
    return _part(an_object(lenient_json.loads(data)), "table", texts_by_name, {})


def encode_data_version(version: DataVersion) -> bytes:
    return fastjson.dumps_standard(to_json(version))


def decode_data_version(data: bytes) -> DataVersion:
    return from_json(DataVersion, lenient_json.loads(data))


# --- topics of a broker ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TopicConfigs:
    """RocketMQ's TopicConfigSerializeWrapper: a broker's topics, and how new the list is."""

    version: DataVersion
    topics: tuple[TopicConfig, ...] = ()
    mappings: Mappings = field(default_factory=dict)

    def as_json(self) -> JsonObject:
        return {
            "dataVersion": to_json(self.version),
            "mappingDataVersion": to_json(DataVersion()),
            "topicConfigTable": {topic.name: to_json(topic) for topic in self.topics},
            "topicQueueMappingDetailMap": {},
            "topicQueueMappingInfoMap": dict(self.mappings),
        }

    @classmethod
    def of_json(cls, value: Json) -> TopicConfigs:
        return finished(cls.reading(value))

    @classmethod
    def reading(cls, value: Json) -> Generator[None, None, TopicConfigs]:
        """Read it in steps, one for each topic: there may be very many."""
        form = an_object(value)
        table = _part(form, "topicConfigTable", an_object, {})
        _require_few(len(table))
        topics = []
        for one in table.values():
            topics.append(from_json(TopicConfig, one))
            yield
        return cls(
            _part(form, "dataVersion", lambda one: from_json(DataVersion, one), {}),
            tuple(topics),
            _part(form, "topicQueueMappingInfoMap", _objects_by_name, {}),
        )

    def encode(self) -> bytes:
        return b"".join(self.pieces())

    def pieces(self) -> Iterator[bytes]:
        """The same in pieces, one for each topic."""
        before = {"dataVersion": to_json(self.version), "mappingDataVersion": to_json(DataVersion())}
        yield fastjson.dumps_standard(before)[:-1] + b',"topicConfigTable":'
        yield from fastjson.map_pieces((topic.name, to_json(topic)) for topic in self.topics)
        after = {"topicQueueMappingDetailMap": {}, "topicQueueMappingInfoMap": dict(self.mappings)}
        yield b"," + fastjson.dumps_standard(after)[1:]

    @classmethod
    def decode(cls, data: bytes) -> TopicConfigs:
        return cls.of_json(lenient_json.loads(data))


def encode_registration(configs: TopicConfigs, *, compressed: bool = False) -> bytes:
    """RocketMQ's RegisterBrokerBody."""
    if compressed:
        return zlib.compress(b"".join(_registration_pieces(configs)), zlib.Z_BEST_COMPRESSION)
    return fastjson.dumps_standard({"filterServerList": [], "topicConfigSerializeWrapper": configs.as_json()})


def finished(steps: Generator[None, None, Content]) -> Content:
    """Take all steps at once."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: Content = end.value
            return found


def decode_registration(data: bytes, *, compressed: bool, version: int) -> TopicConfigs:
    """Decode the registration of a broker that speaks this version of the protocol."""
    return finished(reading_registration(data, compressed=compressed, version=version))


def reading_registration(data: bytes, *, compressed: bool, version: int) -> Generator[None, None, TopicConfigs]:
    """The same in steps."""
    if not data:
        return TopicConfigs(DataVersion())
    if compressed and version >= _SINCE_REGISTRATION_BODY:
        return (yield from _reading_compressed(_inflate(data), version))
    values = data.count(b",") + data.count(b"{") + data.count(b"[")
    if values > MAX_VALUES:
        raise WrongShape(f"it has {values} values; {MAX_VALUES} are the limit")
    form = lenient_json.loads_large(data)
    if version >= _SINCE_REGISTRATION_BODY:
        form = _part(an_object(form), "topicConfigSerializeWrapper", an_object, {})
    return (yield from TopicConfigs.reading(form))


# The compressed form: 4+n data version, 4 number of topics, 4+n each topic, 4+n filter servers, and from 5.0.0 on
# 4 number of static topics, 4+n each. All of it JSON but the topics: name, numbers and attributes separated by spaces.


def _registration_pieces(configs: TopicConfigs) -> Iterable[bytes]:
    yield from _sized(encode_data_version(configs.version))
    yield _INT.pack(len(configs.topics))
    for topic in configs.topics:
        yield from _sized(_topic_line(topic))
    yield from _sized(b"[]")
    yield _INT.pack(len(configs.mappings))
    for mapping in configs.mappings.values():
        yield from _sized(fastjson.dumps_standard(mapping))


def _sized(piece: bytes) -> tuple[bytes, bytes]:
    return _INT.pack(len(piece)), piece


def _topic_line(topic: TopicConfig) -> bytes:
    attributes = fastjson.dumps_standard(dict(topic.attributes)).decode()
    return (
        f"{topic.name} {topic.read_queues} {topic.write_queues} {topic.permission} {topic.filter_type} {attributes}"
    ).encode()


def _inflate(data: bytes) -> bytes:
    unpacker = zlib.decompressobj()
    try:
        plain = unpacker.decompress(data, MAX_INFLATED_BYTES)
    except zlib.error as problem:
        raise WrongShape(f"it cannot be unpacked: {problem}") from None
    if not unpacker.eof:
        too_much = bool(unpacker.unconsumed_tail)
        raise WrongShape(f"it unpacks to more than {MAX_INFLATED_BYTES} bytes" if too_much else "its end is missing")
    return plain


class _Pieces:
    """Takes the unpacked bytes apart from the front."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self) -> int:
        """A length or a count: never more than there are bytes left."""
        if len(self._data) - self._at < _INT.size:
            raise WrongShape("it ends where a number should be")
        found: int = _INT.unpack_from(self._data, self._at)[0]
        self._at += _INT.size
        if not 0 <= found <= len(self._data) - self._at:
            raise WrongShape(f"it says {found} and has {len(self._data) - self._at} bytes left")
        return found

    def piece(self) -> bytes:
        size = self.number()
        self._at += size
        return self._data[self._at - size : self._at]


def _reading_compressed(data: bytes, version: int) -> Generator[None, None, TopicConfigs]:
    pieces = _Pieces(data)
    data_version = decode_data_version(pieces.piece())
    topics = []
    for _ in range(_require_few(pieces.number())):
        topics.append(_read_topic_line(pieces.piece()))
        yield
    pieces.piece()  # filter servers, which there are no more
    mappings: dict[str, JsonObject] = {}
    if version >= _SINCE_STATIC_TOPICS:
        for _ in range(_require_few(pieces.number())):
            mapping = an_object(lenient_json.loads(pieces.piece()))
            mappings[a_name(mapping.get("topic", ""))] = mapping
            yield
    return TopicConfigs(data_version, tuple(topics), mappings)


def _read_topic_line(line: bytes) -> TopicConfig:
    try:
        words = line.decode().split(" ", 5)
    except UnicodeDecodeError:
        raise WrongShape("a topic is not UTF-8") from None
    expect(len(words) >= 5, "a topic with its queues and permission", words[0])
    read_queues, write_queues, permission = map(_read_count, words[1:4])
    attributes = _read_attributes("".join(words[5:]))
    return TopicConfig(a_name(words[0]), read_queues, write_queues, permission, words[4], attributes=attributes)


def _read_count(word: str) -> int:
    expect(word.isascii() and word.isdigit() and len(word) <= 10 and int(word) <= INT32_MAX, "a number", word)
    return int(word)


def _read_attributes(written: str) -> dict[str, str]:
    """Attributes that cannot be read are left out, as RocketMQ does: a topic is more than they are."""
    try:
        return texts_by_name(lenient_json.loads(written.encode())) if written else {}
    except (NotJson, WrongShape):
        return {}
