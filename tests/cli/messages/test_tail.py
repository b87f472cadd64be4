"""`pyromq tail` as a process: it follows, survives a broker's restart, and ends with the reader or with Ctrl-C."""

from __future__ import annotations

import itertools
import signal
import subprocess
from pathlib import Path

import pyromq.testing
from cli.support.programs import SECONDS, Program, command, environment, run


def test_it_follows_a_topic_and_waits_for_a_broker_that_went_away(tmp_path: Path) -> None:
    with pyromq.testing.broker(topics={"orders": 1}) as mq:
        run("send", "orders", "old", cwd=tmp_path, NAMESRV_ADDR=mq.name_servers)
        with Program("tail", "orders", cwd=tmp_path, NAMESRV_ADDR=mq.name_servers) as tail:
            tail.until("queue 0 offset 0  old")
            assert run("send", "orders", "new", cwd=tmp_path, NAMESRV_ADDR=mq.name_servers).code == 0
            tail.until("queue 0 offset 1  new")
            mq.stop()
            tail.until("trying again")
            mq.start()
            for number in itertools.count():  # until the name server knows the broker again
                if run("send", "orders", f"later {number}", cwd=tmp_path, NAMESRV_ADDR=mq.name_servers).code == 0:
                    break
            tail.until(f"later {number}")
            assert tail.stop(signal.SIGINT) == 0
    assert tail.out.count("old") == tail.out.count("new") == 1


def test_it_waits_for_a_topic_and_ends_with_its_reader(tmp_path: Path) -> None:
    with (
        pyromq.testing.broker() as mq,
        subprocess.Popen(
            command(["tail", "orders", "--json"]), cwd=tmp_path, env=environment(NAMESRV_ADDR=mq.name_servers),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        ) as process,
    ):  # fmt: skip
        assert process.stdout
        assert process.stderr
        assert b"waiting for it" in process.stderr.readline()
        run("send", "orders", "first", cwd=tmp_path, NAMESRV_ADDR=mq.name_servers)
        assert b'"body": "first"' in process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(SECONDS) == 0
