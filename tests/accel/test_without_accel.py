"""The folder `accel` is optional: without it a broker gives the same answers and leaves the same bytes on disk."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import pyromq
from pyromq.testing.brokers.ports import free_port

PACKAGE = Path(pyromq.__file__).parent
SCRIPT = Path(__file__).with_name("script_of_requests.py")
TESTS = Path(__file__).resolve().parents[1]


def told(package: Path, root: Path, port: int, flush: str) -> dict[str, Any]:
    environment = {**os.environ, "PYTHONPATH": f"{package.parent}{os.pathsep}{TESTS}", "PYROMQ_KERNEL": "auto"}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(root), str(port), flush],
        env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def without_accel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package whose folder `accel` was removed."""
    copy = tmp_path_factory.mktemp("copy") / "pyromq"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("accel", "spark", "__pycache__", "*.pyx", "*.c"))
    return copy


@pytest.mark.parametrize("flush", ["async", "sync"])
def test_without_the_folder_answers_and_files_are_the_same(flush: str, without_accel: Path, tmp_path: Path) -> None:
    port = free_port()
    accelerated = told(PACKAGE, tmp_path / "with", port, flush)
    plain = told(without_accel, tmp_path / "without", port, flush)
    sends, pulls = accelerated["taken"]
    assert sends > 300, "most sends were accelerated"
    assert pulls > 5
    assert plain["taken"] == []
    assert len(plain["answers"]) > 400
    assert accelerated["answers"] == plain["answers"]
    assert accelerated["files"] == plain["files"]
    assert {name.partition("/")[0] for name in plain["files"]} == {"commitlog", "consumequeue", "index"}
