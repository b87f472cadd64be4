"""An upgrade as an operator does it: brokers in processes of their own, each kept running by somebody like systemd, and
`pyromq cluster roll --command` which has them started anew, while a producer sends."""

from __future__ import annotations

import threading
from pathlib import Path

from admin.scene import with_admin
from cli.support.cluster_scene import Shell
from cli.support.pair_scene import Load, read_all, until
from cli.support.programs import SECONDS, Program
from pyromq import Admin
from pyromq.testing.brokers.ports import free_port

RESTART = """#!/bin/sh
# What `systemctl restart` does: stop it, and have it started again.
kill -TERM "$(cat "$0.$1")"
"""


class Supervised:
    """A broker that is started again whenever it ends, until the block does."""

    def __init__(self, home: Path, *arguments: str, port: int) -> None:
        self._home = home
        self._arguments = ("broker", *arguments, "--port", str(port))
        self._pid_file = home / f"restart.127.0.0.1:{port}"
        self._is_wanted = True
        self.pids: list[int] = []
        self.failed = ""
        self._program = self._start()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _start(self) -> Program:
        program = Program(*self._arguments, cwd=self._home)
        program.until("PyroMQ is up")
        self.pids.append(program.process.pid)
        self._pid_file.write_text(str(program.process.pid), encoding="ascii")
        return program

    def _watch(self) -> None:
        while True:
            code = self._program.process.wait()
            if not self._is_wanted:
                return
            self.failed = "" if code == 0 else f"exit code {code}: {self._program.err}"
            with self._program:
                self._program.wait()
            self._program = self._start()

    def __enter__(self) -> Supervised:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_wanted = False
        with self._program:
            self._program.stop()
        self._thread.join(SECONDS)


def test_an_upgrade_of_a_pair_under_load_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    restart = tmp_path / "restart"
    restart.write_text(RESTART, encoding="ascii")
    restart.chmod(0o755)
    names_port, first, second = free_port(), free_port(), free_port()
    name_server = f"127.0.0.1:{names_port}"
    shell = Shell(name_server)
    common = ("--name", "pair", "-n", name_server, "--config", str(_settings(tmp_path)))
    with Program("nameserver", "--port", str(names_port), cwd=tmp_path) as names:
        names.until("PyroMQ is up")
        with (
            Supervised(tmp_path, *common, "--role", "sync-master", "--store", "a", port=first) as one,
            Supervised(tmp_path, *common, "--role", "slave", "--id", "1", "--store", "b", port=second) as other,
        ):
            until(lambda: with_admin(name_server, in_sync) == 1)
            with Load(name_server) as load:
                done = shell("cluster", "roll", "--yes", "--timeout", "60", "--command", f"{restart} {{address}}")
                assert done.exit_code == 0, done.output
                sent = len(load.acknowledged)
                until(lambda: len(load.acknowledged) > sent)
            assert "pair waits for its only slave: while that is away" in done.stderr
            assert (len(one.pids), len(other.pids), one.failed, other.failed) == (2, 2, "", "")
            listed = {broker["address"]: broker["id"] for broker in shell.json("cluster")}
            assert listed == {f"127.0.0.1:{second}": 0, f"127.0.0.1:{first}": 1}
            stored = with_admin(name_server, lambda _: read_all(name_server, len(load.acknowledged)))
            assert set(load.acknowledged) <= set(stored)


async def in_sync(admin: Admin) -> int:
    return sum(len(one.copying.in_sync) for one in await admin.brokers.statuses() if one.copying)


def _settings(home: Path) -> Path:
    """Small files, and no fear of a disk that is nearly full."""
    file = home / "broker.toml"
    file.write_text(
        "auto_create_topics = true\nauto_create_groups = true\nvip_channel = false\n"
        "[replication]\nheartbeat_ms = 500\nmetadata_interval_ms = 200\n"
        "[store]\nsegment_bytes = 1048576\n[store.retention]\nrefuse_at = 1.0\nresume_below = 0.99\n",
        encoding="ascii",
    )
    return file
