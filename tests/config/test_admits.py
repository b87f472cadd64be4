"""The hosts that may copy a log."""

from __future__ import annotations

import pytest

from pyromq.config import ReplicationConfig
from pyromq.config.replication import host_filter
from pyromq.errors import ConfigError


def test_everybody_unless_somebody_is_named() -> None:
    assert host_filter(())("203.0.113.9")
    assert host_filter(())("somewhere")


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("10.1.2.3", True), ("::ffff:10.1.2.3", True), ("10.2.0.1", False), ("192.0.2.7", True), ("192.0.2.8", False),
        ("fe80::1%eth0", True), ("2001:db8::1", False), ("somewhere", False),
    ],
)  # fmt: skip
def test_addresses_and_networks(host: str, expected: bool) -> None:
    assert host_filter(("10.1.0.0/16", "192.0.2.7", "fe80::/10"))(host) is expected


@pytest.mark.parametrize("text", ["10.1.2.3/16", "host", "", "10.1.0.0/33"])
def test_what_is_no_network_is_refused_at_start(text: str) -> None:
    with pytest.raises(ConfigError, match=r"replication\.allowed_hosts"):
        ReplicationConfig(allowed_hosts=(text,))
