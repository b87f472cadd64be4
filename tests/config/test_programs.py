"""Invalid settings of a broker and a name server are refused with the reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pyromq.config import (
    MIB,
    BrokerConfig,
    LimitsConfig,
    NameServerConfig,
    OverloadConfig,
    RetentionConfig,
    StoreConfig,
    TransactionConfig,
)
from pyromq.errors import ConfigError

STORE = StoreConfig(root=Path("data"))


def broker(**settings: Any) -> BrokerConfig:
    return BrokerConfig(store=STORE, **settings)


def test_a_broker_needs_only_a_directory() -> None:
    config = BrokerConfig(store=STORE)
    assert (config.name, config.cluster, config.listen_host, config.listen_port) == (
        "broker-a",
        "DefaultCluster",
        "127.0.0.1",
        10911,
    )
    assert not config.auto_create_topics
    assert not config.auto_create_groups


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"name": ""}, "name = '' cannot work: a name has 1 to 127 characters"),
        ({"name": "../other"}, "name = '../other' cannot work"),
        ({"cluster": "a b"}, "cluster = 'a b' cannot work"),
        ({"role": "LEADER"}, "role = 'LEADER' cannot work: it is ASYNC_MASTER, SYNC_MASTER or SLAVE"),
        ({"role": "SLAVE", "broker_id": 0}, "its slaves have numbers of their own from 1 on"),
        ({"broker_id": 1}, "the master of a name has 0"),
        ({"listen_host": "127.0.0.1:80"}, "give one host name or address, no port"),
        ({"listen_host": ""}, "give one host name or address"),
        ({"listen_port": 65_536}, "a port is 1 to 65535, or 0 for any free one"),
        ({"listen_port": -1}, "a port is 1 to 65535"),
        ({"advertise_host": "a;b"}, "advertise_host = 'a;b' cannot work"),
        ({"name_servers": ("localhost",)}, "name_servers = 'localhost' cannot work: an address is host:port"),
        ({"name_servers": ("a:0",)}, "an address is host:port"),
        ({"name_servers": ("a:1", "::1:1:x")}, "an address is host:port"),
        ({"name_servers": ("a b:1",)}, "one host name or address"),
        ({"default_topic_queues": 0}, "default_topic_queues = 0 cannot work: 1 to 1024"),
        ({"permission": 3}, "6 reads and writes, 4 reads, 2 writes, 0 does neither"),
        ({"short_poll_ms": 0}, "short_poll_ms = 0 cannot work: it must be at least 1"),
        ({"register_interval_ms": 120_000}, "forgotten between two registrations"),
        ({"max_long_polls": -1}, "max_long_polls = -1 cannot work"),
        ({"trace_topic": "a/b"}, "trace_topic = 'a/b' cannot work"),
        ({"region": " "}, "region = ' ' cannot work"),
    ],
)
def test_what_a_broker_cannot_work_with(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        broker(**settings)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "broker.example"])
def test_a_public_address_is_bound_only_on_purpose(host: str) -> None:
    with pytest.raises(ConfigError, match=r"there is no authentication; .*--allow-public"):
        broker(listen_host=host)
    with pytest.raises(ConfigError, match="there is no authentication"):
        NameServerConfig(listen_host=host)
    assert broker(listen_host=host, allow_public=True).listen_host == host
    assert NameServerConfig(listen_host=host, allow_public=True).listen_host == host


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1", "localhost"])
def test_loopback_needs_no_permission(host: str) -> None:
    assert broker(listen_host=host).client_host == host


def test_telling_clients_an_address_is_not_binding_it() -> None:
    config = broker(advertise_host="203.0.113.7")
    assert (config.listen_host, config.client_host) == ("127.0.0.1", "203.0.113.7")


def test_name_servers_may_have_ipv6_addresses() -> None:
    assert broker(name_servers=("[::1]:9876", "ns.example:9876")).name_servers[0] == "[::1]:9876"


@pytest.mark.parametrize(
    ("kind", "settings", "sentence"),
    [
        (TransactionConfig, {"timeout_ms": 0}, "transaction.timeout_ms = 0 cannot work"),
        (TransactionConfig, {"check_max": 0}, "transaction.check_max = 0 cannot work"),
        (TransactionConfig, {"check_interval_ms": 0}, "transaction.check_interval_ms = 0 cannot work"),
        (OverloadConfig, {"loop_lag_ms": -1}, "overload.loop_lag_ms = -1 cannot work"),
        (LimitsConfig, {"max_connections": 0}, "limits.max_connections = 0 cannot work"),
        (LimitsConfig, {"idle_close_ms": 999}, "limits.idle_close_ms = 999 cannot work: it must be at least 1000"),
        (LimitsConfig, {"max_frame_bytes": 100}, "4 KiB to 1 GiB"),
        (LimitsConfig, {"max_header_bytes": 17 * MIB}, "limits.max_header_bytes"),
        (LimitsConfig, {"max_in_flight_bytes_per_connection": MIB}, "it must hold one frame"),
        (LimitsConfig, {"max_unsent_bytes": MIB}, "limits.max_unsent_bytes_per_connection"),
        (NameServerConfig, {"listen_port": 70_000}, "listen_port = 70000 cannot work"),
        (NameServerConfig, {"scan_interval_ms": 0}, "scan_interval_ms = 0 cannot work"),
        (NameServerConfig, {"broker_expiry_ms": 0}, "broker_expiry_ms = 0 cannot work"),
        (RetentionConfig, {"delete_hours": (24,)}, r"retention.delete_hours = \(24,\) cannot work: an hour is 0 to 23"),
        (RetentionConfig, {"delete_above": 1.2}, "retention.delete_above = 1.2 cannot work"),
    ],
)
def test_what_the_parts_cannot_work_with(kind: Any, settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as caught:
        kind(**settings)
    assert caught.value.setting is not None
