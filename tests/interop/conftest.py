"""Every test here needs the real Apache RocketMQ; without its toolchain they are skipped, with the reason."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from interop.support.apache import ToolchainMissing, toolchain
from interop.support.cluster import Cluster, new_cluster
from interop.support.java_client import CONF, JavaClient


@pytest.fixture(scope="session", autouse=True)
def _apache_is_here() -> None:
    """Only a missing toolchain skips: one that is there and fails must fail the test."""
    try:
        toolchain()
    except ToolchainMissing as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One for all stories that leave it running; each has topics and groups of its own."""
    with new_cluster(tmp_path_factory.mktemp("shared") / "store", CONF) as running:
        yield running


@pytest.fixture(scope="session")
def java(cluster: Cluster) -> Iterator[JavaClient]:
    """The official Java client against `cluster`."""
    with JavaClient(cluster) as client:
        yield client


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A name that no other test uses, for a topic and, with a prefix, for groups."""
    return re.sub(r"[^a-zA-Z0-9]+", "-", request.node.name.removeprefix("test_"))[:100].strip("-")


@pytest.fixture
def group(topic: str) -> str:
    return f"group-{topic}"
