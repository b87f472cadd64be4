"""The two referees of our own client: PyroMQ's broker and Apache RocketMQ's, each with the same settings."""

from __future__ import annotations

from pathlib import Path

from interop.apache import ApacheCluster
from interop.cluster import Cluster, PyromqCluster
from interop.java_client import CONF

REFEREES = ("pyromq", "apache")


def referee(name: str, store: Path) -> Cluster:
    """Not started yet."""
    return PyromqCluster(store, CONF) if name == "pyromq" else ApacheCluster(store, broker_conf=CONF)
