"""Completion, as shells ask for it: a process with the question in its environment."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import pyromq.testing
from admin.scene import with_admin
from cli.support.programs import SECONDS, environment
from pyromq.admin.admin import Admin

PROGRAM = Path(sys.executable).parent / "pyromq"


def complete(words: str, **more: str) -> list[str]:
    """What bash is told for the last word."""
    count = len(words.split(" ")) - 1
    asked = {"COMP_WORDS": words, "COMP_CWORD": str(count), "_PYROMQ_COMPLETE": "complete_bash"}
    done = subprocess.run(
        [str(PROGRAM)], env=environment(**asked, **more), capture_output=True, timeout=SECONDS, check=True
    )
    assert done.stderr == b""
    return done.stdout.decode().split()


def test_commands_options_and_choices() -> None:
    assert complete("pyromq mess") == ["message"]
    assert complete("pyromq consumer re") == ["reset"]
    assert complete("pyromq topic create t --perm") == ["--permission"]
    assert complete("pyromq topic create t --permission read-") == ["read-write"]


def test_names_come_from_the_cluster_when_it_answers() -> None:
    with pyromq.testing.broker(topics=["orders", "other"]) as mq:

        async def story(admin: Admin) -> None:
            await admin.groups.create("offices")

        with_admin(mq.name_servers, story)
        asked = {"NAMESRV_ADDR": mq.name_servers}
        assert complete("pyromq topic describe o", **asked) == ["orders", "other"]
        assert complete("pyromq consumer lag o", **asked) == ["offices"]
        assert complete("pyromq broker status b", **asked) == ["broker-a"]
    assert complete("pyromq topic describe o", **asked) == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_its_script(shell: str) -> None:
    done = subprocess.run(
        [str(PROGRAM), "completion", shell], env=environment(), capture_output=True, timeout=SECONDS, check=True
    )
    assert f"_PYROMQ_COMPLETE=complete_{shell}" in done.stdout.decode()


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
def test_bash_takes_it() -> None:
    script = (
        'eval "$(pyromq completion bash)"; COMP_WORDS=(pyromq top); COMP_CWORD=1; _pyromq_completion pyromq; '
        'echo "${COMPREPLY[@]}"'
    )
    path = f"{PROGRAM.parent}:{environment()['PATH']}"
    done = subprocess.run(
        ["bash", "-c", script], env=environment(PATH=path), capture_output=True, timeout=SECONDS, check=True
    )
    assert done.stdout.decode().strip() == "topic"
