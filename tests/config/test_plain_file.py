"""Files that people name: a FIFO or a device is refused at once, in a sentence."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from pyromq.cli.reaching import connection
from pyromq.config.load import load_broker, load_name_server
from pyromq.config.plain_file import NotAFile, read_plain_file
from pyromq.errors import ConfigError


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    path = tmp_path / "broker.toml"
    os.mkfifo(path)
    return path


def test_a_file_is_read_up_to_its_limit_and_one_byte(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 100)
    assert read_plain_file(tmp_path / "file", 100) == b"x" * 100
    assert len(read_plain_file(tmp_path / "file", 10)) == 11


def test_a_link_to_a_file_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "link").symlink_to("file")
    assert read_plain_file(tmp_path / "link", 10) == b"x"


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/null", "/dev/tty", "/dev/stdin"])
def test_a_device_is_no_file(device: str) -> None:
    with pytest.raises(OSError, match=r"not a regular file|No such"):
        read_plain_file(Path(device), 10)


def test_what_waits_is_not_waited_for(fifo: Path, tmp_path: Path) -> None:
    with pytest.raises(NotAFile, match=r"not a regular file"):
        read_plain_file(fifo, 10)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "s"))
        with pytest.raises(OSError):
            read_plain_file(tmp_path / "s", 10)


@pytest.mark.parametrize("name", ["broker.toml", "broker.conf"])
@pytest.mark.parametrize("load", [load_broker, load_name_server])
def test_settings_in_a_fifo_or_a_device_are_refused_in_a_sentence(load: object, name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name)
    for path in (tmp_path / name, Path("/dev/zero")):
        with pytest.raises(ConfigError, match=r"is not a regular file .* give a file with the settings"):
            load(path, environ={}, overrides={})  # type: ignore[operator]


def test_certificates_in_a_fifo_are_refused_in_a_sentence(fifo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYROMQ_TLS", str(fifo))
    with pytest.raises(ConfigError, match=r"is no file of certificates: .* not a regular file"):
        connection()
