"""The identity of an idempotent writer, and the tokens by which brokers know it.

A writer is known by a seed that is derived from its name and, if there is one, a secret. Brokers issue a token for the
seed; what consumers see of it in `PYROMQ_WRITER` is a digest. A name that others can guess is no secret: give it one.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import NamedTuple

from pyromq.client.session import Session
from pyromq.errors import BrokerError, NotNow, SystemBusy, Unreachable
from pyromq.wire.requests.client import IssueWriter

#: The cache limit; further ones are requested again.
MAX_TOKENS = 4096


class WriterIdentity(NamedTuple):
    #: 64 hex digits, secret: their holder can write as this producer.
    seed: str
    #: The public id, as the broker derives it from the seed.
    writer: str


def writer_identity(name: str, secret: str = "") -> WriterIdentity:
    """Return the identity of a name: the same in every process that has the name and the secret."""
    seed = hmac.new(secret.encode(), b"pyromq writer seed" + name.encode(), "sha256").digest()
    return WriterIdentity(seed.hex(), "w" + hashlib.sha256(b"pyromq writer" + seed).hexdigest()[:40])


class WriterTokens:
    """The tokens of this process, by the address of the broker that issued them."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._tokens: dict[tuple[str, str], str] = {}

    async def token(self, address: str, identity: WriterIdentity) -> str:
        """Return the token, asked for if it is not known. Raises what a call raises, Unreachable for "not now"."""
        key = (address, identity.writer)
        if key not in self._tokens:
            try:
                answer = await self._session.ask(address, IssueWriter(seed=identity.seed))
            except (NotNow, SystemBusy, BrokerError) as problem:
                raise Unreachable(f"{address} issues no identity for a writer now: {problem}") from problem
            if len(self._tokens) >= MAX_TOKENS:
                self._tokens.clear()
            self._tokens[key] = answer.fields.get("writerToken", "")
        return self._tokens[key]

    def forget(self, address: str) -> None:
        """Ask this broker again for all identities: it has started since, or another one took over."""
        for key in [key for key in self._tokens if key[0] == address]:
            del self._tokens[key]
