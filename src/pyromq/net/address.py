"""The address of a peer: for people, and as records have it."""

from __future__ import annotations

import ipaddress

from pyromq.model.message import LOCALHOST, PackedHost

MAX_PORT = 0xFFFF
#: RocketMQ's clients and brokers look for a broker's second port, its VIP channel, so far below the one that they know.
VIP_PORTS_BELOW = 2


def shown_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_address(address: str) -> tuple[str, int]:
    """Host and port of `host:port`, where an IPv6 host is in brackets. Raises ValueError."""
    host, _, port = address.rpartition(":")
    if not host or not (port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) <= MAX_PORT):
        raise ValueError("an address is host:port")
    return host.strip("[]"), int(port)


def is_address(text: str) -> bool:
    try:
        parse_address(text)
    except ValueError:
        return False
    return True


def pack_address(host: str, port: int) -> PackedHost:
    """An address in record form. An IPv4 address in IPv6 clothes is an IPv4 address."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return LOCALHOST
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return address.packed + port.to_bytes(4, "big")
