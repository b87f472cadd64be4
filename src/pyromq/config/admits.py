"""Filter for the hosts that may replicate a broker's log (`replication.allowed_hosts`)."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Sequence


def is_network(text: str) -> bool:
    """Return whether the text is an address or a network such as 10.1.0.0/16."""
    try:
        ipaddress.ip_network(text)
    except ValueError:
        return False
    return True


def host_filter(networks: Sequence[str]) -> Callable[[str], bool]:
    """Return a test for membership in these networks; without networks it accepts every host."""
    known = [ipaddress.ip_network(one) for one in networks]

    def is_admitted(host: str) -> bool:
        try:
            address = ipaddress.ip_address(host.partition("%")[0])
        except ValueError:
            return not known
        address = getattr(address, "ipv4_mapped", None) or address
        return not known or any(address in network for network in known)

    return is_admitted
