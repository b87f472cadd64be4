"""The file with the group secret: where it is, how it is created, when it is refused."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pyromq.config.secret_file import read_or_make_secret, secret_path
from pyromq.errors import ConfigError


def test_the_setting_wins_over_the_variable_and_the_variable_over_the_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYROMQ_SECRET_FILE", "/named")
    monkeypatch.setenv("XDG_CONFIG_HOME", "/xdg")
    monkeypatch.setenv("HOME", "/me")
    assert secret_path(tmp_path) == tmp_path
    assert secret_path() == Path("/named")
    monkeypatch.delenv("PYROMQ_SECRET_FILE")
    assert secret_path() == Path("/xdg/pyromq/secret")
    monkeypatch.delenv("XDG_CONFIG_HOME")
    assert secret_path() == Path("/me/.config/pyromq/secret")


def test_it_is_created_once_and_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "config" / "pyromq" / "secret"
    secret = read_or_make_secret(path)
    assert len(secret) == 64
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_or_make_secret(path) == secret
    assert [one.name for one in path.parent.iterdir()] == ["secret"]


def test_programs_that_start_together_use_the_same_secret(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(read_or_make_secret, [tmp_path / "secret"] * 32))
    assert len(found) == 1


def test_a_file_that_others_can_read_is_refused_with_the_remedy(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    read_or_make_secret(path)
    path.chmod(0o640)
    with pytest.raises(ConfigError, match=r"mode 640.*chmod 600.*replication\.secret_file"):
        read_or_make_secret(path)


@pytest.mark.parametrize("content", [b"", b"short\n", b"x" * 5000])
def test_a_secret_that_is_too_short_or_too_long_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "secret"
    path.touch(0o600)
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="characters"):
        read_or_make_secret(path)


def test_a_fifo_a_directory_and_a_place_without_room_are_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo", 0o600)
    (tmp_path / "file").touch()
    for name in ("fifo", "file/secret", "."):
        with pytest.raises(ConfigError, match=r"replication\.secret_file"):
            read_or_make_secret(tmp_path / name)
