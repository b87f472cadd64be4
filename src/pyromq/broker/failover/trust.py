"""Which other brokers this one believes: those that the settings name, and those that prove the group secret.

An answer is trusted if this broker dialled an address from its settings (`replication.members`, `replication.primary`),
or if the answer proves the group secret and comes from the address it names. Nothing else changes this broker's role,
its log, or its list of members; name servers only say where to ask.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Iterable
from dataclasses import replace

from pyromq.auth.group_secret import GroupSecret, Nonces
from pyromq.auth.proofs import (
    PROOF,
    is_answer_proved,
    is_question_proved,
    proof_of_answer,
    prove_question,
    prove_role_request,
)
from pyromq.clock import Clock
from pyromq.config import BrokerConfig
from pyromq.config.checks import is_ip_address
from pyromq.config.secret_file import SETTING, VARIABLE
from pyromq.errors import NotNow
from pyromq.net.address import parse_address, shown_address
from pyromq.net.peer import Peer
from pyromq.wire.bodies.epochs import BrokerEpochs
from pyromq.wire.command import Command
from pyromq.wire.requests.roles import GetBrokerEpochs, RoleRequest

#: The instruction for people to make a broker trusted.
HOW = f"copy the file of {SETTING} (or {VARIABLE}) there, or name it in replication.members"
#: The timeout for resolving a host name.
RESOLVE_SECONDS = 1.0


class Trust:
    """Made once for each start of a broker."""

    def __init__(self, config: BrokerConfig, secret: GroupSecret | None, clock: Clock) -> None:
        self.secret = secret
        self.nonces = Nonces(clock.monotonic)
        self._config = config
        replication = config.replication
        addresses = [one.address for one in replication.configured_members]
        if replication.primary is not None:
            host, port = parse_address(replication.primary)
            addresses.append(shown_address(host, port - 1))
        #: The addresses of brokers of this name, from the settings.
        self.configured = frozenset(addresses)
        self._hosts = frozenset(host_of(one) for one in addresses)

    async def resolve(self) -> None:
        """Look up the host names in the settings: peers are known by their IP addresses."""
        self._hosts |= await resolved(self._hosts)

    def is_configured_host(self, host: str) -> bool:
        """Return whether the settings name a broker of this name on that machine."""
        return host in self._hosts

    # --- who led -----------------------------------------------------------------------------------------------------

    def question(self, *, member: str, broker_id: int | None, address: str) -> GetBrokerEpochs:
        """Return the question that this broker asks another one of its name."""
        request = GetBrokerEpochs(name=self._config.name, broker_id=broker_id, address=address, member=member)
        prove_question(self.secret, request, self._config.cluster)
        return request

    def is_of_this_name(self, request: GetBrokerEpochs) -> bool:
        """Return whether a broker of this cluster and name asks, and proves it."""
        names = (request.cluster, request.name)
        return names == (self._config.cluster, self._config.name) and is_question_proved(self.secret, request)

    def answers(self, request: GetBrokerEpochs, told: BrokerEpochs, peer: Peer) -> tuple[bytes, dict[str, str]]:
        """Return the body and the header fields of an answer.

        An asker that proves the secret gets all of it, a nonce and a proof; a host that the settings name all but these
        two; any other one only the description of the log.
        """
        if self.secret is not None and is_question_proved(self.secret, request):
            body = replace(told, nonce=self.nonces.issue()).encode()
            return body, {PROOF: proof_of_answer(self.secret, request.nonce, body)}
        is_configured = self.is_configured_host(host_of(peer.address))
        return (told if is_configured else told.for_strangers()).encode(), {}

    def prove(self, request: RoleRequest, told: BrokerEpochs) -> None:
        """Prove a role request to a broker that has just answered. Raises NotNow if that is not possible."""
        if self.secret is None or not told.nonce:
            raise NotNow(
                f"{told.address} changes its role only for a broker with the same group secret, and this one cannot "
                f"prove it: give both the same file ({SETTING}, {VARIABLE})"
            )
        prove_role_request(self.secret, request, told.nonce)

    def is_trusted(self, request: GetBrokerEpochs, answer: Command, told: BrokerEpochs, dialled: str) -> bool:
        """A proof that was passed on by another address is not one of that address."""
        if dialled in self.configured:
            return True
        return told.address == dialled and is_answer_proved(self.secret, request, answer)


def host_of(address: str) -> str:
    """Return the host of `host:port`, an IPv4 address in its own form; the text itself if it is no address."""
    try:
        host = parse_address(address)[0].partition("%")[0]
    except ValueError:
        return address
    mapped = ipaddress.IPv6Address(host).ipv4_mapped if ":" in host and is_ip_address(host) else None
    return str(mapped or host)


async def resolved(hosts: Iterable[str]) -> frozenset[str]:
    """Return the IP addresses of host names. A name that cannot be resolved in time has none."""
    found: set[str] = set()
    loop = asyncio.get_running_loop()
    for host in hosts:
        if is_ip_address(host):
            found.add(host)
            continue
        try:
            async with asyncio.timeout(RESOLVE_SECONDS):
                found |= {str(one[4][0]) for one in await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
        except (OSError, UnicodeError, TimeoutError):
            continue
    return frozenset(found)
