"""`pyromq topic`: list topics, look at one, make, change and delete them."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pyromq.cli import output
from pyromq.cli.connecting import AsJson, BrokerName, ClusterName, NameServers, TopicName, Yes, ask, group_of_commands
from pyromq.cli.output import ago, escaped, moment, number, plural, rate
from pyromq.cli.reaching import DEFAULT_NAME_SERVER
from pyromq.clock import SystemClock
from pyromq.errors import TopicNotFound
from pyromq.model.topic import Permission

if TYPE_CHECKING:
    from pyromq.admin.admin import Admin
    from pyromq.admin.topics import Topic, TopicDetails, TopicStats
    from pyromq.wire.bodies.routes import TopicRoute

app = group_of_commands("Topics: list, describe, create, update, delete.")

Queues = Annotated[int | None, typer.Option("--queues", min=1, max=4096, help="Queues of each broker.")]
Attributes = Annotated[
    list[str] | None,
    typer.Option("--attribute", metavar="NAME=VALUE", help="An attribute, as RocketMQ names it; several are fine."),
]


class MayDo(StrEnum):
    READ_WRITE = "read-write"
    READ = "read"
    WRITE = "write"
    NONE = "none"

    @property
    def bits(self) -> Permission:
        return _BITS[self]


_BITS = {
    MayDo.READ_WRITE: Permission.READ_WRITE,
    MayDo.READ: Permission.READ,
    MayDo.WRITE: Permission.WRITE,
    MayDo.NONE: Permission(0),
}


class MessageKind(StrEnum):
    NORMAL = "NORMAL"
    FIFO = "FIFO"
    DELAY = "DELAY"
    TRANSACTION = "TRANSACTION"
    MIXED = "MIXED"


def may_do(bits: int) -> str:
    return next(word.value for word, wanted in _BITS.items() if wanted == bits & Permission.READ_WRITE)


# --- looking ---------------------------------------------------------------------------------------------------------


@app.command("list")
def list_topics(
    every: Annotated[bool, typer.Option("--all", "-a", help="Also retry, dead-letter and system topics.")] = False,
    counts: Annotated[
        bool, typer.Option("--counts", "-c", help="Message counts, and the time of the newest message.")
    ] = False,
    as_json: AsJson = False,
    name_servers: NameServers = DEFAULT_NAME_SERVER,
) -> None:
    """List the topics of the cluster."""

    async def work(admin: Admin) -> list[tuple[Topic, TopicStats | None]]:
        from pyromq.admin.directory import of_each

        topics = [one for one in await admin.topics.list() if every or one.kind == "normal"]
        if not counts:
            return [(topic, None) for topic in topics]
        with output.counting_bar("counting", len(topics)) as more:

            async def one(topic: Topic) -> tuple[Topic, TopicStats | None]:
                stats = await admin.topics.stats(topic)
                more(1)
                return topic, stats

            return await of_each(topics, one)

    found = ask(name_servers, work)
    if as_json:
        output.print_json([_topic_json(topic) | _stats_json(stats) for topic, stats in found])
    elif found:
        output.stdout().print(_topics_table(found, counts))
    else:
        output.note("no topics yet: `pyromq topic create NAME` makes one, and so does the first message to it")


def _topics_table(found: list[tuple[Topic, TopicStats | None]], counts: bool) -> Any:
    figures = ("messages", "in/s", "newest") if counts else ("brokers",)
    table = output.listing("topic", "queues", "may", *figures, numbers=("queues", "messages", "in/s"))
    now_ms = SystemClock().now_ms()
    for topic, stats in found:
        queues = sum(on.write_queues for on in topic.brokers)
        name = escaped(topic.name) if topic.kind == "normal" else f"[dim]{escaped(topic.name)}[/]"
        if stats is None:
            rest = [escaped(", ".join(on.broker for on in topic.brokers))]
        else:
            rest = [number(stats.messages), rate(stats.in_per_second), ago(stats.last_ms, now_ms)]
        table.add_row(name, number(queues), may_do(topic.brokers[0].permission), *rest)
    return table


@app.command()
def describe(topic: TopicName, as_json: AsJson = False, name_servers: NameServers = DEFAULT_NAME_SERVER) -> None:
    """Show one topic: queues, offsets and consumer groups."""
    details = ask(name_servers, lambda admin: admin.topics.describe(topic))
    if as_json:
        output.print_json(_details_json(details))
        return
    console = output.stdout()
    console.print(_details_facts(details))
    table = output.listing("broker", "queue", "oldest", "next", "messages", "newest stored", numbers=_QUEUE_NUMBERS)
    for state in details.stats.queues:
        table.add_row(
            escaped(state.queue.broker_name), str(state.queue.queue_id), number(state.min_offset),
            number(state.max_offset), number(state.messages), moment(state.last_ms),
        )  # fmt: skip
    console.print(table)


_QUEUE_NUMBERS = ("queue", "oldest", "next", "messages")


def _details_facts(details: TopicDetails) -> Any:
    topic, stats = details.topic, details.stats
    facts = output.facts()
    facts.add_row("topic", f"[bold]{escaped(topic.name)}[/]")
    facts.add_row("kind", topic.kind)
    for on in topic.brokers:
        order = ", ordered" if on.order else ""
        facts.add_row(
            f"on {escaped(on.broker)}",
            f"{on.read_queues} queues to read, {on.write_queues} to write, {may_do(on.permission)}{order}",
        )
    attributes = {name: value for on in topic.brokers for name, value in on.attributes.items()}
    if attributes:
        facts.add_row("attributes", escaped(", ".join(f"{name}={value}" for name, value in sorted(attributes.items()))))
    facts.add_row("messages", f"{number(stats.messages)}, {rate(stats.in_per_second)}/s coming in")
    facts.add_row("groups", escaped(", ".join(details.groups)) or "[dim]none[/]")
    return facts


@app.command()
def route(topic: TopicName, as_json: AsJson = False, name_servers: NameServers = DEFAULT_NAME_SERVER) -> None:
    """Show the route of a topic: its brokers and their addresses."""
    found = ask(name_servers, lambda admin: admin.topics.route(topic))
    if as_json:
        output.print_json(_route_json(topic, found))
        return
    queues = {one.broker_name: one for one in found.queues}
    table = output.listing(
        "broker", "id", "address", "cluster", "read", "write", "may", numbers=("id", "read", "write")
    )
    for broker in found.brokers:
        data = queues.get(broker.name)
        figures = ["-", "-", "-"] if data is None else [
            str(data.read_queues), str(data.write_queues), may_do(data.permission),
        ]  # fmt: skip
        for broker_id, address in sorted(broker.addresses.items()):
            table.add_row(escaped(broker.name), str(broker_id), escaped(address), escaped(broker.cluster), *figures)
    output.stdout().print(table)


# --- changing --------------------------------------------------------------------------------------------------------


@app.command()
def create(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Its name.", show_default=False)],
    queues: Annotated[int, typer.Option("--queues", min=1, max=4096, help="Queues of each broker.")] = 8,
    permission: Annotated[MayDo, typer.Option("--permission", help="What clients may do.")] = MayDo.READ_WRITE,
    order: Annotated[bool, typer.Option("--order", help="Messages are ordered over all queues.")] = False,
    kind: Annotated[
        MessageKind | None,
        typer.Option("--type", help="What its messages are; clients over gRPC are held to it.", show_default=False),
    ] = None,
    attribute: Attributes = None,
    cluster: ClusterName = None,
    broker: BrokerName = None,
    as_json: AsJson = False,
    name_servers: NameServers = DEFAULT_NAME_SERVER,
) -> None:
    """Make a topic, on every broker of the cluster."""
    attributes = {name: value for name, value in _attributes(attribute).items() if value is not None}
    if kind is not None:
        attributes["message.type"] = kind.value
    made = ask(
        name_servers,
        lambda admin: admin.topics.create(
            topic, queues=queues, permission=permission.bits, order=order, attributes=attributes, cluster=cluster,
            broker=broker,
        ),
    )  # fmt: skip
    _show_set(made, "made", as_json)


@app.command()
def update(
    topic: TopicName,
    queues: Queues = None,
    read_queues: Annotated[
        int | None, typer.Option("--read-queues", min=0, max=4096, help="Queues that are read.")
    ] = None,
    write_queues: Annotated[
        int | None, typer.Option("--write-queues", min=0, max=4096, help="Queues that are written to.")
    ] = None,
    permission: Annotated[
        MayDo | None, typer.Option("--permission", help="What clients may do.", show_default=False)
    ] = None,
    attribute: Attributes = None,
    broker: BrokerName = None,
    as_json: AsJson = False,
    name_servers: NameServers = DEFAULT_NAME_SERVER,
) -> None:
    """Change the given settings of a topic.

    To have fewer queues without losing messages, lower --write-queues first, and --read-queues when the others are
    empty. An attribute without a value (--attribute NAME=) is removed.
    """
    if (queues, read_queues, write_queues, permission, attribute) == (None,) * 5:
        raise typer.BadParameter("say what is to change: --queues, --permission …", param_hint="the options")
    changed = ask(
        name_servers,
        lambda admin: admin.topics.update(
            topic,
            read_queues=queues if read_queues is None else read_queues,
            write_queues=queues if write_queues is None else write_queues,
            permission=None if permission is None else permission.bits,
            attributes=_attributes(attribute),
            broker=broker,
        ),
    )
    _show_set(changed, "changed", as_json)


def _show_set(topic: Topic, what: str, as_json: bool) -> None:
    if as_json:
        output.print_json(_topic_json(topic))
        return
    first = topic.brokers[0]
    where = ", ".join(on.broker for on in topic.brokers)
    queues = (
        f"{plural(first.read_queues, 'queue')} each"
        if first.read_queues == first.write_queues
        else f"{first.read_queues} queues to read and {first.write_queues} to write each"
    )
    output.stdout().print(
        f"[green]✓[/] {what} [bold]{escaped(topic.name)}[/] on {escaped(where)}: {queues}, {may_do(first.permission)}"
    )


def _attributes(written: list[str] | None) -> dict[str, str | None]:
    """`name=value`, and `name=` to remove one."""
    found: dict[str, str | None] = {}
    for one in written or []:
        name, equals, value = one.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"{one!r} is no NAME=VALUE", param_hint="--attribute")
        found[name] = value or None
    return found


@app.command()
def delete(
    topic: TopicName,
    cluster: ClusterName = None,
    yes: Yes = False,
    name_servers: NameServers = DEFAULT_NAME_SERVER,
) -> None:
    """Delete a topic and all its messages."""

    async def work(admin: Admin) -> TopicDetails:
        return await admin.topics.describe(topic)

    details = ask(name_servers, work)
    where = ", ".join(on.broker for on in details.topic.brokers if cluster in (None, on.cluster))
    if not where:
        raise TopicNotFound(f"no broker of the cluster {cluster!r} has a topic {topic!r}")
    groups = f", which {plural(len(details.groups), 'group')} consumed" if details.groups else ""
    messages = plural(details.stats.messages, "message")
    output.agree(f"delete the topic {topic} on {where} with {messages}{groups}.", yes=yes)
    ask(name_servers, lambda admin: admin.topics.delete(topic, cluster=cluster))
    output.stdout().print(f"[green]✓[/] deleted [bold]{escaped(topic)}[/]")


# --- for scripts -----------------------------------------------------------------------------------------------------


def _topic_json(topic: Topic) -> dict[str, Any]:
    brokers = [
        {
            "broker": on.broker,
            "cluster": on.cluster,
            "read_queues": on.read_queues,
            "write_queues": on.write_queues,
            "permission": may_do(on.permission),
            "order": on.order,
            "attributes": dict(on.attributes),
        }
        for on in topic.brokers
    ]
    return {"topic": topic.name, "kind": topic.kind, "brokers": brokers}


def _stats_json(stats: TopicStats | None) -> dict[str, Any]:
    if stats is None:
        return {}
    return {"messages": stats.messages, "in_per_second": stats.in_per_second, "newest_ms": stats.last_ms or None}


def _details_json(details: TopicDetails) -> dict[str, Any]:
    queues = [
        {
            "broker": state.queue.broker_name,
            "queue": state.queue.queue_id,
            "min_offset": state.min_offset,
            "max_offset": state.max_offset,
            "messages": state.messages,
            "newest_ms": state.last_ms or None,
        }
        for state in details.stats.queues
    ]
    return {
        **_topic_json(details.topic),
        **_stats_json(details.stats),
        "queues": queues,
        "groups": list(details.groups),
    }


def _route_json(topic: str, found: TopicRoute) -> dict[str, Any]:
    return {
        "topic": topic,
        "brokers": [
            {"broker": one.name, "cluster": one.cluster, "addresses": {str(k): v for k, v in one.addresses.items()}}
            for one in found.brokers
        ],
        "queues": [
            {
                "broker": one.broker_name,
                "read_queues": one.read_queues,
                "write_queues": one.write_queues,
                "permission": may_do(one.permission),
            }
            for one in found.queues
        ],
        "order": found.order_conf,
    }
