"""`pyromq send` and `pyromq consume`: try a cluster from a shell."""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
import sys
import zlib
from collections.abc import Iterator
from typing import Annotated, NamedTuple, TypeAlias

import typer

from pyromq.cli import output
from pyromq.cli.output import escaped
from pyromq.clock import SystemClock
from pyromq.errors import (
    CallFailed,
    ConfigError,
    NotFound,
    PyroMQError,
    ServiceError,
    TopicNotFound,
    Unreachable,
)
from pyromq.model.message import StoredMessage
from pyromq.model.topic import Permission
from pyromq.net.client import Client
from pyromq.records import layout, record
from pyromq.records.properties import encode_properties
from pyromq.wire.bodies.routes import TopicRoute
from pyromq.wire.codes import ResponseCode
from pyromq.wire.command import Command
from pyromq.wire.nameserver_requests import GetRoute
from pyromq.wire.requests import GetMaxOffset, GetMinOffset, PullMessage, Request, SendMessage

DEFAULT_NAME_SERVER = "127.0.0.1:9876"
#: New topics are made after this one, and its route tells who makes them; each of them makes so many queues.
TEMPLATE_TOPIC, NEW_QUEUES = "TBW102", 4
TOOLS_GROUP = "TOOLS_CONSUMER"
#: May be held; carries a subscription.
PULL_FLAGS = 2 | 4
HOLD_MS = 15_000
CALL_SECONDS = 3.0
#: Answers after which a pull asks again, from where the answer says.
GOES_ON = (
    ResponseCode.SUCCESS,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)
#: How often a topic that is not there yet is looked for.
LOOK_AGAIN_SECONDS = 0.5
#: Messages that wait to be shown; with so many nothing more is pulled.
FOUND_AT_MOST = 1000
#: How the record's flags call zlib, and what of an unpacked body is shown: a small one may unpack to a huge one.
ZLIB, BODY_AT_MOST = 3, 4 << 20

NameServers = Annotated[
    str,
    typer.Option("--name-servers", "-n", metavar="HOST:PORT;…", envvar="NAMESRV_ADDR", help="Name servers to ask."),
]
TopicName = Annotated[str, typer.Argument(help="The topic.")]


#: What there is to show, what went wrong, or None when nobody looks any more.
Findings: TypeAlias = "asyncio.Queue[memoryview | PyroMQError | None]"


class Queue(NamedTuple):
    address: str
    broker: str
    number: int


def send(
    topic: TopicName,
    texts: Annotated[
        list[str], typer.Argument(metavar="TEXT…", help="One message each; - reads a message from each line of stdin.")
    ],
    tag: Annotated[str | None, typer.Option(help="Tag of the messages.")] = None,
    key: Annotated[str | None, typer.Option(help="Key to find the messages by.")] = None,
    name_servers: NameServers = DEFAULT_NAME_SERVER,
) -> None:
    """Send messages to a topic, and show where each of them is."""
    properties = encode_properties({name: value for name, value in (("TAGS", tag), ("KEYS", key)) if value}).decode()
    console = output.stdout()
    client = Client()
    with asyncio.Runner() as runner:
        try:
            queues = runner.run(_queues(client, name_servers, topic, Permission.WRITE))
            # Lines are read between the runs: Ctrl-C ends a read at once, but not one that is part of a run.
            for index, body in enumerate(_bodies(texts)):
                queue = queues[index % len(queues)]
                answer = runner.run(_ask(client, queue.address, _message(topic, queue.number, body, properties)))
                console.print(escaped(_receipt(topic, answer)), soft_wrap=True)
        finally:
            runner.run(client.close())


