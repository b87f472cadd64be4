"""The fixtures, in a pytest run of their own as a user would have it."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

TESTS = """
import pytest
from pyromq.testing.brokers.asking import ask
from pyromq.wire.codes import ResponseCode
from pyromq.wire.requests.nameserver import GetRoute

seen = []

@pytest.mark.parametrize("what", ["a b/c", "ü" * 100])
def test_each_has_a_topic_of_its_own(pyromq_broker, pyromq_topic, what):
    assert ask(pyromq_broker.name_servers, GetRoute(topic=pyromq_topic)).code == ResponseCode.SUCCESS
    seen.append((pyromq_topic, pyromq_broker))

def test_all_share_a_broker(pyromq_broker):
    (one, broker), (other, same) = seen
    assert one != other
    assert broker is same is pyromq_broker
    assert ask(pyromq_broker.name_servers, GetRoute(topic="given")).code == ResponseCode.SUCCESS
"""
CONFTEST = """
import pytest

@pytest.fixture(scope="session")
def pyromq_broker_options():
    return {"topics": {"given": 1}}
"""


def run_pytest(directory: Path, *arguments: str) -> str:
    """With the plugin given by name, whether this tree is installed or not."""
    command = [sys.executable, "-m", "pytest", "-W", "error", "-p", "pyromq.testing.pytest_plugin", *arguments]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_user_asks_for_the_fixtures_and_has_them(tmp_path: Path) -> None:
    (tmp_path / "test_orders.py").write_text(TESTS)
    (tmp_path / "conftest.py").write_text(CONFTEST)
    assert "3 passed" in run_pytest(tmp_path)


def test_pytest_lists_them_with_what_they_are(tmp_path: Path) -> None:
    shown = run_pytest(tmp_path, "--fixtures", "--co", "-q")
    for name in ("pyromq_broker", "pyromq_broker_options", "pyromq_topic"):
        assert name in shown
    assert "no docstring available" not in shown.partition("pyromq_broker")[2]


def test_pytest_finds_the_plugin_by_itself() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["entry-points"]["pytest11"] == {"pyromq": "pyromq.testing.pytest_plugin"}
