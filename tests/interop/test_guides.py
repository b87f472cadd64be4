"""The Java and Go programs of the documentation, word for word: compiled, and run against a broker."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from interop.support.apache import toolchain
from interop.support.cluster import Cluster
from interop.support.golang import SOURCES, program
from interop.support.loopback import enter_private_network
from pages import BLOCKS, Block

pytestmark = pytest.mark.interop

#: The name server's address in the pages.
ADDRESS = "127.0.0.1:9876"
SECONDS = 120


def of(language: str) -> list[Block]:
    return [block for block in BLOCKS if block.language == language]


def run(command: list[str], directory: Path, **environment: str) -> str:
    done = subprocess.run(
        command,
        cwd=directory,
        env=os.environ | {"HOME": str(directory)} | environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
        check=False,
        preexec_fn=enter_private_network(),
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.parametrize("block", of("java"), ids=lambda block: block.name)
def test_a_java_program_of_the_documentation(block: Block, cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "Hello.java").write_text(block.text.replace(ADDRESS, cluster.namesrv_address), encoding="utf-8")
    tools = toolchain()
    options = ["-Xmx256m", "-Drocketmq.namesrv.domain=localhost", f"-Duser.home={tmp_path}"]
    assert "hello" in run([tools.java, *options, "-cp", tools.classpath, "Hello.java"], tmp_path)


@pytest.mark.parametrize("block", of("go"), ids=lambda block: block.name)
def test_a_go_program_of_the_documentation(block: Block, cluster: Cluster, tmp_path: Path) -> None:
    program()  # skips or fails for its own reasons, and leaves the modules in Go's cache
    for name in ("go.mod", "go.sum"):
        shutil.copy(SOURCES / name, tmp_path)
    (tmp_path / "main.go").write_text(block.text.replace(ADDRESS, cluster.namesrv_address), encoding="utf-8")
    go = shutil.which("go")
    assert go
    binary = tmp_path / "hello"
    built = [go, "build", "-mod=readonly", "-o", str(binary), "."]
    subprocess.run(built, cwd=tmp_path, check=True, timeout=SECONDS)
    assert "hello" in run([str(binary)], tmp_path)
