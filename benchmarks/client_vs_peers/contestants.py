"""Who takes part, what is measured, what is wanted of us, what differs about the others: values, nothing runs here.

Nobody's acknowledgement waits for the disk here: every server has its settings of everyday, in which a killed process
loses nothing that was acknowledged, and a machine without power may lose the last moments. Where a peer promises more
or less than that, or is driven in another way, `promise` and `sends` say so, and stand beside its figures.
"""

from __future__ import annotations

from dataclasses import dataclass

OURS = "pyromq"
#: For the window; the same client and server.
OURS_BATCHING = "pyromq-batch"
#: For the backlog: with the handler that most programs have.
OURS_ONE_BY_ONE = "pyromq-each"


@dataclass(frozen=True, slots=True)
class Line:
    """One kind of work. `works` are what a worker is asked for, the last of them is the one that counts."""

    key: str
    title: str
    unit: str
    works: tuple[str, ...]
    #: Rates are better when higher, times when lower.
    higher_is_better: bool = True
    figures: tuple[str, ...] = ("rate",)


LINES = (
    Line("window", "acknowledged sends, pipelined", "msg/s", ("window",)),
    Line("one", "sends one at a time", "msg/s", ("one",)),
    Line("latency", "send call to handler at 500/s", "ms", ("latency",), False, ("p50_ms", "p99_ms")),
    Line("backlog", "consuming a backlog, progress committed", "msg/s", ("fill", "backlog")),
    Line("start", "server start to first message", "s", ("first",), False, ("seconds",)),
    Line("client-start", "client start to first message", "s", ("first",), False, ("seconds",)),
)

EVERYTHING = tuple(line.key for line in LINES)


@dataclass(frozen=True, slots=True)
class Contestant:
    key: str
    name: str
    server: str
    driver: str
    #: From PyPI, into a Python of its own; empty for ours, which runs with the Python of the benchmark.
    packages: tuple[str, ...]
    sends: str
    promise: str
    #: Messages of a backlog for a run of five seconds.
    backlog: int
    lines: tuple[str, ...] = EVERYTHING
    options: str = ""
    #: Who fills the backlog: a faster client of the same server.
    filled_by: str = ""


LOOP = "uvloop==0.22.1"

CONTESTANTS = (
    Contestant(
        OURS,
        "PyroMQ",
        "pyromq",
        "drive_pyromq.py",
        (),
        sends="256 tasks that each await a plain send, a request per message",
        promise="async flush, answered from the mapped log; progress committed every 5 s and at the end",
        backlog=500_000,
        filled_by=OURS_BATCHING,
    ),
    Contestant(
        OURS_BATCHING,
        "PyroMQ auto_batch",
        "pyromq",
        "drive_pyromq.py",
        (),
        sends="1,024 tasks that each await a plain send, batched by the client",
        promise="as PyroMQ",
        backlog=0,
        lines=("window",),
        options="auto_batch",
    ),
    Contestant(
        OURS_ONE_BY_ONE,
        "PyroMQ, message by message",
        "pyromq",
        "drive_pyromq.py",
        (),
        sends="as PyroMQ; its handler is called for every message, the one above with up to 1,024 at a time",
        promise="as PyroMQ",
        backlog=200_000,
        lines=("backlog",),
        options="each",
        filled_by=OURS_BATCHING,
    ),
    Contestant(
        "rocketmq",
        "rocketmq-python-client",
        "rocketmq",
        "drive_rocketmq.py",
        ("rocketmq-python-client==5.1.2",),
        sends="send_async, 64 under way",
        promise="as PyroMQ: async flush; every message of a backlog is acknowledged by itself, which is not waited for",
        backlog=5_000,
    ),
    Contestant(
        "confluent",
        "confluent-kafka",
        "kafka",
        "drive_confluent.py",
        ("confluent-kafka==2.16.1",),
        sends="C library, linger 5 ms (its default), acks=all on one broker; one at a time and latency: linger 0",
        promise="no fsync, answered from the page cache; offsets committed every second and at the end",
        backlog=1_000_000,
    ),
    Contestant(
        "aiokafka",
        "aiokafka",
        "kafka",
        "drive_aiokafka.py",
        ("aiokafka==0.14.0", LOOP),
        sends="send with 2,000 futures open, linger 2 ms, batches of 256 KiB, acks=all on one broker",
        promise="as confluent-kafka",
        backlog=500_000,
        filled_by="confluent",
    ),
    Contestant(
        "nats",
        "nats-py (JetStream)",
        "nats",
        "drive_nats.py",
        ("nats-py==2.16.0", LOOP),
        sends="publish_async, 1,000 acknowledgements open",
        promise="files, fsync every 2 minutes (its default); answered from the page cache; an ack covers all before",
        backlog=200_000,
    ),
    Contestant(
        "redis",
        "redis streams",
        "redis",
        "drive_redis.py",
        ("redis==8.1.0", "hiredis==3.3.0"),
        sends="XADD in pipelines of 500, hiredis",
        promise="appendonly, fsync every second; all data in memory as well; XACK for every message",
        backlog=300_000,
    ),
)

