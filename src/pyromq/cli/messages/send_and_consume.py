"""`pyromq send`, `pyromq consume` and `pyromq tail`: try a cluster from a shell."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pyromq.cli import output
from pyromq.cli.connecting import AsJson, NameServers, TopicName, require
from pyromq.cli.messages.views import json_of, line_of
from pyromq.cli.output import escaped
from pyromq.cli.reaching import DEFAULT_NAME_SERVER, connection
from pyromq.errors import ConfigError
from pyromq.model import names

if TYPE_CHECKING:
    from pyromq.admin.admin import Admin
    from pyromq.client.message import Message
    from pyromq.client.producer import Producer
    from pyromq.client.received import ReceivedMessage
    from pyromq.client.sending.receipt import SendReceipt
    from pyromq.model.queue import MessageQueue

TOOLS_PRODUCER = "TOOLS_PRODUCER"

Tags = Annotated[str, typer.Option("--tag", help="Tags, joined by ||; * for all.")]


def send(
    topic: TopicName,
    texts: Annotated[
        list[str],
        typer.Argument(
            metavar="TEXT…", help="Message bodies; - reads one message from each line of stdin.", show_default=False
        ),
    ],
    tag: Annotated[str | None, typer.Option(help="Tag of the messages.")] = None,
    key: Annotated[list[str] | None, typer.Option(help="Key of the messages, for the index. Repeatable.")] = None,
    property_: Annotated[
        list[str] | None,
        typer.Option("--property", metavar="NAME=VALUE", help="Property of the messages. Repeatable."),
    ] = None,
    sharding_key: Annotated[
        str | None,
        typer.Option("--sharding-key", help="Messages with the same sharding key go to the same queue, in order."),
    ] = None,
    delay_level: Annotated[
        int, typer.Option("--delay-level", min=0, help="Deliver after the delay of this level: 1 is 1 s, 18 is 2 h.")
    ] = 0,
    delay: Annotated[
        float | None,
        typer.Option("--delay", min=0, help="Deliver after this many seconds. PyroMQ's brokers have levels only."),
    ] = None,
    as_json: AsJson = False,
    name_servers: NameServers = DEFAULT_NAME_SERVER,
) -> None:
    """Send messages to a topic and show where they are stored."""
    from pyromq.client.message import Message
    from pyromq.client.producer import Producer

    names.check_topic(topic)
    fields: dict[str, Any] = {
        "tags": tag, "keys": key or (), "properties": _properties(property_ or []), "sharding_key": sharding_key,
        "deliver_after": delay, "delay_level": delay_level,
    }  # fmt: skip
    with asyncio.Runner() as runner:
        producer = Producer(require(name_servers), group=TOOLS_PRODUCER, **connection())
        runner.run(producer.start())
        try:
            runner.run(producer.queues(topic))  # raises when there is nowhere to send to, before a line is read
            # Lines are read between the runs: Ctrl-C ends a read at once, but not one that is part of a run.
            for index, body in enumerate(_bodies(texts)):
                receipt = runner.run(_send(producer, Message(topic, body, **fields), index))
                _show_receipt(receipt, as_json, is_delayed=bool(delay or delay_level))
        finally:
            runner.run(producer.close())


async def _send(producer: Producer, message: Message, index: int) -> SendReceipt:
    """The first goes to the first queue, the second to the next one: what people expect to see."""

    def turn(queues: Sequence[MessageQueue], _: Message) -> MessageQueue:
        return queues[index % len(queues)]

    return await producer.send(message, select=None if message.sharding_key else turn)


def _properties(written: list[str]) -> dict[str, str]:
    pairs = [one.partition("=") for one in written]
    for name, _, value in pairs:
        if not name or not value:
            raise typer.BadParameter(f"{name!r} has no value: write NAME=VALUE", param_hint="--property")
    return {name: value for name, _, value in pairs}


def _bodies(texts: list[str]) -> Iterator[bytes]:
    """As they were typed, also where they are no text. An empty line is no message."""
    if texts == ["-"]:
        yield from filter(None, (line.removesuffix(b"\n").removesuffix(b"\r") for line in sys.stdin.buffer))
    else:
        yield from (text.encode("utf-8", "surrogateescape") for text in texts)


def _show_receipt(receipt: SendReceipt, as_json: bool, *, is_delayed: bool) -> None:
    queue = receipt.queue
    if as_json:
        output.print_json_line({
            "topic": queue.topic, "broker": queue.broker_name, "queue": queue.queue_id, "offset": receipt.queue_offset,
            "message_id": receipt.message_id, "offset_message_id": receipt.offset_message_id,
        })  # fmt: skip
        return
    # A delayed message has no position in its topic yet.
    place = ", to be delivered later" if is_delayed else f" queue {queue.queue_id} offset {receipt.queue_offset}"
    text = f"sent to {queue.topic}{place}  id {receipt.message_id}"
    output.stdout().print(escaped(text), soft_wrap=True)


# --- receiving -------------------------------------------------------------------------------------------------------


def consume(
    topic: TopicName,
    tag: Tags = "*",
    count: Annotated[int, typer.Option("--count", min=0, help="Stop after this many messages; 0: never.")] = 0,
    new_only: Annotated[bool, typer.Option("--new-only", help="Skip the stored messages.")] = False,
    group: Annotated[
        str | None,
        typer.Option(
            "--group", "-g", help="Consume for this group and acknowledge the shown messages.", show_default=False
        ),
    ] = None,
    as_json: AsJson = False,
    name_servers: NameServers = DEFAULT_NAME_SERVER,
) -> None:
    """Show the messages of a topic as they arrive, from the oldest on.

    No group offsets change, unless --group names the group to consume for. It waits for a topic that does not exist yet
    and for a broker that is down. Ctrl-C stops it.
    """
    names.check_topic(topic)
    where = require(name_servers)
    if group is None:
        _until_stopped(_consume(where, topic, tag, count, new_only, as_json))
        return
    if new_only:
        raise ConfigError("a group goes on where it was: --new-only is for looking without --group")
    names.check_group(group)
    _until_stopped(_consume_for(where, topic, tag, count, group, as_json))


def tail(
    topic: TopicName,
    last: Annotated[int, typer.Option("--last", "-l", min=0, help="Show this many of the newest messages first.")] = 10,
    tag: Tags = "*",
    stop: Annotated[bool, typer.Option("--no-follow", help="Do not wait for new messages.")] = False,
    as_json: AsJson = False,
    name_servers: NameServers = DEFAULT_NAME_SERVER,
) -> None:
    """Show the newest messages of a topic and then new ones as they arrive, like tail -f.

    It joins no group, and no group offsets change. It waits for a broker that is down. Ctrl-C stops it.
    """
    names.check_topic(topic)
    _until_stopped(_tail(require(name_servers), topic, tag, last, stop, as_json))


def _until_stopped(work: Any) -> None:
    try:
        asyncio.run(work)
    except KeyboardInterrupt:
        raise typer.Exit(0) from None


async def _consume(name_servers: str, topic: str, tag: str, count: int, new_only: bool, as_json: bool) -> None:
    from pyromq.admin.admin import Admin
    from pyromq.cli.messages.following import follow, queues_when_there

    async with Admin(name_servers, **connection()) as admin:
        queues, was_there = await queues_when_there(admin, topic)
        bounds = {queue: await admin.messages.bounds(queue) for queue in queues}
        starts = {queue: largest if new_only and was_there else least for queue, (least, largest) in bounds.items()}
        shown = 0
        async for message in follow(admin, starts, tag, patient=True):
            _show(message, as_json)
            shown += 1
            if shown == count:
                return


async def _tail(name_servers: str, topic: str, tag: str, last: int, stop: bool, as_json: bool) -> None:
    from pyromq.admin.admin import Admin
    from pyromq.cli.messages.following import follow, queues_when_there

    async with Admin(name_servers, **connection()) as admin:
        queues = await admin.messages.queues(topic) if stop else (await queues_when_there(admin, topic))[0]
        bounds = {queue: await admin.messages.bounds(queue) for queue in queues}
        for message in await _newest(admin, bounds, tag, last):
            _show(message, as_json)
        if not stop:
            starts = {queue: largest for queue, (_, largest) in bounds.items()}
            async for message in follow(admin, starts, tag, patient=True):
                _show(message, as_json)


async def _newest(
    admin: Admin, bounds: dict[MessageQueue, tuple[int, int]], tag: str, last: int
) -> list[ReceivedMessage]:
    """The newest messages of all queues, oldest first."""
    from pyromq.admin.messages import by_time

    found = []
    for queue, (least, largest) in bounds.items():
        first = max(largest - last, least)
        found += [one async for one in admin.messages.read(queue, first, largest, tag)]
    return sorted(found, key=by_time)[-last:] if last else []


async def _consume_for(name_servers: str, topic: str, tag: str, count: int, group: str, as_json: bool) -> None:
    """Consume as a member of a group and acknowledge the shown messages."""
    from pyromq.client.group.starting_point import ConsumeFrom
    from pyromq.client.push_consumer import PushConsumer

    done, stopping = asyncio.Event(), asyncio.Event()
    shown = 0

    async def show(message: ReceivedMessage) -> None:
        nonlocal shown
        if done.is_set() and (worker := asyncio.current_task()):  # fetched, but not wanted: it stays the group's
            await stopping.wait()
            worker.cancel()
            await asyncio.sleep(0)
        _show(message, as_json)
        shown += 1
        if shown == count:
            done.set()

    consumer = PushConsumer(name_servers, group=group, consume_from=ConsumeFrom.FIRST, concurrency=1, **connection())
    consumer.subscribe(topic, show, tags=tag)
    async with consumer:
        await done.wait()
        stopping.set()  # the consumer stops in the same iteration of the loop: later cancellations end it


def _show(message: ReceivedMessage, as_json: bool) -> None:
    if as_json:
        output.print_json_line(json_of(message))
    else:
        output.stdout().print(line_of(message), soft_wrap=True)
