"""`pyromq doctor`: what this installation runs on, and what would make it faster."""

from __future__ import annotations

import mmap
import os
import platform as system
import resource
import shutil
from importlib.util import find_spec
from typing import Annotated

import typer

from pyromq import __version__, accelerated
from pyromq.cli import output
from pyromq.cli.servers.checks import Check
from pyromq.records import checksum
from pyromq.records import scan as record_scan
from pyromq.store import key_index
from pyromq.store.queues import queue_cursor, queue_reader

_POPULATE_READ = 22  # Linux 5.14

#: A broker has an open file for each queue, segment and connection.
ENOUGH_OPEN_FILES = 65_536


def checks() -> list[Check]:
    return [
        Check("PyroMQ", __version__),
        Check("Python", f"{system.python_version()} ({system.python_implementation()}, {system.machine()})"),
        Check("system", f"{system.system()} {system.release()}, {output.plural(os.cpu_count() or 1, 'core')}"),
        _memory(),
        *(_kernel(room, compiled) for room, compiled in rooms().items()),
        _crc(),
        _module("uvloop", "uvloop", "the network is slower without it: pip install uvloop"),
        _fallocate(),
        _populate(),
        _open_files(),
        _tool("Java", ("java",), "only for tests against Apache RocketMQ itself"),
        _tool("C compiler", ("cc", "gcc", "clang"), "only to build the compiled kernel from source"),
    ]


def rooms() -> dict[str, bool]:
    """The parts that have a compiled twin, and whether it is the one that runs."""
    return {
        "records": record_scan.COMPILED,
        "queues": queue_cursor.COMPILED,
        "reading": queue_reader.collect is not queue_reader.collect_readable,
        "key index": key_index.index_keys is not key_index.index_keys_readable,
        "sends and pulls": accelerated.load("accelerator") is not None,
        "spark": accelerated.load("spark") is not None,
    }


def _kernel(room: str, compiled: bool) -> Check:
    if compiled:
        return Check(f"kernel: {room}", "compiled", True)
    forced = os.environ.get("PYROMQ_KERNEL") == "python"
    advice = "PYROMQ_KERNEL=python asks for it" if forced else "install a C compiler and install PyroMQ again"
    return Check(f"kernel: {room}", "python", False, advice)


def _crc() -> Check:
    fast = checksum.LIBRARY == "isal"
    return Check("CRC library", checksum.LIBRARY, fast, "" if fast else "checksums are faster with: pip install isal")


def _module(name: str, module: str, advice: str) -> Check:
    found = find_spec(module) is not None
    return Check(name, "installed" if found else "not installed", found, "" if found else advice)


def _fallocate() -> Check:
    found = hasattr(os, "posix_fallocate")
    advice = "" if found else "files are filled with zeroes instead: making a segment takes longer"
    return Check("fallocate", "yes" if found else "no", found, advice)


def _populate() -> Check:
    """Can pages be made ready ahead of writing?"""
    found = False
    if hasattr(mmap.mmap, "madvise"):
        with mmap.mmap(-1, mmap.PAGESIZE) as page:
            try:
                page.madvise(_POPULATE_READ)
                found = True
            except OSError:
                pass
    advice = "" if found else "the first write to each page is slower (Linux 5.14 and later have it)"
    return Check("madvise populate", "yes" if found else "no", found, advice)


def _open_files() -> Check:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    reachable = ENOUGH_OPEN_FILES if hard == unlimited else hard
    most, now = ("unlimited" if limit == unlimited else output.number(limit) for limit in (hard, soft))
    good = reachable >= ENOUGH_OPEN_FILES
    advice = "" if good else f"with many queues raise it to {output.number(ENOUGH_OPEN_FILES)} (ulimit -n)"
    return Check("open files", most if most == now else f"{most} ({now} until asked for)", good, advice)


def _memory() -> Check:
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return Check("memory", "unknown")
    return Check("memory", output.size(total))


def _tool(name: str, commands: tuple[str, ...], purpose: str) -> Check:
    found = next((path for command in commands if (path := shutil.which(command))), None)
    return Check(name, found or "not found", None, purpose)


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")] = False,
    name_servers: Annotated[
        str | None,
        typer.Option(
            "--name-servers",
            "-n",
            metavar="HOST:PORT;…",
            help="Look at this cluster too: does everybody answer, do the clocks agree?",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Check this installation: active accelerations and advice.

    With --name-servers it checks a cluster, too: reachability of name servers and brokers, and agreement of the clocks.
    It then exits with 1 if something needs attention.
    """
    found = checks()
    reached: list[Check] = []
    if name_servers is not None:
        from pyromq.cli.servers.doctor_cluster import cluster_checks

        reached = cluster_checks(name_servers)
        found += reached
    _show(found, as_json)
    if any(check.good is False and check.advice for check in reached):
        raise typer.Exit(1)


def _show(found: list[Check], as_json: bool) -> None:
    if as_json:
        output.print_json({"kernel": rooms(), "checks": found})
        return
    table = output.facts()
    table.add_column(style="dim", overflow="fold")
    signs = {True: "[green]✓[/] ", False: "[yellow]![/] ", None: "  "}
    for check in found:
        table.add_row(check.name, signs[check.good] + output.escaped(check.value), output.escaped(check.advice))
    output.stdout().print(table)
