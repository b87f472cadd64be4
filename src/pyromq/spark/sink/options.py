"""The options of `df.write` and `df.writeStream` with `format("pyromq")`, checked before anything is sent.

They travel to the executors, so they are plain values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from pyromq.errors import ConfigError, IllegalName
from pyromq.model.names import check_group, check_topic
from pyromq.spark.connecting import Cluster
from pyromq.spark.option_reader import Given
from pyromq.spark.source.options import CONNECTION, LONGEST_MS, connection_of

#: Any process that writes may answer for any other, so they share one producer group.
DEFAULT_GROUP = "pyromq-spark"
NO_COMPRESSION = "none"
COMPRESSIONS = (NO_COMPRESSION, "zlib", "lz4", "zstd")
#: A broker's default request limit, less room for the header.
MOST_BATCH_BYTES = 3 << 20

BATCH_BYTES = 512 << 10
IN_FLIGHT = 6
HALVES_IN_FLIGHT = 256
SEND_TIMEOUT_S = 60.0
RETRIES = 50
PATIENCE_S = 600

SINK = (
    *CONNECTION, "topic", "mode", "group", "batchBytes", "inFlight", "sendTimeoutMs", "retries", "compression",
    "writerId", "writerSecret", "batchId", "transactionPatience",
)  # fmt: skip


class Mode(Enum):
    #: Every row is stored, some perhaps twice when something fails.
    AT_LEAST_ONCE = "atLeastOnce"
    #: The broker knows each row by its number, and stores it once.
    IDEMPOTENT = "idempotent"
    #: All rows of a batch are seen by consumers, once, or none.
    TRANSACTIONAL = "transactional"


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """Everything, checked."""

    cluster: Cluster
    #: For rows that name none.
    topic: str | None = None
    mode: Mode = Mode.AT_LEAST_ONCE
    group: str = DEFAULT_GROUP
    #: A request with several messages is about so large.
    batch_bytes: int = BATCH_BYTES
    #: Requests of one task that wait for their answers: with several messages each, or halves of transactions.
    in_flight: int = IN_FLIGHT
    halves_in_flight: int = HALVES_IN_FLIGHT
    #: The time limit of a request over all tries, and the number of tries.
    send_timeout_s: float = SEND_TIMEOUT_S
    retries: int = RETRIES
    compression: str = NO_COMPRESSION
    #: The name of a batch job across runs; a stream has its own.
    writer_id: str | None = None
    #: Keeps others from writing in the name of this query or job, where its name can be guessed.
    writer_secret: str | None = field(default=None, repr=False)
    batch_id: int = 0
    #: Brokers check a half after this time: a batch should be shorter.
    patience_s: int = PATIENCE_S

    @property
    def compresses(self) -> bool:
        return self.compression != NO_COMPRESSION


def sink_options(options: Mapping[str, str], *, is_stream: bool) -> SinkOptions:
    """Raises ConfigError."""
    given = _given(options)
    if is_stream:
        given.refuse(("writerId", "batchId"), "is for df.write: a stream is named by its checkpoint")
    mode = Mode(given.choice("mode", [mode.value for mode in Mode], Mode.AT_LEAST_ONCE.value))
    writer_id = given.text("writerId")
    if mode is Mode.IDEMPOTENT and not is_stream and writer_id is None:
        raise ConfigError(
            "mode idempotent needs the option writerId: a name that is the same when this job runs again; without it "
            "nothing tells a row that was written before",
            "writerId",
        )
    _check_writer(given, writer_id)
    in_flight = given.number("inFlight", least=1, most=10_000)
    return SinkOptions(
        cluster=connection_of(given),
        topic=_topic(given),
        mode=mode,
        group=_group(given),
        batch_bytes=given.size("batchBytes", least=1024, most=MOST_BATCH_BYTES) or BATCH_BYTES,
        in_flight=in_flight or IN_FLIGHT,
        halves_in_flight=in_flight or HALVES_IN_FLIGHT,
        send_timeout_s=_milliseconds(given, "sendTimeoutMs", SEND_TIMEOUT_S),
        retries=_or(given.number("retries", most=10_000), RETRIES),
        compression=given.choice("compression", COMPRESSIONS, NO_COMPRESSION),
        writer_id=writer_id,
        writer_secret=given.text("writerSecret"),
        batch_id=_or(given.number("batchId"), 0),
        patience_s=max(int(given.seconds("transactionPatience", PATIENCE_S)), 1),
    )


def _given(options: Mapping[str, str]) -> Given:
    if any(name.lower() == "path" for name in options):
        raise ConfigError(
            "save() and start() of the format pyromq take no path: name the topic with the option topic, or have a "
            "column topic",
            "path",
        )
    return Given(options, SINK)


def _topic(given: Given) -> str | None:
    topic = given.text("topic")
    if topic is not None:
        try:
            check_topic(topic)
        except IllegalName as error:
            raise given.wrong("topic", str(error)) from None
    return topic


def _group(given: Given) -> str:
    group = given.text("group", DEFAULT_GROUP) or DEFAULT_GROUP
    try:
        check_group(group)
    except IllegalName as error:
        raise given.wrong("group", str(error)) from None
    return group


def _check_writer(given: Given, writer_id: str | None) -> None:
    """It stands in properties of messages, between colons and slashes."""
    if writer_id is not None and not (writer_id.isascii() and writer_id.replace("-", "").replace("_", "").isalnum()):
        raise given.wrong("writerId", "it is made of letters, digits, - and _")
    if writer_id is not None and len(writer_id) > 64:
        raise given.wrong("writerId", "it has at most 64 characters")


def _milliseconds(given: Given, name: str, default_s: float) -> float:
    found = given.number(name, least=1, most=LONGEST_MS)
    return default_s if found is None else found / 1000


def _or(value: int | None, default: int) -> int:
    return default if value is None else value
