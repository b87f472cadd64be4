"""Requests that change a broker's role, proved with the group secret."""

from __future__ import annotations

import contextlib
from pathlib import Path

from pyromq.admin.directory import Directory
from pyromq.auth.group_secret import GroupSecret, read_group_secret
from pyromq.auth.proofs import ask_for_epochs, prove_role_request
from pyromq.config.secret_file import SETTING, VARIABLE, secret_path
from pyromq.errors import ConfigError, NoPermission
from pyromq.wire.bodies.epochs import BrokerEpochs
from pyromq.wire.command import Command
from pyromq.wire.requests.roles import RoleRequest


class Proving:
    """Reads the secret when it is needed: looking at brokers works without one."""

    def __init__(self, directory: Directory, secret_file: Path | None) -> None:
        self._directory = directory
        self._secret_file = secret_file

    async def epochs(self, address: str) -> BrokerEpochs:
        """Return what a broker tells of its log. Raises CallFailed, ServiceError."""
        secret: GroupSecret | None = None
        with contextlib.suppress(ConfigError):
            secret = read_group_secret(self._secret_file)
        return (await self._ask(address, secret))[0]

    async def ask(self, address: str, request: RoleRequest, *, timeout_s: float | None = None) -> Command:
        """Prove a role request to a broker, and return its answer.

        Raises ConfigError and NoPermission with what to do about the secret; CallFailed, ServiceError.
        """
        secret = read_group_secret(self._secret_file)
        told, is_proved = await self._ask(address, secret)
        if not is_proved:
            raise NoPermission(
                f"the broker at {address} does not have the group secret in {secret_path(self._secret_file)}: use the "
                f"file that it uses ({SETTING} in its settings), by {VARIABLE} or as a copy"
            )
        if told.address != address:
            raise NoPermission(
                f"the broker at {address} gives its address as {told.address}: name it by that one, so that a request "
                "cannot be passed on to another broker"
            )
        prove_role_request(secret, request, told.nonce)
        return await self._directory.ask(address, request, timeout_s=timeout_s)

    async def _ask(self, address: str, secret: GroupSecret | None) -> tuple[BrokerEpochs, bool]:
        return await ask_for_epochs(lambda question: self._directory.ask(address, question), secret)