BY_KEY = {contestant.key: contestant for contestant in CONTESTANTS}
PEERS = tuple(contestant.key for contestant in CONTESTANTS if contestant.server != OURS)


@dataclass(frozen=True, slots=True)
class Wanted:
    who: str
    line: str
    figure: str
    limit: float
    at_least: bool

    def met(self, value: float) -> bool:
        return value >= self.limit if self.at_least else value <= self.limit


WANTED = (
    Wanted(OURS, "window", "rate", 35_000, True),
    Wanted(OURS_BATCHING, "window", "rate", 150_000, True),
    Wanted(OURS, "one", "rate", 6_000, True),
    Wanted(OURS, "latency", "p50_ms", 0.7, False),
    Wanted(OURS, "latency", "p99_ms", 1.5, False),
    Wanted(OURS, "backlog", "rate", 200_000, True),
    Wanted(OURS, "start", "seconds", 1.0, False),
)

#: What is different about a peer on a line: printed beside it when it is ahead of us there. Differences of design, not
#: causes that were measured.
WHAT_DIFFERS = {
    ("window", "confluent"): "its C library batches; our line with batching is the one to compare",
    ("window", "aiokafka"): "it batches; our line with batching is the one to compare",
    ("window", "redis"): "500 commands go out in one write; our line with batching is the one to compare",
    ("window", "nats"): "a compiled server, and a request without properties",
    ("one", "redis"): "a compiled server, requests and answers packed and read by C (hiredis), no asyncio",
    ("one", "nats"): "a compiled server, and a request without properties",
    ("latency", "redis"): "a compiled server, no asyncio: a thread of its own waits in a blocking read",
    ("latency", "nats"): "a compiled server that pushes; ours is asked, and holds the question",
    ("latency", "confluent"): "its C library sends and reads in threads of its own, outside Python's lock",
    ("backlog", "confluent"): "its C library reads ahead and decodes in threads of its own, outside Python's lock",
    ("backlog", "aiokafka"): "batches are decoded by compiled code, and a message has no properties of its own",
    ("backlog", "redis"): "answers are read by C (hiredis)",
    ("start", "nats"): "a native binary; ours starts a Python with a name server and a broker in it",
    ("start", "redis"): "a native binary; ours starts a Python with a name server and a broker in it",
    ("client-start", "aiokafka"): "one server to connect to, and topics that were made before",
    ("client-start", "nats"): "one server to connect to; ours asks a name server and joins a group",
    ("client-start", "redis"): "one server to connect to; ours asks a name server and joins a group",
}


def selected_lines(only: str | None) -> list[Line]:
    wanted = set(only.split(",")) if only else set(EVERYTHING)
    if unknown := wanted - set(EVERYTHING):
        raise ValueError(f"no such line: {', '.join(sorted(unknown))}; there are {', '.join(EVERYTHING)}")
    return [line for line in LINES if line.key in wanted]


def selected_contestants(peers: str | None) -> list[Contestant]:
    """Ours always, and the peers named; all of them without a name, none with "none"."""
    wanted = set(PEERS if peers is None else peers.split(",")) - {"none"}
    if unknown := wanted - set(PEERS):
        raise ValueError(f"no such peer: {', '.join(sorted(unknown))}; there are {', '.join(PEERS)}")
    return [one for one in CONTESTANTS if one.server == OURS or one.key in wanted]
