"""Requests of tests that prove the group secret, as brokers and tools do."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from pyromq.auth.group_secret import read_group_secret
from pyromq.auth.proofs import ask_for_epochs, prove_role_request
from pyromq.wire.bodies.epochs import BrokerEpochs
from pyromq.wire.command import Command
from pyromq.wire.requests.client import Request
from pyromq.wire.requests.roles import RoleRequest

#: Sends a request to the broker, with a time limit in seconds.
Call = Callable[[Request, float], Awaitable[Command]]


async def epochs_of(call: Call, timeout_s: float = 20.0) -> BrokerEpochs:
    """All that a broker tells its own of its log."""
    told, is_proved = await ask_for_epochs(lambda question: call(question, timeout_s), read_group_secret())
    assert is_proved
    return told


async def proved(call: Call, request: RoleRequest) -> RoleRequest:
    """The request with a nonce of this broker and its proof."""
    prove_role_request(read_group_secret(), request, (await epochs_of(call)).nonce)
    return request


async def call_with_proof(call: Call, request: RoleRequest, timeout_s: float = 20.0) -> Command:
    """The answer to a role request."""
    return await call(await proved(call, request), timeout_s)
