"""`pyromq dlq`: messages that a group could not handle. List them, look into them, send them again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pyromq.cli import output
from pyromq.cli.completing import topics
from pyromq.cli.connecting import AsJson, GroupName, NameServers, Yes, ask, group_of_commands
from pyromq.cli.messages.commands import show_messages
from pyromq.cli.messages.views import facts_of, json_of, pretty_body
from pyromq.cli.output import ago, escaped, number, plural
from pyromq.cli.reaching import DEFAULT_NAME_SERVER
from pyromq.clock import SystemClock

if TYPE_CHECKING:
    from pyromq.admin.admin import Admin
    from pyromq.admin.dead_letters import DeadLetters, Replayed

#: Text after an interrupted replay.
GOES_ON = "run it again to go on"

app = group_of_commands("Dead letters: list them, look into them, replay them.")


@app.command("list")
def list_dead_letters(as_json: AsJson = False, name_servers: NameServers = DEFAULT_NAME_SERVER) -> None:
    """List the groups with dead letters and their number."""
    found = ask(name_servers, lambda admin: admin.dead_letters.list())
    if as_json:
        output.print_json(found)
        return
    if not found:
        output.note("[green]✓[/] no group has dead letters")
        return
    table = output.listing("group", "dead letters", "not replayed", "newest", numbers=("dead letters", "not replayed"))
    now_ms = SystemClock().now_ms()
    for one in found:
        table.add_row(escaped(one.group), number(one.messages), number(one.waiting), ago(one.last_ms, now_ms))
    output.stdout().print(table)


@app.command()
def show(
    group: GroupName,
    message_id: Annotated[str | None, typer.Option("--id", help="Only this one, in full.", show_default=False)] = None,
    newest: Annotated[bool, typer.Option("--newest", help="The newest instead of the oldest.")] = False,
    count: Annotated[int, typer.Option("--count", "-c", min=1, max=10_000, help="At most this many.")] = 10,
    as_json: AsJson = False,
    name_servers: NameServers = DEFAULT_NAME_SERVER,
) -> None:
    """Show the dead letters of a group with their origin."""
    if message_id is None:
        found = ask(name_servers, lambda admin: admin.dead_letters.peek(group, count=count, newest=newest))
        show_messages(found, as_json, escaped(f"the group {group} has no dead letters"))
        return
    one = ask(name_servers, lambda admin: admin.dead_letters.letter(group, message_id))
    if as_json:
        output.print_json(json_of(one))
        return
    console = output.stdout()
    console.print(facts_of(one))
    console.print()
    for line in pretty_body(one):
        console.print(line, soft_wrap=True)


@app.command()
def replay(
    group: GroupName,
    message_id: Annotated[
        list[str] | None, typer.Option("--id", help="Only this message. Repeatable.", show_default=False)
    ] = None,
    rate: Annotated[float, typer.Option("--rate", min=0, help="At most this many per second; 0: no limit.")] = 100,
    count: Annotated[
        int | None, typer.Option("--count", "-c", min=1, help="At most this many.", show_default=False)
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Replay messages that were replayed before, too.")] = False,
    only_group: Annotated[
        bool, typer.Option("--only-group", help="Deliver to this group only, not to all groups of the topic.")
    ] = False,
    to: Annotated[
        str | None,
        typer.Option(
            "--to", metavar="TOPIC", help="Send to this topic instead.", show_default=False, autocompletion=topics
        ),
    ] = None,
    yes: Yes = False,
    as_json: AsJson = False,
    name_servers: NameServers = DEFAULT_NAME_SERVER,
) -> None:
    """Send the dead letters of a group to their original topic again.

    The dead letters stay. The brokers keep the position of a replay: after an interruption the next one continues
    there.
    """
    state = ask(name_servers, lambda admin: admin.dead_letters.of(group))
    total = len(message_id) if message_id else state.messages if again else state.waiting
    total = min(total, count or total)
    if not total:
        output.note(
            escaped(f"all {plural(state.messages, 'dead letter')} of {group} were replayed: --again sends them")
        )
        return
    output.agree(_will_do(group, total, rate, only_group, to), yes=yes)

    def sending(admin: Admin) -> AsyncGenerator[Replayed, None]:
        desk, limit = admin.dead_letters, rate or None
        if message_id:
            return desk.replay_some(group, message_id[:total], rate=limit, only_group=only_group, to=to)
        return desk.replay(group, rate=limit, most=total, again=again, only_group=only_group, to=to)

    if_stopped = "the same command begins anew" if message_id or again else GOES_ON
    done = ask(name_servers, lambda admin: _replay(sending(admin), group, total, if_stopped, as_json))
    if not as_json:
        left = "" if message_id or again else _left(state, done)
        output.stdout().print(f"[green]✓[/] replayed {plural(done, 'dead letter')} of [bold]{escaped(group)}[/]{left}")


def _will_do(group: str, total: int, rate: float, only_group: bool, to: str | None) -> str:
    where = f"to {to}" if to else "to the topics where they came from"
    whom = f"for {group} alone" if only_group else "for every group that consumes them"
    pace = f"at {rate:g} a second" if rate else "as fast as it goes"
    return f"send {plural(total, 'dead letter')} of {group} again {where}, {whom}, {pace}."


def _left(state: DeadLetters, done: int) -> str:
    left = state.waiting - done
    return f", {number(left)} are left" if left > 0 else ""


async def _replay(
    letters: AsyncGenerator[Replayed, None], group: str, total: int, if_stopped: str, as_json: bool
) -> int:
    done = 0
    try:
        with output.counting_bar(f"replaying {escaped(group)}", total) as more:
            async for one in letters:
                done += 1
                more(1)
                if as_json:
                    output.print_json_line(_replayed_json(one))
    except asyncio.CancelledError:
        output.note(f"stopped after {plural(done, 'dead letter')}: {if_stopped}")
        raise
    finally:
        await letters.aclose()
    return done


def _replayed_json(one: Replayed) -> dict[str, Any]:
    return {
        "message_id": one.message.message_id,
        "topic": one.topic,
        "broker": one.queue.broker_name,
        "queue": one.queue.queue_id,
        "offset": one.queue_offset,
        "dead_letter_offset": one.message.queue_offset,
    }
