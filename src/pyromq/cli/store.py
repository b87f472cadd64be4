"""`pyromq store`: look inside a store directory, check it, put it in order."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from pyromq.cli import output
from pyromq.cli.output import escaped, moment, number, plural, size
from pyromq.config import StoreConfig
from pyromq.store.message_store import MessageStore
from pyromq.store.offline.inspect import StoreView, TopicView, detect, recover_command
from pyromq.store.offline.inspect import inspect as look
from pyromq.store.offline.verify import Severity, VerifyReport, bytes_and_messages_from
from pyromq.store.offline.verify import verify as check
from pyromq.store.paths import StorePaths
from pyromq.store.recovery.log_recovery import RecoveryReport

app = typer.Typer(help="Look inside a store directory, check it, put it in order.", no_args_is_help=True)

Directory = Annotated[Path, typer.Argument(metavar="DIR", help="The store directory.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
IndexSlots = Annotated[int | None, typer.Option(help="Hash slots of an index file, if the file does not tell.")]
IndexEntries = Annotated[int | None, typer.Option(help="Entries of an index file, if the file does not tell.")]
CommitLog = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Directory of the commit log, if the store does not name it.")
]

#: Rows that people still read; `--json` has all.
MOST_FINDINGS = 40
MOST_FILES = 12


# --- inspect ---------------------------------------------------------------------------------------------------------


@app.command()
def inspect(
    directory: Directory,
    topic: Annotated[str | None, typer.Option(help="Only this topic, queue by queue.")] = None,
    commit_log: CommitLog = None,
    index_slots: IndexSlots = None,
    index_entries: IndexEntries = None,
    as_json: AsJson = False,
) -> None:
    """Show the contents of a store: log, topics, queues, index, and whether it was closed cleanly.

    Reads only; the store may be in use. Exits with 1 if a start would refuse the store.
    """
    config = detect(directory, commit_log=commit_log, index_slots=index_slots, index_entries=index_entries)
    view = look(directory, config=config, topic=topic)
    if as_json:
        output.print_json(_inspect_json(view))
    else:
        _show_inspected(output.stdout(), view, topic)
    if view.refusal is not None:
        raise typer.Exit(1)


def _show_inspected(console: Console, view: StoreView, topic: str | None) -> None:
    if topic is None:
        _show_summary(console, view)
        _show_segments(console, view)
        _show_topics(console, view)
        _show_index(console, view)
    for each in view.topics if topic is not None else []:
        _show_queues(console, each)
    if topic is not None:
        _show_problems(console, view)
    if view.refusal is not None:
        refused = f"[bold red]a start would be refused:[/] {escaped(view.refusal.what)}."
        console.print(f"\n{refused} {escaped(view.refusal.way_out)}", soft_wrap=True)


def _show_problems(console: Console, view: StoreView) -> None:
    for problem in view.problems[:MOST_FINDINGS]:
        console.print(f"[red]![/] {escaped(problem.path)}: {escaped(problem.what)}")
    more = len(view.problems) - MOST_FINDINGS
    if more > 0:
        console.print(f"… and {number(more)} more; --json lists all")


def _inspect_json(view: StoreView) -> dict[str, Any]:
    found: dict[str, Any] = output.plain(view)
    found["messages"] = view.messages
    for topic, shown in zip(view.topics, found["topics"], strict=True):
        shown["messages"] = topic.messages
    return found


def _state(view: StoreView) -> str:
    if view.lock_holder is not None:
        return f"[green]in use[/] by process {view.lock_holder or 'unknown'}{_but(view)}"
    if view.refusal is not None:
        closed = "closed cleanly" if view.clean else "not closed"
        return f"[bold red]damaged[/], {closed}: a start would be refused{_but(view)}"
    if view.clean and view.problems:
        return f"[yellow]closed cleanly[/]{_but(view)}"
    if view.clean:
        return "[green]clean[/]: nothing to recover"
    left = f" by process {view.abort_pid}" if view.abort_pid else ""
    return f"[yellow]not closed[/]{left}: the next start recovers it{_but(view)}"


def _but(view: StoreView) -> str:
    return f"; [red]{plural(len(view.problems), 'problem')}[/], see below" if view.problems else ""


def _show_summary(console: Console, view: StoreView) -> None:
    log, point = view.log, view.recover_point
    console.print(f"[bold]{escaped(view.root)}[/]")
    table = output.facts()
    table.add_row("state", _state(view))
    table.add_row("messages", f"{number(view.messages)} in {plural(len(view.topics), 'topic')}")
    table.add_row("last message", moment(log.last_message_ms))
    table.add_row("log", f"{number(log.start)} to {number(log.end)} ({size(log.end - log.start)})")
    if log.behind_the_end:
        table.add_row("", f"[yellow]what follows is no whole record[/] ({escaped(log.behind_the_end)})")
    if point is None:
        table.add_row("recover point", "none: another program wrote this store, or nothing was written yet")
    else:
        reached = f"log synced to {number(point.synced)}, queues to {number(point.queues_to)}"
        table.add_row("recover point", f"{reached}, index to {number(point.index_to)}")
    times = view.checkpoint
    table.add_row(
        "checkpoint", f"log {moment(times.log_ms)}, queues {moment(times.queue_ms)}, index {moment(times.index_ms)}"
    )
    parts = ", ".join(f"{name} {size(amount)}" for name, amount in view.bytes_by_directory.items() if amount)
    table.add_row("file lengths", parts or "none")
    if log.apart is not None:
        used = f"{view.log_disk.share:.0%} of {size(view.log_disk.total)} in use"
        table.add_row("log's directory", f"{escaped(log.apart)}; disk {used}")
    table.add_row("disk", f"{view.disk.share:.0%} of {size(view.disk.total)} in use")
    if view.config_files:
        table.add_row("config", ", ".join(escaped(Path(each.file).name) for each in view.config_files))
    for each in view.cut_off:
        table.add_row("cut off", f"{escaped(each.file)}: {size(each.bytes)} that recovery cut from the end of the log")
    console.print(table)
    _show_problems(console, view)


def _show_segments(console: Console, view: StoreView) -> None:
    segments = view.log.segments
    if not segments:
        return
    table = output.listing(
        f"segments of {size(view.log.segment_bytes)}", "in use", "first message", numbers=("in use",)
    )
    shown = segments if len(segments) <= MOST_FILES else [segments[0], *segments[1 - MOST_FILES :]]
    for index, each in enumerate(shown):
        if index == 1 and len(shown) < len(segments):
            table.add_row(f"… {len(segments) - len(shown)} more", "", "")
        table.add_row(escaped(each.file), size(each.used_bytes), moment(each.first_message_ms))
    console.print(table)


def _show_topics(console: Console, view: StoreView) -> None:
    if not view.topics:
        return
    table = output.listing("topic", "queues", "messages", "last message", numbers=("queues", "messages"))
    for each in view.topics:
        table.add_row(escaped(each.name), number(len(each.queues)), number(each.messages), moment(each.last_message_ms))
    console.print(table)


def _show_queues(console: Console, topic: TopicView) -> None:
    numbers = ("queue", "min offset", "max offset", "messages")
    table = output.listing(*numbers, "last message", numbers=numbers)
    console.print(f"[bold]{escaped(topic.name)}[/]")
    for each in topic.queues:
        figures = (each.number, each.min_offset, each.max_offset, each.messages)
        table.add_row(*map(number, figures), moment(each.last_message_ms))
    console.print(table)


def _show_index(console: Console, view: StoreView) -> None:
    if not view.index:
        return
    table = output.listing("key index", "entries", "full", "from", "to", numbers=("entries", "full"))
    for each in view.index:
        share = f"{each.entries / each.capacity:.0%}"
        table.add_row(escaped(each.file), number(each.entries), share, moment(each.begin_ms), moment(each.end_ms))
    console.print(table)


# --- verify ----------------------------------------------------------------------------------------------------------


@app.command()
def verify(
    directory: Directory,
    commit_log: CommitLog = None,
    index_slots: IndexSlots = None,
    index_entries: IndexEntries = None,
    as_json: AsJson = False,
) -> None:
    """Check every record, queue entry and index entry against each other.

    Reads only; the store may be in use. Exits with 1 if something is damaged.
    """
    config = detect(directory, commit_log=commit_log, index_slots=index_slots, index_entries=index_entries)
    with output.progress_bar("Verifying") as progress:
        report = check(directory, config=config, progress=progress)
    if as_json:
        output.print_json({"ok": report.ok, **output.plain(report)})
    else:
        _show_verified(output.stdout(), report)
    if not report.ok:
        raise typer.Exit(1)


def _show_verified(console: Console, report: VerifyReport) -> None:
    rate = report.records / report.seconds if report.seconds else 0
    console.print(f"[bold]{escaped(report.root)}[/]")
    table = output.facts()
    log, queues, files = (
        plural(report.segments, "segment"),
        plural(report.queues, "queue"),
        plural(report.index_files, "file"),
    )
    table.add_row("log", f"{plural(report.records, 'record')} in {log}, {size(report.log_end - report.log_start)}")
    table.add_row("queues", f"{plural(report.queue_entries, 'entry', 'entries')} in {queues}")
    table.add_row("index", f"{plural(report.index_entries, 'entry', 'entries')} in {files}")
    table.add_row("time", f"{output.duration(report.seconds)} ({number(int(rate))} records/s)")
    if report.live:
        table.add_row("note", "the store is in use: what was written meanwhile was not looked at")
    console.print(table)
    if report.findings:
        _show_findings(console, report)
    if report.errors:
        way_out = escaped(_way_out(report))
        console.print(f"\n[bold red]damaged:[/] {plural(report.errors, 'error')}. {way_out}", soft_wrap=True)
    elif report.notes:
        console.print(f"\n[bold green]intact[/], with {plural(report.notes, 'note')} that the next start deals with.")
    else:
        console.print("\n[bold green]intact:[/] everything is as it was written.")


def _show_findings(console: Console, report: VerifyReport) -> None:
    table = output.listing("found", "file", "position", "what", numbers=("position",), prose="what")
    for each in report.findings[:MOST_FINDINGS]:
        kind = "[red]error[/]" if each.severity is Severity.ERROR else "[yellow]note[/]"
        table.add_row(kind, escaped(each.file), str(each.position), escaped(each.what))
    console.print(table)
    more = report.errors + report.notes - MOST_FINDINGS
    if more > 0:
        console.print(f"… and {number(more)} more; --json lists the first {number(report.max_findings)}")


def _way_out(report: VerifyReport) -> str:
    paths = StorePaths(report.root, report.log_directory)
    if report.refusal is not None:
        return f"A start would be refused: {report.refusal.what}. {report.refusal.way_out}"
    errors = [each for each in report.findings if each.severity is Severity.ERROR]
    in_log = [each for each in errors if report.is_in_log(each)]
    if in_log:
        return (
            "The log itself is damaged: restore the file from a replica or a backup, or give up what follows with "
            f"`{recover_command(paths, in_log[0].position)}`."
        )
    if all(each.file.parts[0] in ("consumequeue", "index") for each in errors):
        return (
            "The log is whole and nothing is lost: stop the broker and run "
            f"`{recover_command(paths)} --rebuild-queues`."
        )
    return "No message is affected: put the named files back from a backup."


# --- recover ---------------------------------------------------------------------------------------------------------


@app.command()
def recover(
    directory: Directory,
    truncate_at: Annotated[
        int | None, typer.Option(metavar="POSITION", min=0, help="Discard the log from this position on.")
    ] = None,
    rebuild_queues: Annotated[
        bool, typer.Option("--rebuild-queues", help="Derive queues and index from the log again.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation before discarding data.")] = False,
    commit_log: CommitLog = None,
    index_slots: IndexSlots = None,
    index_entries: IndexEntries = None,
    as_json: AsJson = False,
) -> None:
    """Recover a store as a starting broker does, without starting one.

    It cuts a torn tail, completes queues and index, and closes the store cleanly.
    """
    config = detect(directory, commit_log=commit_log, index_slots=index_slots, index_entries=index_entries)
    given_up = (0, 0)
    if truncate_at is not None:
        given_up = bytes_and_messages_from(config, truncate_at)
        what = (
            f"{number(given_up[0])} bytes with {plural(given_up[1], 'readable message')} from position {truncate_at} on"
        )
        output.stderr().print(f"This gives up {what} in {escaped(directory)}.")
        if not yes and not typer.confirm("Go on?", err=True):
            output.fail("nothing was changed")
    report, messages = _recover(config, truncate_at, rebuild_queues)
    if as_json:
        shown = output.plain(report)
        lost = {"bytes": given_up[0], "messages": given_up[1]}
        output.print_json({**shown, "rebuilt": rebuild_queues, "given_up": lost, "messages": messages})
    else:
        _show_recovered(output.stdout(), config, report, messages, rebuild_queues)


def _recover(config: StoreConfig, truncate_at: int | None, rebuild: bool) -> tuple[RecoveryReport, int]:
    """On a thread of its own, which owns the store; this one watches."""
    store = MessageStore(config)

    def work() -> tuple[RecoveryReport, int]:
        try:
            report = store.open(truncate_at=truncate_at, rebuild=rebuild)
            store.dispatch()
            return report, sum(queue.max_offset - queue.min_offset for queue in store.queue_list())
        finally:
            store.close()

    with ThreadPoolExecutor(1, "pyromq-recover") as pool, output.progress_bar("Recovering") as progress:
        future = pool.submit(work)
        while not wait_for([future], 0.1).done:
            at = store.positions()
            total = at.written - at.log_start
            done = at.dispatched + at.indexed - 2 * at.log_start
            progress(max(done, 0), 2 * max(total, 0))
        return future.result()


def _show_recovered(
    console: Console, config: StoreConfig, report: RecoveryReport, messages: int, rebuilt: bool
) -> None:
    console.print(f"[bold]{escaped(config.root)}[/]")
    table = output.facts()
    table.add_row("was", "closed cleanly" if report.clean else "not closed cleanly")
    table.add_row("log", f"{number(report.log_start)} to {number(report.log_end)}")
    table.add_row("checked", f"{plural(report.records_scanned, 'record')} from {number(report.scanned_from)} on")
    if report.bytes_cut:
        table.add_row(
            "cut off", f"{size(report.bytes_cut)} from the end of the log, kept in {escaped(report.cut_kept_in)}"
        )
    else:
        table.add_row("cut off", "nothing")
    table.add_row("queues", f"{'made anew' if rebuilt else 'complete'}: {plural(messages, 'message')}")
    if report.index_from < report.log_end:
        table.add_row("index", f"made anew from {number(report.index_from)} on")
    table.add_row("time", output.duration(report.seconds))
    console.print(table)
    console.print("\n[bold green]in order:[/] the store is closed cleanly and ready to be started.")
