"""The two referees of our own client: PyroMQ's broker and Apache RocketMQ's, each with the same settings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from interop.support.apache import ApacheCluster
from interop.support.cluster import Cluster, PyromqCluster
from interop.support.java_client import CONF

REFEREES = ("pyromq", "apache")


def referee(name: str, store: Path) -> Cluster:
    """Not started yet."""
    return PyromqCluster(store, CONF) if name == "pyromq" else ApacheCluster(store, broker_conf=CONF)


@contextmanager
def refereed(name: str, store: Path) -> Iterator[Cluster]:
    """Start a referee. Ours must end cleanly; Apache's is killed, which saves 13 s: its store is not read again."""
    with referee(name, store) as running:
        yield running
        if isinstance(running, ApacheCluster):
            running.kill()
