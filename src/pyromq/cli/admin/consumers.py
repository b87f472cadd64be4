"""`pyromq consumer` and `pyromq producer`: who is connected, how far groups are, and setting them back or forth."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pyromq.cli import output
from pyromq.cli.completing import groups
from pyromq.cli.connecting import AsJson, BrokerName, GroupName, NameServers, TopicName, Yes, ask, group_of_commands
from pyromq.cli.output import ago, escaped, moment, number, plural, rate
from pyromq.cli.reaching import DEFAULT_NAME_SERVER
from pyromq.cli.times import HELP, parse_moment
from pyromq.clock import SystemClock
from pyromq.errors import ConsumerOffline, NotFound

if TYPE_CHECKING:
    from pyromq.admin.admin import Admin
    from pyromq.admin.consumers import ConnectedClient, GroupLag, QueueMove, RunningInfo, Target

app = group_of_commands("Consumers: how far groups are, who is in them, reset and clone offsets.")
producers_app = group_of_commands("Producers: who is connected to send.")

OptionalGroup = Annotated[
    str | None,
    typer.Argument(metavar="[GROUP]", help="Only this producer group.", show_default=False),
]
QueueNumber = Annotated[int | None, typer.Option("--queue", min=0, help="Only this queue of each broker.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the changes without making them.")]


# --- how far ---------------------------------------------------------------------------------------------------------


@app.command("list")
def list_consumers(as_json: AsJson = False, name_servers: NameServers = DEFAULT_NAME_SERVER) -> None:
    """List every group with its members and its lag, largest lag first."""

    async def work(admin: Admin) -> list[tuple[GroupLag, int]]:
        from pyromq.admin.directory import of_each

        names = [one.name for one in await admin.groups.list() if not one.is_system]
        with output.counting_bar("asking", len(names)) as more:

            async def one(name: str) -> tuple[GroupLag, int]:
                found = await admin.consumers.lag(name), await _members(admin, name)
                more(1)
                return found

            found = await of_each(names, one)
        return sorted(found, key=lambda one: (-one[0].lag, one[0].group))

    found = ask(name_servers, work)
    if as_json:
        output.print_json([_summary_json(lag, members) for lag, members in found])
        return
    if not found:
        output.note("no groups yet: the first consumer of a group makes it")
        return
    table = output.listing(
        "group", "members", "behind by", "done/s", "topics", numbers=("members", "behind by", "done/s")
    )
    for lag, members in found:
        topics = sorted({one.queue.topic for one in lag.queues if not one.queue.topic.startswith("%RETRY%")})
        table.add_row(
            escaped(lag.group), number(members) if members else "[dim]0[/]", _coloured(lag.lag),
            rate(lag.out_per_second), escaped(", ".join(topics)) or "[dim]-[/]",
        )  # fmt: skip
    output.stdout().print(table)


async def _members(admin: Admin, group: str) -> int:
    try:
        return len((await admin.consumers.members(group)).clients)
    except ConsumerOffline:
        return 0


def _coloured(lag: int) -> str:
    return f"[{'green' if lag == 0 else 'yellow'}]{number(lag)}[/]"


@app.command()
def lag(
    group: GroupName,
    topic: Annotated[str | None, typer.Option("--topic", help="Only this topic.", show_default=False)] = None,
    clients: Annotated[bool, typer.Option("--clients", help="Show the consumer of each queue, too.")] = False,
    as_json: AsJson = False,
    name_servers: NameServers = DEFAULT_NAME_SERVER,
) -> None:
    """Show the offsets and the lag of a group by queue."""

    async def work(admin: Admin) -> GroupLag:
        found = await admin.consumers.lag(group, topic, with_clients=clients)
        if not found.queues:
            await admin.groups.get(group)  # raises when there is no such group at all
        return found

    found = ask(name_servers, work)
    if as_json:
        output.print_json(_lag_json(found))
    elif found.queues:
        _show_lag(found, clients)
    else:
        output.note(escaped(f"the group {group} has not consumed anything{f' of {topic}' if topic else ''} yet"))


def _show_lag(found: GroupLag, clients: bool) -> None:
    more = ("client",) if clients else ()
    columns = ("topic", "broker", "queue", "done", "of", "behind by", "last done", *more)
    table = output.listing(*columns, numbers=("queue", "done", "of", "behind by"))
    now_ms = SystemClock().now_ms()
    for one in found.queues:
        owner = [escaped(one.client_id or "-")] if clients else []
        table.add_row(
            escaped(one.queue.topic), escaped(one.queue.broker_name), str(one.queue.queue_id),
            number(one.consumer_offset), number(one.broker_offset), _coloured(one.lag), ago(one.last_done_ms, now_ms),
            *owner,
        )  # fmt: skip
    console = output.stdout()
    console.print(table)
    console.print(
        f"[bold]{escaped(found.group)}[/] is behind by {_coloured(found.lag)} of "
        f"{plural(sum(one.broker_offset for one in found.queues), 'message')}, {rate(found.out_per_second)}/s are done"
    )


# --- who -------------------------------------------------------------------------------------------------------------


@app.command()
def members(group: GroupName, as_json: AsJson = False, name_servers: NameServers = DEFAULT_NAME_SERVER) -> None:
    """Show the connected consumers of a group and their subscriptions."""
    found = ask(name_servers, lambda admin: admin.consumers.members(group))
    if as_json:
        output.print_json(found)
        return
    facts = output.facts()
    facts.add_row("group", f"[bold]{escaped(found.group)}[/]")
    facts.add_row("consumes", escaped(f"{found.message_model.lower()}, {found.consume_type.lower()}"))
    facts.add_row("a new one starts", escaped(found.consume_from.lower()))
    for one in found.subscriptions:
        facts.add_row("subscribes to", escaped(f"{one.topic}  {one.kind} {one.expression}"))
    console = output.stdout()
    console.print(facts)
    console.print(_clients_table(found.clients))


def _clients_table(clients: Sequence[ConnectedClient]) -> Any:
    table = output.listing("client", "address", "language", "version", "brokers")
    for one in clients:
        table.add_row(*(escaped(each) for each in (
            one.client_id, one.address, one.language.lower(), one.version, ", ".join(one.brokers),
        )))  # fmt: skip
    return table


@app.command()
def info(
    group: GroupName,
    client_id: Annotated[str, typer.Argument(metavar="CLIENT", help="The client's id.", show_default=False)],
    stacks: Annotated[bool, typer.Option("--stacks", help="Show the stacks of its threads, too.")] = False,
    as_json: AsJson = False,
    name_servers: NameServers = DEFAULT_NAME_SERVER,
) -> None:
    """Show the settings and the assigned queues that a consumer reports."""
    found = ask(name_servers, lambda admin: admin.consumers.running_info(group, client_id, with_stacks=stacks))
    if as_json:
        output.print_json(found)
    else:
        _show_info(found)


def _show_info(found: RunningInfo) -> None:
    console = output.stdout()
    facts = output.facts()
    for name, value in found.properties.items():
        facts.add_row(escaped(name), escaped(value))
    for one in found.subscriptions:
        facts.add_row("subscribes to", escaped(f"{one.topic}  {one.kind} {one.expression}"))
    console.print(facts)
    table = output.listing(
        "topic", "broker", "queue", "committed", "in hand", "last pull", "last handled",
        numbers=("queue", "committed", "in hand"),
    )  # fmt: skip
    for queue in found.queues:
        table.add_row(
            escaped(queue.queue.topic), escaped(queue.queue.broker_name), str(queue.queue.queue_id),
            number(queue.committed_offset), number(queue.cached_messages), moment(queue.last_pull_ms),
            moment(queue.last_consume_ms),
        )  # fmt: skip
    console.print(table)
    if found.stacks:
        for line in found.stacks.splitlines():
            console.print(escaped(line), soft_wrap=True)


@producers_app.command("list")
def list_producers(
    group: OptionalGroup = None, as_json: AsJson = False, name_servers: NameServers = DEFAULT_NAME_SERVER
) -> None:
    """List the connected producers by group."""
    found = ask(name_servers, lambda admin: admin.consumers.producers(group))
    if as_json:
        output.print_json(found)
        return
    if not found:
        output.note(escaped(f"no producer{f' of the group {group}' if group else ''} is connected now"))
    for name, clients in found.items():
        output.stdout().print(f"[bold]{escaped(name)}[/]")
        output.stdout().print(_clients_table(clients))


# --- moved -----------------------------------------------------------------------------------------------------------


@app.command()
def reset(
    group: GroupName,
    topic: TopicName,
    to: Annotated[
        str, typer.Option("--to", metavar="WHERE", help=f"earliest, latest, or a time: {HELP}.", show_default=False)
    ] = "",
    offset: Annotated[int | None, typer.Option("--offset", min=0, help="An offset, instead of --to.")] = None,
    queue: QueueNumber = None,
    broker: BrokerName = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
    name_servers: NameServers = DEFAULT_NAME_SERVER,
) -> None:
    """Reset the offsets of a group: back to receive messages again, or forward to skip some.

    It takes effect at once: running consumers continue from there with their next pull.
    """
    target = _target(to, offset)
    plan = ask(name_servers, lambda admin: _plan(admin, group, topic, target, broker, queue))
    _move(name_servers, group, topic, plan, dry_run=dry_run, yes=yes, as_json=as_json)


@app.command()
def skip(
    group: GroupName,
    topic: TopicName,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
    name_servers: NameServers = DEFAULT_NAME_SERVER,
) -> None:
    """Skip all unconsumed messages of a group: the same as reset --to latest."""
    plan = ask(name_servers, lambda admin: _plan(admin, group, topic, "latest"))
    _move(name_servers, group, topic, plan, dry_run=dry_run, yes=yes, as_json=as_json)


@app.command()
def clone(
    source: Annotated[
        str,
        typer.Argument(metavar="FROM", help="The source group.", show_default=False, autocompletion=groups),
    ],
    target: Annotated[
        str, typer.Argument(metavar="TO", help="The target group.", show_default=False, autocompletion=groups)
    ],
    topic: TopicName,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
    name_servers: NameServers = DEFAULT_NAME_SERVER,
) -> None:
    """Copy the offsets of one group to another."""
    plan = ask(name_servers, lambda admin: admin.consumers.plan_clone(source, target, topic))
    if _agreed(target, topic, plan, dry_run=dry_run, yes=yes, as_json=as_json):
        ask(name_servers, lambda admin: admin.consumers.clone(source, target, topic))
        _moved(target, topic, plan, as_json=as_json)


def _target(to: str, offset: int | None) -> Target:
    if (to == "") == (offset is None):
        raise typer.BadParameter("say either --to (earliest, latest or a time) or --offset", param_hint="--to")
    if offset is not None:
        return offset
    if to in ("earliest", "latest"):
        return "earliest" if to == "earliest" else "latest"
    try:
        return parse_moment(to, datetime.now().astimezone())
    except ValueError as problem:
        raise typer.BadParameter(f"{problem}; or earliest, or latest", param_hint="--to") from None


def _move(
    name_servers: str, group: str, topic: str, plan: list[QueueMove], *, dry_run: bool, yes: bool, as_json: bool
) -> None:
    if _agreed(group, topic, plan, dry_run=dry_run, yes=yes, as_json=as_json):
        ask(name_servers, lambda admin: admin.consumers.carry_out(group, plan))
        _moved(group, topic, plan, as_json=as_json)


async def _plan(
    admin: Admin, group: str, topic: str, to: Target, broker: str | None = None, queue: int | None = None
) -> list[QueueMove]:
    await admin.groups.get(group)  # raises when there is no such group
    return await admin.consumers.plan_reset(group, topic, to, broker=broker, queue_id=queue)


def _agreed(group: str, topic: str, plan: list[QueueMove], *, dry_run: bool, yes: bool, as_json: bool) -> bool:
    """Show the plan. Is it to be carried out?"""
    if not plan:
        raise NotFound(f"the topic {topic!r} has no queues to read")
    if dry_run and as_json:
        output.print_json(_moves_json(group, topic, plan, done=False))
        return False
    table = output.listing("broker", "queue", "now", "then", "", numbers=("queue", "now", "then"))
    for move in plan:
        table.add_row(
            escaped(move.queue.broker_name), str(move.queue.queue_id),
            "-" if move.before is None else number(move.before), number(move.after), _effect(move),
        )  # fmt: skip
    (output.stdout() if dry_run else output.stderr()).print(table)
    if not dry_run:
        output.agree(f"set the group {group} in {topic} as shown.", yes=yes)
    return not dry_run


def _effect(move: QueueMove) -> str:
    if move.messages_again > 0:
        return f"{plural(move.messages_again, 'message')} again"
    if move.messages_again < 0:
        return f"[yellow]skips {plural(-move.messages_again, 'message')}[/]"
    return "[dim]stays[/]" if move.before is not None else "[dim]starts there[/]"


def _moved(group: str, topic: str, plan: list[QueueMove], *, as_json: bool) -> None:
    if as_json:
        output.print_json(_moves_json(group, topic, plan, done=True))
    else:
        queues = plural(len(plan), "queue")
        output.stdout().print(f"[green]✓[/] set [bold]{escaped(group)}[/] in {queues} of {escaped(topic)}")


# --- for scripts -----------------------------------------------------------------------------------------------------


def _summary_json(lag: GroupLag, members: int) -> dict[str, Any]:
    topics = sorted({one.queue.topic for one in lag.queues})
    return {
        "group": lag.group, "members": members, "lag": lag.lag, "out_per_second": lag.out_per_second, "topics": topics,
    }  # fmt: skip


def _lag_json(found: GroupLag) -> dict[str, Any]:
    queues = [
        {
            "topic": one.queue.topic,
            "broker": one.queue.broker_name,
            "queue": one.queue.queue_id,
            "consumer_offset": one.consumer_offset,
            "broker_offset": one.broker_offset,
            "lag": one.lag,
            "in_flight": one.in_flight,
            "last_done_ms": one.last_done_ms or None,
            "client_id": one.client_id,
        }
        for one in found.queues
    ]
    return {"group": found.group, "lag": found.lag, "out_per_second": found.out_per_second, "queues": queues}


def _moves_json(group: str, topic: str, plan: list[QueueMove], *, done: bool) -> dict[str, Any]:
    queues = [
        {"broker": one.queue.broker_name, "queue": one.queue.queue_id, "before": one.before, "after": one.after}
        for one in plan
    ]
    return {"group": group, "topic": topic, "done": done, "queues": queues}
