"""Views of brokers: two tables for a cluster, a list of facts for one broker. All fit 80 columns."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

from pyromq.cli import output
from pyromq.cli.connecting import ask
from pyromq.cli.output import ago, duration, escaped, moment, plural, rate, size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from pyromq.admin.brokers import BrokerStatus
    from pyromq.admin.copies import Copying, DiskCare, Slave

#: Roles as people say them.
ROLES = {"SYNC_MASTER": "sync master", "ASYNC_MASTER": "async master", "SLAVE": "slave"}


def show_brokers(as_json: bool, name_servers: str) -> None:
    from pyromq.admin.directory import no_master, without_master

    found = ask(name_servers, lambda admin: admin.brokers.statuses())
    if as_json:
        output.print_json([status_json(one) for one in found])
    elif found:
        for name in dict.fromkeys(one.cluster for one in found):
            _show_cluster(name, [one for one in found if one.cluster == name])
    else:
        output.note("no broker has registered yet: start one with `pyromq broker`, or wait a moment")
    headless = without_master(found)
    if any(one.problem for one in found) or headless:
        for name in headless:
            output.note(f"[red]![/] {escaped(no_master(name))}")
        raise typer.Exit(1)


# --- all of a cluster ------------------------------------------------------------------------------------------------


def _show_cluster(name: str, found: Sequence[BrokerStatus]) -> None:
    console = output.stdout()
    console.print(f"[bold]{escaped(name)}[/], {plural(len(found), 'broker')}")
    console.print(_traffic(found))
    if any(one.copying for one in found):
        console.print(_safety(found))
    for one in found:
        if one.problem:
            output.note(f"[red]![/] {escaped(f'{one.name}: {one.problem}')}")
        if one.name_conflict:
            output.note(f"[red]![/] {escaped(f'{one.address} is not registered: {one.name_conflict}')}")
        if one.copying is not None and one.copying.is_held:
            output.note(f"[red]![/] {escaped(f'{one.address}: {one.copying.problem}')}")
        if one.retention_paused:
            output.note(f"[yellow]![/] {escaped(f'{one.name}: {one.retention_paused}')}")


def _traffic(found: Sequence[BrokerStatus]) -> Table:
    table = output.listing(
        "broker", "id", "address", "version", "in/s", "out/s", "disk", numbers=("id", "in/s", "out/s", "disk")
    )
    for one in found:
        where = [escaped(one.name), str(one.broker_id), escaped(one.address)]
        if one.problem:
            table.add_row(*where, "[red]no answer[/]", "", "", "")
        else:
            told = (_version(one), rate(one.in_per_second), rate(one.out_per_second), _disk(one.disk_used))
            table.add_row(*where, *told)
    return table


def _safety(found: Sequence[BrokerStatus]) -> Table:
    """Return the table of roles, replicas and lag."""
    table = output.listing(
        "broker", "id", "role", "epoch", "copies", "flush p99", "to recover",
        numbers=("id", "epoch", "flush p99", "to recover"), prose="copies",
    )  # fmt: skip
    for one in found:
        if one.copying is not None:
            role = ROLES.get(one.copying.role, one.copying.role)
            table.add_row(
                escaped(one.name), str(one.broker_id), escaped(role), str(one.copying.epoch), _copies(one.copying),
                *_disk_care(one.disk_care),
            )  # fmt: skip
    return table


def _disk_care(care: DiskCare | None) -> tuple[str, str]:
    if care is None:
        return "", ""
    return milliseconds(care.flush_p99_ms) if care.flush_p99_ms else "-", size(care.recover_bytes)


def _copies(copying: Copying) -> str:
    """Return the replicas of a master, or the state of a slave, in a few words."""
    if copying.is_slave:
        if copying.is_held:
            return "[red]waits for a decision between two logs[/]"
        if not copying.is_connected:
            return f"[red]copies nobody[/]{_for_long(copying.lag_ms)}"
        return _behind(copying) + ("; [yellow]lacks topics and progress[/]" if copying.tables_problem else "")
    if not copying.slaves:
        return "[red]none, and waits for one[/]" if copying.role == "SYNC_MASTER" else "none"
    others = [one for one in copying.slaves if not one.is_in_sync]
    told = []
    if copying.in_sync:
        told.append(f"[green]in sync: {', '.join(map(_number, copying.in_sync))}[/]")
    if others:
        told.append(f"[yellow]not in sync: {', '.join(map(_number, others))}[/]")
    return "; ".join([*told, *([_behind(copying)] if copying.lag_bytes else [])])


def _behind(copying: Copying | Slave) -> str:
    return f"{size(copying.lag_bytes)} behind{_for_long(copying.lag_ms)}" if copying.lag_bytes else "level"


def _for_long(ms: int) -> str:
    return f" for {milliseconds(ms)}" if ms else ""


def milliseconds(ms: float) -> str:
    return duration(ms / 1000)


def _number(slave: Slave) -> str:
    """Its id, where it is known, else where it connects from."""
    return escaped(slave.connection) if slave.broker_id is None else str(slave.broker_id)


def _version(status: BrokerStatus) -> str:
    return f"PyroMQ {escaped(status.pyromq_version)}" if status.pyromq_version else escaped(status.version)


def _disk(used: float) -> str:
    colour = "red" if used > 0.85 else "yellow" if used > 0.75 else "green"
    return f"[{colour}]{used:.0%}[/]"


# --- one broker ------------------------------------------------------------------------------------------------------


def status_facts(found: BrokerStatus, now_ms: int) -> Table:
    facts = output.facts()
    facts.add_row("broker", f"[bold]{escaped(found.name)}[/], {role_of(found.broker_id)}")
    facts.add_row("cluster", escaped(found.cluster))
    if found.copying is not None:
        _add_copying(facts, found.copying)
    facts.add_row("address", escaped(found.address))
    facts.add_row("version", f"{_version(found)}, speaks {escaped(found.version)}")
    facts.add_row("started", f"{moment(found.started_ms)} ({ago(found.started_ms, now_ms)})")
    facts.add_row("coming in", f"{rate(found.in_per_second)}/s, {plural(found.messages_in_today, 'message')} today")
    facts.add_row("going out", f"{rate(found.out_per_second)}/s, {plural(found.messages_out_today, 'message')} today")
    facts.add_row("log", f"{size(found.log_bytes)}, the oldest message is from {moment(found.oldest_message_ms)}")
    if found.disk_care is not None:
        _add_disk_care(facts, found.disk_care)
    facts.add_row("disk in use", _disk(found.disk_used))
    if found.name_conflict:
        facts.add_row("name", f"[red]not registered: {escaped(found.name_conflict)}[/]")
    if found.retention_paused:
        facts.add_row("retention", f"[yellow]{escaped(found.retention_paused)}[/]")
    if found.clock_ms:
        facts.add_row("clock", f"within {duration(max(abs(found.clock_ms - now_ms) / 1000, 1))} of this machine's")
    return facts


def role_of(broker_id: int) -> str:
    return "master" if broker_id == 0 else f"slave {broker_id}"


def _add_copying(facts: Table, copying: Copying) -> None:
    facts.add_row("role", f"{escaped(ROLES.get(copying.role, copying.role))}, epoch {copying.epoch}")
    if copying.is_slave:
        facts.add_row("copy of", escaped(copying.master) or "[red]no master is known[/]")
        facts.add_row("copy", _copies(copying))
        if copying.problem:
            facts.add_row("", f"[yellow]{escaped(copying.problem)}[/]")
        if copying.tables_problem:
            told = f"topics, groups and progress are not copied: {copying.tables_problem}"
            facts.add_row("", f"[yellow]{escaped(told)}[/]")
        return
    facts.add_row("in sync", ", ".join(map(_long_name, copying.in_sync)) or _copies(copying))
    for one in copying.slaves:
        if not one.is_in_sync or one.lag_bytes:
            facts.add_row("" if one.is_in_sync else "not in sync", f"{_long_name(one)} is {_behind(one)}")


def _long_name(slave: Slave) -> str:
    return f"slave {_number(slave)} ({escaped(slave.address)})" if slave.address else _number(slave)


def _add_disk_care(facts: Table, care: DiskCare) -> None:
    last, mean, p99 = map(milliseconds, (care.flush_last_ms, care.flush_mean_ms, care.flush_p99_ms))
    told = f"{last} the last time, {mean} on average, p99 {p99}"
    facts.add_row("flush", told if care.flush_max_ms else "none yet")
    facts.add_row("to recover", f"{size(care.recover_bytes)} of the log, after a crash")


def status_json(one: BrokerStatus) -> dict[str, Any]:
    return {
        "cluster": one.cluster,
        "broker": one.name,
        "id": one.broker_id,
        "address": one.address,
        "version": one.version,
        "pyromq_version": one.pyromq_version,
        "started_ms": one.started_ms or None,
        "in_per_second": one.in_per_second,
        "out_per_second": one.out_per_second,
        "messages_in_today": one.messages_in_today,
        "messages_out_today": one.messages_out_today,
        "log_bytes": one.log_bytes,
        "disk_used": one.disk_used,
        "oldest_message_ms": one.oldest_message_ms or None,
        "copies": None if one.copying is None else asdict(one.copying),
        "disk_care": None if one.disk_care is None else asdict(one.disk_care),
        "retention_paused": one.retention_paused or None,
        "name_conflict": one.name_conflict or None,
        "problem": one.problem,
    }
