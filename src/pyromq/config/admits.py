"""Who may copy a broker's log: hosts and networks, as the settings name them."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Sequence


def is_network(text: str) -> bool:
    """An address, or several in the form 10.1.0.0/16."""
    try:
        ipaddress.ip_network(text)
    except ValueError:
        return False
    return True


def admits(networks: Sequence[str]) -> Callable[[str], bool]:
    """Whether a host is one of these. None given: everybody is."""
    known = [ipaddress.ip_network(one) for one in networks]

    def is_admitted(host: str) -> bool:
        try:
            address = ipaddress.ip_address(host.partition("%")[0])
        except ValueError:
            return not known
        address = getattr(address, "ipv4_mapped", None) or address
        return not known or any(address in network for network in known)

    return is_admitted
