"""On a terminal people are asked before something is destroyed."""

from __future__ import annotations

import os
import pty
import subprocess
from pathlib import Path

import pytest

import pyromq.testing
from cli.support.cluster_scene import Shell
from cli.support.programs import SECONDS, Done, command, environment


def on_a_terminal(*arguments: str, answer: str, name_servers: str, cwd: Path) -> Done:
    """A command whose stdin is a terminal where somebody types an answer."""
    ours, theirs = pty.openpty()
    try:
        with subprocess.Popen(
            command(arguments), cwd=cwd, env=environment(NAMESRV_ADDR=name_servers), stdin=theirs,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        ) as process:  # fmt: skip
            os.write(ours, answer.encode())
            out, err = process.communicate(timeout=SECONDS)
        return Done(process.returncode, out.decode(), err.decode())
    finally:
        os.close(ours)
        os.close(theirs)


@pytest.mark.parametrize(("answer", "code", "left"), [("n\n", 1, ["orders"]), ("\n", 1, ["orders"]), ("y\n", 0, [])])
def test_only_a_yes_deletes(answer: str, code: int, left: list[str], tmp_path: Path) -> None:
    with pyromq.testing.broker(topics=["orders"]) as mq:
        done = on_a_terminal(
            "topic", "delete", "orders", answer=answer, name_servers=mq.name_servers, cwd=tmp_path
        )  # fmt: skip
        assert done.code == code
        assert "This will delete the topic orders on broker-a with 0 messages." in done.err
        assert "Go on? [y/N]" in done.err + done.out
        assert ("nothing was done" in done.err) == bool(code)
        assert [one["topic"] for one in Shell(mq.name_servers).json("topic", "list")] == left
