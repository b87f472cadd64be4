"""A store that is removed under a running broker: the process ends with an error, and acknowledges nothing more."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import pyromq.testing
from pyromq.errors import NotNow, PyroMQError
from testing.simple_client import send

SECONDS = 30


def sends_until_refused(mq: pyromq.testing.BrokerProcess) -> None:
    while mq.is_running:
        try:
            send(mq, "orders", b"late")
        except (PyroMQError, AssertionError, OSError):
            return


def lose_the_store(home: Path, loss: str) -> None:
    """Run a broker, take its store away, and wait until its process has ended."""
    with pyromq.testing.broker(process=True, topics=["orders"], data_dir=home) as mq:
        send(mq, "orders", b"before")
        store = next(path.parent for path in home.rglob("commitlog"))
        said = mq.log_file.open("rb")
        if loss == "removed":
            shutil.rmtree(store)
        elif loss == "renamed":
            store.rename(store.with_name("elsewhere"))
        else:
            (store / "lock").unlink()
        sends_until_refused(mq)
        assert mq._process is not None
        assert mq._process.wait(SECONDS) not in (0, -9)
        with said:
            text = said.read().decode()
        assert "while the store was open" in text
        assert "stopped cleanly" not in text.lower()


@pytest.mark.parametrize("loss", ["removed", "renamed", "lock"])
def test_the_process_ends_by_itself_with_an_error(tmp_path: Path, loss: str) -> None:
    with pytest.raises(NotNow, match="ended by itself"):
        lose_the_store(tmp_path, loss)
