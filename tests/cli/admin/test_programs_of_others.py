"""A command that is run for each broker: its words, what is put in, and what is said when it does not go well."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from pyromq.cli.admin.programs import run, words_of
from pyromq.errors import ConfigError

VALUES = {"name": "broker a; rm -rf", "id": "1", "address": "10.0.0.2:10911", "host": "10.0.0.2"}


def test_a_value_stays_within_its_word() -> None:
    words = words_of("ssh {host} 'systemctl restart' {name}-{id} $HOME", VALUES)
    assert words == ["ssh", "10.0.0.2", "systemctl restart", "broker a; rm -rf-1", "$HOME"]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("ssh {hots} x", "{hots} is not known; what can be put in is {name}, {id}, {address}, {host}"),
        ("ssh 'x", "is no command: No closing quotation"),
        ("  ", "it is empty"),
    ],
)
def test_a_command_that_cannot_be_understood_is_refused(command: str, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        words_of(command, VALUES)
    assert words in str(refused.value)


def test_a_program_that_ends_well_is_waited_for(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    asyncio.run(run([sys.executable, "-c", f"open({str(mark)!r}, 'w').write('yes')"], 30.0))
    assert mark.read_text() == "yes"


def test_a_server_that_it_leaves_running_is_not_waited_for() -> None:
    asyncio.run(run(["sh", "-c", "sleep 3 & echo started"], 10.0))


def test_a_program_that_fails_is_quoted() -> None:
    with pytest.raises(ConfigError, match="failed with exit code 3: no such unit"):
        asyncio.run(run(["sh", "-c", "echo no such unit >&2; exit 3"], 30.0))
    with pytest.raises(ConfigError, match="failed with exit code 1: it said nothing"):
        asyncio.run(run(["false"], 30.0))
    with pytest.raises(ConfigError, match="`no-such-program x` cannot be run: No such file"):
        asyncio.run(run(["no-such-program", "x"], 30.0))


def test_a_program_that_takes_too_long_is_ended() -> None:
    with pytest.raises(ConfigError, match=r"`sleep 60` did not end within 0\.1 s"):
        asyncio.run(run(["sleep", "60"], 0.1))
