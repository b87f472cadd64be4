"""A broker in a process of its own: killed, paused, started again, and never left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import pyromq.testing
from pyromq.errors import CallTimeout, ConfigError, NotNow
from pyromq.testing.brokers.asking import ask
from pyromq.wire.requests.client import SendMessage
from testing.simple_client import read, send


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_what_was_acknowledged_survives_a_kill() -> None:
    with pyromq.testing.broker(process=True, topics=["orders"]) as mq:
        addresses, first = (mq.name_servers, mq.broker_address), mq.pid
        send(mq, "orders", b"before")
        mq.kill()
        assert not mq.is_running
        assert not is_alive(first)
        mq.start()
        assert (mq.name_servers, mq.broker_address) == addresses
        send(mq, "orders", b"after")
        assert read(mq, "orders") == [b"before", b"after"]
        home, last = mq.data_dir, mq.pid
        assert last != first != os.getpid()
    assert not is_alive(last)
    assert not home.exists()


def test_a_paused_one_answers_nobody_until_it_goes_on() -> None:
    with pyromq.testing.broker(process=True, topics=["orders"], config={"store.max_body_bytes": 1000}) as mq:
        mq.pause()
        question = SendMessage(producer_group="testers", topic="orders", queue_id=0, body=b"hello")
        with pytest.raises(CallTimeout, match="may have been carried out"):
            ask(mq.broker_address, question, timeout_s=0.1)
        mq.resume()
        assert send(mq, "orders", b"again") in (0, 1)
        with pytest.raises(AssertionError, match="1000"):
            send(mq, "orders", b"x" * 1001)
        mq.pause()  # the end of the block finds it so


def test_a_killed_one_may_be_left(tmp_path: Path) -> None:
    with pyromq.testing.broker(process=True, data_dir=tmp_path) as mq:
        mq.kill()
    with pytest.raises(NotNow, match="does not run"):
        _ = mq.pid


def test_why_it_does_not_start_is_said(tmp_path: Path) -> None:
    second = pyromq.testing.broker(process=True, data_dir=tmp_path)
    said = r"did not start .*\n.*is in use by process"
    with pyromq.testing.broker(process=True, data_dir=tmp_path), pytest.raises(ConfigError, match=said):
        second.start()


def test_one_that_dies_by_itself_is_not_passed_over() -> None:
    mq = pyromq.testing.broker(process=True)
    mq.start()
    os.kill(mq.pid, signal.SIGKILL)
    while mq.is_running:
        time.sleep(0.01)
    with pytest.raises(NotNow, match="ended by itself"):
        mq.close()


def test_no_other_module_starts_programs() -> None:
    """Only the brokers of tests and commands of the command line start programs: no request from the network can, as
    no server may import `pyromq.testing` or `pyromq.cli`."""
    source = Path(pyromq.testing.__file__).parents[1]
    starters = {
        str(path.relative_to(source))
        for path in source.rglob("*.py")
        if "subprocess" in path.read_text(encoding="utf-8")
    }
    assert starters == {"testing/brokers/process.py", "cli/admin/programs.py"}


def test_one_that_was_forgotten_ends_with_the_program() -> None:
    code = (
        "import pyromq.testing\n"
        "mq = pyromq.testing.broker(process=True).__enter__()\n"
        "import sys; sys.stdout.write(str(mq.pid))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not is_alive(int(done.stdout))