def consume(
    topic: TopicName,
    tag: Annotated[str, typer.Option(help="Tags to choose, joined by ||; * for all.")] = "*",
    count: Annotated[int, typer.Option("--count", min=0, help="Stop after so many messages; 0: never.")] = 0,
    new_only: Annotated[bool, typer.Option("--new-only", help="Skip what is there already.")] = False,
    name_servers: NameServers = DEFAULT_NAME_SERVER,
) -> None:
    """Show the messages of a topic as they come, from the oldest on.

    It only looks: no group's progress changes. A topic that is not there yet is waited for. Ctrl-C stops.
    """
    try:
        asyncio.run(_consume(name_servers, topic, tag, count, new_only))
    except KeyboardInterrupt:
        raise typer.Exit(0) from None


# --- sending ---------------------------------------------------------------------------------------------------------


def _bodies(texts: list[str]) -> Iterator[bytes]:
    """As they were typed, also where they are no text."""
    if texts == ["-"]:
        yield from (line.removesuffix(b"\n").removesuffix(b"\r") for line in sys.stdin.buffer)
    else:
        yield from (text.encode("utf-8", "surrogateescape") for text in texts)


def _message(topic: str, queue_id: int, body: bytes, properties: str) -> SendMessage:
    return SendMessage(
        producer_group="TOOLS_PRODUCER",
        topic=topic,
        queue_id=queue_id,
        born_timestamp_ms=SystemClock().now_ms(),
        default_topic_queues=NEW_QUEUES,
        properties=properties,
        body=body,
    )


def _receipt(topic: str, answer: Command) -> str:
    fields = answer.fields
    return f"sent to {topic} queue {fields['queueId']} offset {fields['queueOffset']}  id {fields['msgId']}"


# --- consuming -------------------------------------------------------------------------------------------------------


async def _consume(name_servers: str, topic: str, tag: str, count: int, new_only: bool) -> None:
    client = Client()
    found: Findings = asyncio.Queue(FOUND_AT_MOST)
    _notice_the_end_of_the_reader(found)
    pulls: list[asyncio.Task[None]] = []
    try:
        queues, was_there = await _queues_when_there(client, name_servers, topic)
        skip = new_only and was_there
        pulls += [asyncio.create_task(_follow(client, queue, topic, tag, skip, found)) for queue in queues]
        shown = 0
        while not count or shown < count:
            one = await found.get()
            if one is None:
                break
            if isinstance(one, PyroMQError):
                raise one
            _show(one)
            shown += 1
    finally:
        for pull in pulls:
            pull.cancel()
        await asyncio.gather(*pulls, return_exceptions=True)
        await client.close(grace_s=0)


def _notice_the_end_of_the_reader(found: Findings) -> None:
    """`pyromq consume … | head -1` ends when `head` does, and not with the next message."""
    try:
        number = sys.stdout.fileno()
        if not stat.S_ISFIFO(os.fstat(number).st_mode):
            return
    except (OSError, ValueError):  # no file at all
        return
    loop = asyncio.get_running_loop()

    def ended() -> None:
        loop.remove_reader(number)
        with contextlib.suppress(asyncio.QueueFull):  # then something is shown next, and fails
            found.put_nowait(None)

    loop.add_reader(number, ended)


async def _queues_when_there(client: Client, name_servers: str, topic: str) -> tuple[list[Queue], bool]:
    """The queues, and whether the topic was there from the beginning."""
    was_there = True
    while True:
        try:
            return await _queues(client, name_servers, topic, Permission.READ), was_there
        except NotFound as nobody:
            if was_there:
                output.stderr().print(escaped(f"{nobody}: waiting for it"), soft_wrap=True)
            was_there = False
            await asyncio.sleep(LOOK_AGAIN_SECONDS)


