"""Admits role requests: from a holder of the group secret, on this machine or on that of another member.

There is no authentication of people yet, so a role request from any other machine is refused, whatever it proves: run
the command on a machine of the group. A proof uses a nonce that this broker issued and works once, so that a captured
request cannot be sent again.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Awaitable

from pyromq.auth.proofs import is_role_request_proved
from pyromq.broker.failover.role import Leading
from pyromq.broker.failover.trust import Trust, host_of, resolved
from pyromq.config.checks import is_ip_address, is_loopback
from pyromq.config.secret_file import SETTING, VARIABLE
from pyromq.errors import NoPermission
from pyromq.net.peer import Peer
from pyromq.net.service import Handler
from pyromq.wire.codes import code_name
from pyromq.wire.requests.roles import RoleRequest
from pyromq.wire.responses import Response

log = logging.getLogger("pyromq.broker")

#: Machines whose refused requests were logged, at most.
MAX_LOGGED = 64


class Admission:
    """Stands before the handlers of role requests."""

    def __init__(self, trust: Trust, leading: Leading) -> None:
        self._trust = trust
        self._leading = leading
        self._logged: set[str] = set()

    def guard(self, handler: Handler) -> Handler:
        """Return a handler that refuses what this broker does not admit."""

        async def admitted(request: RoleRequest, peer: Peer) -> Response | None:
            await self.check(request, peer)
            answer = handler(request, peer)
            return await answer if isinstance(answer, Awaitable) else answer

        return admitted

    async def check(self, request: RoleRequest, peer: Peer) -> None:
        """Use up the nonce of a request that may be carried out. Raises NoPermission."""
        try:
            await self._check_host(request, peer)
            self._check_proof(request)
        except NoPermission as problem:
            host = host_of(peer.address)
            if host not in self._logged and len(self._logged) < MAX_LOGGED:
                self._logged.add(host)
                log.warning("%s asked for %s: %s", peer.address, code_name(request.CODE), problem)
            raise

    async def _check_host(self, request: RoleRequest, peer: Peer) -> None:
        host = host_of(peer.address)
        if is_this_machine(host) or self._trust.is_configured_host(host):
            return
        if host in await resolved({host_of(one.address) for one in self._leading.known.members}):
            return
        raise NoPermission(
            f"{code_name(request.CODE)} is refused because {host} is neither this machine nor that of a known broker "
            f"of {self._leading.config.name!r}: run the command on the machine of one of its brokers, or name the "
            "broker that asks in replication.members"
        )

    def _check_proof(self, request: RoleRequest) -> None:
        name, secret = code_name(request.CODE), self._trust.secret
        if secret is None:
            raise NoPermission(
                f"{name} is refused because this broker has no group secret, as its log says at the start: make the "
                f"file of {SETTING} (or {VARIABLE}) usable and restart the broker"
            )
        if not request.proof:
            raise NoPermission(f"{name} needs a proof of the group secret ({SETTING}, {VARIABLE}), and has none")
        if not is_role_request_proved(secret, request):
            raise NoPermission(
                f"{name} is refused because its proof is not of this broker's group secret: use the file of its "
                f"{SETTING} (or {VARIABLE})"
            )
        if not self._trust.nonces.redeem(request.nonce):
            raise NoPermission(
                f"{name} is refused because its nonce is too old, was used before, or is not of this broker: ask again"
            )


def is_this_machine(host: str) -> bool:
    """Return whether connections from this address come from this machine: only its own addresses can be bound."""
    if is_loopback(host):
        return True
    if not is_ip_address(host):
        return False
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((host, 0))
        except OSError:
            return False
    return True
