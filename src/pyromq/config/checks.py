"""Checks and size units of the settings dataclasses."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import field
from typing import Any, TypeVar

from pyromq.errors import ConfigError

Value = TypeVar("Value", bound=int | float | bool)
#: Marks the field of a settings dataclass that is not a setting.
FIXED: dict[str, Any] = {"fixed": True}

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

#: Broker and cluster names become directory and topic names, so they follow RocketMQ's rule for topic names.
_NAME = re.compile(r"[%|a-zA-Z0-9_-]{1,127}")


def fixed(value: Value) -> Value:
    """A constant that tests may replace: no file, environment variable or option sets it."""
    return field(default=value, metadata=FIXED)


def require(holds: bool, name: str, value: object, rule: str) -> None:
    """Raise `ConfigError` with the setting's name, its value and the rule that it breaks."""
    if not holds:
        raise ConfigError(f"{name} = {value!r} cannot work: {rule}", name)


def require_at_least(least: int, name: str, value: int) -> None:
    require(value >= least, name, value, f"it must be at least {least}")


def require_name(name: str, value: str) -> None:
    require(
        _NAME.fullmatch(value) is not None,
        name,
        value,
        "a name has 1 to 127 characters: letters, digits and % | - _",
    )


def require_port(name: str, value: int) -> None:
    require(0 <= value <= 65_535, name, value, "a port is 1 to 65535, or 0 for any free one")


def require_host(name: str, value: str) -> None:
    """Refuse `host:port`, spaces and empty text, which would otherwise fail only at the first client."""
    bare = value.strip() == value and value != "" and not set(value) & set(" ;,/\\@")
    require(bare and (":" not in value or is_ip_address(value)), name, value, "give one host name or address, no port")


def require_address(name: str, value: str) -> None:
    """Require `host:port`, with an IPv6 host in brackets."""
    host, colon, port = value.rpartition(":")
    require(
        colon == ":" and port.isascii() and port.isdigit() and 0 < int(port[:6]) <= 65_535,
        name,
        value,
        "an address is host:port, and several are separated by ;",
    )
    require_host(name, host[1:-1] if host.startswith("[") and host.endswith("]") else host)


def require_loopback_or_leave(host: str, allow_public: bool) -> None:
    """Require `allow_public` for addresses that other machines reach: any of them may read, send and delete."""
    require(
        allow_public or is_loopback(host),
        "listen_host",
        host,
        "it can be reached from other machines and there is no authentication; "
        "listen on 127.0.0.1, or allow it with allow_public = true (--allow-public)",
    )


def is_ip_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Return whether the host is loopback. Names other than `localhost` are not: their address can change."""
    return host == "localhost" or (is_ip_address(host) and ipaddress.ip_address(host).is_loopback)