async def _follow(
    client: Client,
    queue: Queue,
    topic: str,
    tag: str,
    new_only: bool,
    found: Findings,
) -> None:
    """Pull one queue for ever; what goes wrong is handed to whoever shows the messages."""
    try:
        edge: Request = (GetMaxOffset if new_only else GetMinOffset)(topic=topic, queue_id=queue.number)
        offset = int((await _ask(client, queue.address, edge)).fields["offset"])
        while True:
            request = PullMessage(
                group=TOOLS_GROUP, topic=topic, queue_id=queue.number, offset=offset, max_messages=32,
                flags=PULL_FLAGS, suspend_ms=HOLD_MS, subscription=tag,
            )  # fmt: skip
            answer = await client.call(queue.address, request, timeout_s=HOLD_MS / 1000 + CALL_SECONDS)
            if answer.code not in GOES_ON:
                raise ServiceError(answer.reason or f"the broker answered with code {answer.code}")
            offset = int(answer.fields["nextBeginOffset"])
            await _hand_over(answer.body, found)
    except PyroMQError as error:
        await found.put(error)


async def _hand_over(body: bytes, found: Findings) -> None:
    data, at = memoryview(body), 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        await found.put(data[at : at + size])
        at += size


def _show(view: memoryview) -> None:
    message = record.decode(view)
    tag = f" [{message.tags}]" if message.tags else ""
    place = escaped(f"queue {message.queue_id} offset {message.queue_offset}{tag}")
    output.stdout().print(f"[dim]{place}[/]  {escaped(_text(message))}", soft_wrap=True)


def _text(message: StoredMessage) -> str:
    """The body; what is no text in it shows as `\\xff`."""
    body = message.body
    if message.storage_flags & layout.FLAG_COMPRESSED:
        kind = message.storage_flags >> 8 & 7
        if kind not in (0, ZLIB):
            return f"({len(body)} compressed bytes)"
        try:
            body = zlib.decompressobj().decompress(body, BODY_AT_MOST)
        except zlib.error:
            return f"({len(body)} bytes that are said to be compressed and are not)"
    return body.decode("utf-8", "surrogateescape")


# --- both ------------------------------------------------------------------------------------------------------------


async def _ask(client: Client, address: str, request: Request) -> Command:
    answer = await client.call(address, request, CALL_SECONDS)
    if answer.code == ResponseCode.TOPIC_NOT_EXIST:
        raise TopicNotFound(answer.reason or "there is no such topic")
    if answer.code != ResponseCode.SUCCESS:
        raise ServiceError(answer.reason or f"{address} answered with code {answer.code}")
    return answer


async def _queues(client: Client, name_servers: str, topic: str, permission: Permission) -> list[Queue]:
    """The queues of a topic; for a topic that is not there yet, those of the one it would be made after."""
    names = [topic, TEMPLATE_TOPIC] if permission is Permission.WRITE else [topic]
    for name in names:
        try:
            route = await _route(client, name_servers, name)
        except TopicNotFound:
            continue
        queues = list(_of_route(route, permission, at_most=None if name == topic else NEW_QUEUES))
        if queues:
            return queues
    raise NotFound(
        f"no broker has a topic {topic!r} that may be {'written to' if permission is Permission.WRITE else 'read'}"
    )


async def _route(client: Client, name_servers: str, topic: str) -> TopicRoute:
    addresses = [one.strip() for one in name_servers.split(";") if one.strip()]
    if not addresses:
        raise ConfigError("no name server is given: use --name-servers")
    for address in addresses:
        try:
            answer = await _ask(client, address, GetRoute(topic=topic, standard_json_only=True))
        except CallFailed:
            continue
        return TopicRoute.decode(answer.body)
    raise Unreachable(
        f"no name server answers at {' or '.join(addresses)}: start one with `pyromq up`, or say where it is with "
        "--name-servers"
    )


def _of_route(route: TopicRoute, permission: Permission, at_most: int | None) -> Iterator[Queue]:
    addresses = {broker.name: broker.addresses[min(broker.addresses)] for broker in route.brokers if broker.addresses}
    for data in route.queues:
        if data.permission & permission and data.broker_name in addresses:
            count = data.write_queues if permission is Permission.WRITE else data.read_queues
            for number in range(count)[:at_most]:
                yield Queue(addresses[data.broker_name], data.broker_name, number)
