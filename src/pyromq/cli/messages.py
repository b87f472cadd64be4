"""`pyromq send` and `pyromq consume`: try a cluster from a shell."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from typing import Annotated, NamedTuple

import typer

from pyromq.cli import output
from pyromq.cli.output import escaped, visible
from pyromq.clock import SystemClock
from pyromq.errors import NotFound, PyroMQError, ServiceError, TopicNotFound
from pyromq.model.topic import Permission
from pyromq.net.client import Client
from pyromq.records import record
from pyromq.records.properties import encode_properties
from pyromq.wire.bodies.routes import TopicRoute
from pyromq.wire.codes import ResponseCode
from pyromq.wire.command import Command
from pyromq.wire.nameserver_requests import GetRoute
from pyromq.wire.requests import GetMaxOffset, GetMinOffset, PullMessage, Request, SendMessage

DEFAULT_NAME_SERVER = "127.0.0.1:9876"
#: New topics are made after this one, and its route tells who makes them.
TEMPLATE_TOPIC = "TBW102"
TOOLS_GROUP = "TOOLS_CONSUMER"
#: May be held; carries a subscription.
PULL_FLAGS = 2 | 4
HOLD_MS = 15_000
CALL_SECONDS = 3.0

NameServers = Annotated[
    str,
    typer.Option("--name-servers", "-n", metavar="HOST:PORT;…", envvar="NAMESRV_ADDR", help="Name servers to ask."),
]
TopicName = Annotated[str, typer.Argument(help="The topic.")]


class Queue(NamedTuple):
    address: str
    broker: str
    number: int


def send(
    topic: TopicName,
    texts: Annotated[list[str], typer.Argument(metavar="TEXT…", help="One message each; - reads lines from stdin.")],
    tag: Annotated[str | None, typer.Option(help="Tag of the messages.")] = None,
    key: Annotated[str | None, typer.Option(help="Key to find the messages by.")] = None,
    name_servers: NameServers = DEFAULT_NAME_SERVER,
) -> None:
    """Send messages to a topic, and show where each of them is."""
    properties = {name: value for name, value in (("TAGS", tag), ("KEYS", key)) if value}
    bodies = (line.rstrip("\n") for line in sys.stdin) if texts == ["-"] else iter(texts)
    asyncio.run(_send(name_servers, topic, bodies, encode_properties(properties).decode()))


def consume(
    topic: TopicName,
    tag: Annotated[str, typer.Option(help="Tags to choose, joined by ||; * for all.")] = "*",
    count: Annotated[int, typer.Option("--count", help="Stop after so many messages; 0: never.")] = 0,
    new_only: Annotated[bool, typer.Option("--new-only", help="Skip what is there already.")] = False,
    name_servers: NameServers = DEFAULT_NAME_SERVER,
) -> None:
    """Show the messages of a topic as they come, from the oldest on. No group's progress changes. Ctrl-C stops."""
    try:
        asyncio.run(_consume(name_servers, topic, tag, count, new_only))
    except KeyboardInterrupt:
        raise typer.Exit(0) from None


# --- sending ---------------------------------------------------------------------------------------------------------


async def _send(name_servers: str, topic: str, bodies: Iterator[str], properties: str) -> None:
    client = Client()
    console = output.stdout()
    try:
        queues = await _queues(client, name_servers, topic, Permission.WRITE)
        for index, body in enumerate(bodies):
            queue = queues[index % len(queues)]
            answer = await _ask(client, queue.address, _message(topic, queue.number, body, properties))
            console.print(
                f"sent to {escaped(topic)} queue {answer.fields['queueId']} offset {answer.fields['queueOffset']}"
                f"  id {answer.fields['msgId']}"
            )
    finally:
        await client.close()


def _message(topic: str, queue_id: int, body: str, properties: str) -> SendMessage:
    return SendMessage(
        producer_group="TOOLS_PRODUCER",
        topic=topic,
        queue_id=queue_id,
        born_timestamp_ms=SystemClock().now_ms(),
        properties=properties,
        body=body.encode("utf-8", "surrogateescape"),
    )


# --- consuming -------------------------------------------------------------------------------------------------------


async def _consume(name_servers: str, topic: str, tag: str, count: int, new_only: bool) -> None:
    client = Client()
    found: asyncio.Queue[memoryview | PyroMQError] = asyncio.Queue(1000)
    try:
        queues = await _queues(client, name_servers, topic, Permission.READ)
        pulls = [asyncio.create_task(_follow(client, queue, topic, tag, new_only, found)) for queue in queues]
        shown = 0
        while not count or shown < count:
            one = await found.get()
            if isinstance(one, PyroMQError):
                raise one
            _show(one)
            shown += 1
        for pull in pulls:
            pull.cancel()
        await asyncio.gather(*pulls, return_exceptions=True)
    finally:
        await client.close()


async def _follow(
    client: Client,
    queue: Queue,
    topic: str,
    tag: str,
    new_only: bool,
    found: asyncio.Queue[memoryview | PyroMQError],
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
            if answer.code not in (
                ResponseCode.SUCCESS,
                ResponseCode.PULL_NOT_FOUND,
                ResponseCode.PULL_RETRY_IMMEDIATELY,
                ResponseCode.PULL_OFFSET_MOVED,
            ):
                raise ServiceError(answer.reason or f"the broker answered with code {answer.code}")
            offset = int(answer.fields["nextBeginOffset"])
            await _hand_over(answer.body, found)
    except PyroMQError as error:
        await found.put(error)


async def _hand_over(body: bytes, found: asyncio.Queue[memoryview | PyroMQError]) -> None:
    data, at = memoryview(body), 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        await found.put(data[at : at + size])
        at += size


def _show(view: memoryview) -> None:
    message = record.decode(view)
    tag = f" [{escaped(message.tags)}]" if message.tags else ""
    body = visible(message.body.decode("utf-8", "replace"))
    output.stdout().print(
        f"[dim]queue {message.queue_id} offset {message.queue_offset}{tag}[/]  {escaped(body)}", soft_wrap=True
    )


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
        queues = list(_of_route(route, permission))
        if queues:
            return queues
    raise NotFound(
        f"no broker has a topic {topic!r} that may be {'written to' if permission is Permission.WRITE else 'read'}"
    )


async def _route(client: Client, name_servers: str, topic: str) -> TopicRoute:
    addresses = [one.strip() for one in name_servers.split(";") if one.strip()]
    problem: PyroMQError | None = None
    for address in addresses:
        try:
            answer = await _ask(client, address, GetRoute(topic=topic, standard_json_only=True))
        except TopicNotFound:
            raise
        except PyroMQError as error:
            problem = error
            continue
        return TopicRoute.decode(answer.body)
    raise problem or NotFound("no name server is given: use --name-servers")


def _of_route(route: TopicRoute, permission: Permission) -> Iterator[Queue]:
    addresses = {broker.name: broker.addresses[min(broker.addresses)] for broker in route.brokers if broker.addresses}
    for data in route.queues:
        if data.permission & permission and data.broker_name in addresses:
            count = data.write_queues if permission is Permission.WRITE else data.read_queues
            for number in range(count):
                yield Queue(addresses[data.broker_name], data.broker_name, number)
