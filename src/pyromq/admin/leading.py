"""Role changes on request: promotion of a slave, hand-over by a master, restart of a broker in its process.

Requests that change a broker's role, proved with the group secret.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path

from pyromq.admin.brokers import Brokers, BrokerStatus
from pyromq.admin.directory import Directory, of_each
from pyromq.admin.promotion import Member, Promotion, choose
from pyromq.auth.group_secret import GroupSecret, read_group_secret
from pyromq.auth.proofs import ask_for_epochs, prove_role_request
from pyromq.config.secret_file import SETTING, VARIABLE, secret_path
from pyromq.errors import CallFailed, ConfigError, NoPermission, NotNow, NotSupported, ServiceError
from pyromq.wire.bodies.epochs import BrokerEpochs
from pyromq.wire.command import Command
from pyromq.wire.requests.roles import ForgetMember, PromoteBroker, RestartBroker, RoleRequest, StepDown


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


#: Time for the slave to catch up during a hand-over. Sends are refused until then.
HAND_OVER_SECONDS = 10.0
#: Further time for the hand-over itself.
MARGIN_SECONDS = 10.0
#: A broker asks the others of its name twice, copies what it can, and syncs its log before it answers.
PROMOTE_SECONDS = 15.0
LOOK_AGAIN_SECONDS = 0.1


class Leading:
    """Brokers of one name: one leads, the others follow."""

    def __init__(self, directory: Directory, brokers: Brokers, secret_file: Path | None = None) -> None:
        self._directory = directory
        self._brokers = brokers
        self._proving = Proving(directory, secret_file)

    async def members(self, name: str) -> Sequence[Member]:
        """The master, if there is one, and its slaves. Raises NotFound, Unreachable."""
        return await of_each(await self._brokers.members(name), self._member)

    async def _member(self, status: BrokerStatus) -> Member:
        if status.problem is None and status.copying is not None:
            try:
                return Member(status, await self._proving.epochs(status.address))
            except NotSupported:  # it has no epochs: one that can copy, and not lead
                return Member(replace(status, copying=None))
            except (CallFailed, ServiceError) as problem:
                return Member(replace(status, problem=str(problem)))
        return Member(status)

    async def plan(self, broker: str, *, broker_id: int | None = None, address: str | None = None) -> Promotion:
        """Plan the promotion of a slave of this name, or of the slave at this address.

        Raises NotFound, NotNow, NotSupported, Unreachable.
        """
        found = await self._directory.broker(broker)
        by_address = None if broker == found.name else found.address
        return choose(await self.members(broker), broker_id=broker_id, address=address or by_address)

    async def promote(
        self, promotion: Promotion, *, role: str | None = None, reason: str = "", force: bool = False
    ) -> None:
        """Do it. The new master restarts in place then: `until_leads` waits for it.

        The broker asks the others of its name first, and refuses if acknowledged messages may be lost, unless `force`.
        Raises CallFailed; and ServiceError with what the broker says: then nothing was changed.
        """
        slave, master = promotion.slave.address, promotion.master
        if promotion.is_hand_over and master is not None:
            await self.hand_over(master.address, slave, role=role, reason=reason)
        else:
            request = PromoteBroker(epoch=promotion.epoch, role=role, reason=reason, force=force)
            await self._proving.ask(slave, request, timeout_s=PROMOTE_SECONDS)

    async def hand_over(self, master: str, slave: str, *, role: str | None = None, reason: str = "") -> None:
        """Hand over from one address to the other. Raises CallFailed, ServiceError: the master then stays master."""
        timeout_s = HAND_OVER_SECONDS + MARGIN_SECONDS
        request = StepDown(to=slave, timeout_ms=int(HAND_OVER_SECONDS * 1000), role=role, reason=reason)
        await self._proving.ask(master, request, timeout_s=timeout_s)

    async def forget_member(self, address: str, member: str, reason: str = "") -> str:
        """Have the broker at `address` forget another one of its name, by address or member id: it is gone for good.

        Return the members that are left. Raises CallFailed, ServiceError.
        """
        answer = await self._proving.ask(address, ForgetMember(member=member, reason=reason))
        return answer.fields.get("members", "")

    async def restart(self, address: str, reason: str = "") -> None:
        """In its process, as what it is. It answers first. Raises CallFailed, ServiceError."""
        await self._proving.ask(address, RestartBroker(reason=reason))

    async def until_leads(self, name: str, address: str, timeout_s: float) -> BrokerStatus:
        """Until this broker is the master, and name servers, if any answers, say so.

        Raises NotNow when that takes too long.
        """

        async def look() -> BrokerStatus | None:
            for one in await self._brokers.members(address):
                if (one.broker_id, one.address) == (0, address) and one.copying and not one.copying.is_slave:
                    return one
            return None

        return await until(look, timeout_s, f"{address} was told to lead {name!r}, but is not registered as its master")

    async def until_followed(self, name: str, count: int, timeout_s: float) -> BrokerStatus:
        """Wait until this many slaves are in sync with the master. Raises NotNow."""

        async def look() -> BrokerStatus | None:
            masters = (one for one in await self._brokers.members(name) if one.broker_id == 0 and one.copying)
            return next((one for one in masters if one.copying and len(one.copying.in_sync) >= count), None)

        return await until(look, timeout_s, f"fewer than {count} slaves are in sync with the master of {name!r}")


async def until(look: Callable[[], Awaitable[BrokerStatus | None]], timeout_s: float, otherwise: str) -> BrokerStatus:
    """Return the state as soon as it is as expected. A broker that does not answer may be starting.

    Raises NotNow when it takes too long, with the last thing that went wrong.
    """
    last = ""
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                try:
                    if (found := await look()) is not None:
                        return found
                    last = ""
                except (CallFailed, ServiceError) as problem:
                    last = f": {problem}"
                await asyncio.sleep(LOOK_AGAIN_SECONDS)
    except TimeoutError:
        raise NotNow(f"{otherwise} after {timeout_s:g} s{last}; look with `pyromq cluster`, and in its log") from None
