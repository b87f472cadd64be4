"""Who asks, and over what: from the environment, with a sentence where it makes no sense."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from pyromq.cli.connecting import require
from pyromq.cli.reaching import connection
from pyromq.errors import ConfigError

NAMES = ("PYROMQ_TLS", "PYROMQ_ACCESS_KEY", "PYROMQ_SECRET_KEY", "PYROMQ_SECURITY_TOKEN")


@pytest.fixture(autouse=True)
def _nothing_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)


def test_nothing_is_set_unless_somebody_does() -> None:
    assert connection() == {"tls": None, "credentials": None}


def test_keys_come_in_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYROMQ_ACCESS_KEY", "somebody")
    with pytest.raises(ConfigError, match="belong together"):
        connection()
    monkeypatch.setenv("PYROMQ_SECRET_KEY", "very secret")
    credentials = connection()["credentials"]
    assert credentials is not None
    assert (credentials.access_key, credentials.secret_key, credentials.security_token) == (
        "somebody", "very secret", None,
    )  # fmt: skip
    assert "very secret" not in repr(credentials)


def test_tls_is_off_on_or_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for word, meaning in (("0", None), ("off", None), ("1", True), ("True", True)):
        monkeypatch.setenv("PYROMQ_TLS", word)
        assert connection()["tls"] is meaning
    monkeypatch.setenv("PYROMQ_TLS", str(tmp_path / "ca.pem"))
    with pytest.raises(ConfigError, match="which is no file of certificates"):
        connection()
    (tmp_path / "ca.pem").write_text("nonsense", encoding="ascii")
    with pytest.raises(ConfigError, match="which is no file of certificates"):
        connection()
    found = ssl.get_default_verify_paths().cafile
    if found is not None:
        monkeypatch.setenv("PYROMQ_TLS", found)
        assert isinstance(connection()["tls"], ssl.SSLContext)


def test_an_empty_list_of_name_servers_is_none() -> None:
    assert require("a:1;b:2") == "a:1;b:2"
    with pytest.raises(ConfigError, match="use --name-servers"):
        require(" ; ")
