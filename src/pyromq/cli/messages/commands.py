"""`pyromq message`: find and show messages. Group offsets do not change."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from pyromq.cli import output
from pyromq.cli.completing import topics
from pyromq.cli.connecting import AsJson, BrokerName, NameServers, TopicName, ask, group_of_commands
from pyromq.cli.messages.views import facts_of, json_of, pretty_body, table_of
from pyromq.cli.reaching import DEFAULT_NAME_SERVER
from pyromq.cli.times import HELP, parse_moment

if TYPE_CHECKING:
    from pyromq.admin.admin import Admin
    from pyromq.client.received import ReceivedMessage

app = group_of_commands("Messages: show one, find some, peek into a topic.")

Count = Annotated[int, typer.Option("--count", "-c", min=1, max=10_000, help="At most this many.")]


@app.command()
def show(
    message_id: Annotated[
        str, typer.Argument(metavar="ID", help="Message id, as send, find or a log shows it.", show_default=False)
    ],
    topic: Annotated[
        str | None,
        typer.Option(
            "--topic", "-t", help="Topic of the message, needed for ids that producers assign.", autocompletion=topics
        ),
    ] = None,
    body: Annotated[bool, typer.Option("--body", help="Only the body, byte for byte.")] = False,
    as_json: AsJson = False,
    name_servers: NameServers = DEFAULT_NAME_SERVER,
) -> None:
    """Show one message in full."""
    found = ask(name_servers, lambda admin: admin.messages.find(message_id, topic))
    if as_json:
        output.print_json(json_of(found))
    elif body and not sys.stdout.isatty():
        sys.stdout.buffer.write(found.body)
    else:
        console = output.stdout()
        if not body:
            console.print(facts_of(found))
            console.print()
        for line in pretty_body(found):
            console.print(line, soft_wrap=True)


@app.command()
def find(
    topic: TopicName,
    key: Annotated[str | None, typer.Option("--key", "-k", help="With this key.", show_default=False)] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help=f"Stored from then on: {HELP}.", show_default=False)
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="TIME", help="Stored up to then.", show_default=False)
    ] = None,
    count: Count = 64,
    as_json: AsJson = False,
    name_servers: NameServers = DEFAULT_NAME_SERVER,
) -> None:
    """Find messages by key, by store time, or by both."""
    if key is None and since is None:
        raise typer.BadParameter("say what to look for: --key, --since, or both", param_hint="--key")
    now = datetime.now().astimezone()
    begin, end = _moment(since, "--since", now), _moment(until, "--until", now)

    async def work(admin: Admin) -> Sequence[ReceivedMessage]:
        if key is not None:
            return await admin.messages.by_key(topic, key, most=count, since=begin, until=end)
        return await admin.messages.between(topic, begin or now, end or now, most=count)

    show_messages(ask(name_servers, work), as_json, "nothing was found")


def _moment(text: str | None, option: str, now: datetime) -> datetime | None:
    try:
        return None if text is None else parse_moment(text, now)
    except ValueError as problem:
        raise typer.BadParameter(str(problem), param_hint=option) from None


@app.command()
def peek(
    topic: TopicName,
    queue: Annotated[int | None, typer.Option("--queue", min=0, help="Only this queue.", show_default=False)] = None,
    offset: Annotated[
        int | None, typer.Option("--offset", min=0, help="From this offset of each queue on.", show_default=False)
    ] = None,
    newest: Annotated[bool, typer.Option("--newest", help="The newest instead of the oldest.")] = False,
    count: Count = 10,
    broker: BrokerName = None,
    as_json: AsJson = False,
    name_servers: NameServers = DEFAULT_NAME_SERVER,
) -> None:
    """Show the oldest or newest messages of a topic, or those from an offset on."""
    found = ask(
        name_servers,
        lambda admin: admin.messages.peek(
            topic, broker=broker, queue_id=queue, offset=offset, count=count, newest=newest
        ),
    )
    show_messages(found, as_json, "there are no messages")


def show_messages(found: Sequence[ReceivedMessage], as_json: bool, nothing: str) -> None:
    if as_json:
        output.print_json([json_of(one) for one in found])
    elif found:
        console = output.stdout()
        console.print(table_of(found, console.width))
    else:
        output.note(nothing)
