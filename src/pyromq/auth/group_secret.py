"""Proofs that a request or an answer comes from a holder of the group secret.

A proof is an HMAC over a purpose and its parts. Every part is preceded by its length, so that no two lists of parts
give the same bytes, and every exchange has its own purpose, so that a proof of one is worth nothing in another. Parts
include a nonce of the verifier: `Nonces` issues them and accepts each one once.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
from collections.abc import Callable

from pyromq.config.secret_file import SecretPath, read_or_make_secret
from pyromq.errors import ConfigError

log = logging.getLogger("pyromq.auth")

#: A nonce is valid for this time after it was issued.
NONCE_SECONDS = 60.0
#: Used nonces that are remembered until they expire; only holders of the secret add to them.
MAX_USED = 100_000


class GroupSecret:
    """The secret that the brokers of a name share. It is never shown."""

    __slots__ = ("_key",)

    def __init__(self, secret: bytes) -> None:
        self._key = hashlib.sha256(b"pyromq group secret\0" + secret).digest()

    def __repr__(self) -> str:
        return "GroupSecret(…)"

    def proof(self, purpose: str, *parts: str) -> str:
        """Return the proof of these parts, in hex."""
        mac = hmac.new(self._key, digestmod=hashlib.sha256)
        for part in (purpose, *parts):
            encoded = part.encode("utf-8", "surrogatepass")
            mac.update(len(encoded).to_bytes(8, "big") + encoded)
        return mac.hexdigest()

    def verify(self, proof: str, purpose: str, *parts: str) -> bool:
        """Return whether a proof is that of these parts, in constant time."""
        expected = self.proof(purpose, *parts)
        return hmac.compare_digest(expected.encode(), proof.encode("utf-8", "surrogatepass"))


def load_group_secret(path: SecretPath = None) -> GroupSecret | None:
    """Return the secret of a file, made at first use; log why and return `None` if there is none to be had."""
    try:
        return read_group_secret(path)
    except ConfigError as problem:
        log.warning("nothing that needs a proof is accepted: %s", problem)
        return None


def read_group_secret(path: SecretPath = None) -> GroupSecret:
    """Return the secret of a file, made at first use. Raises ConfigError."""
    return GroupSecret(read_or_make_secret(path))


class Nonces:
    """Issues nonces, and accepts each of them once until it expires.

    A nonce carries its own deadline and a signature with a key of this process: those that strangers ask for take no
    memory. Used ones are remembered until they expire, and only a valid proof makes one used.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._own = GroupSecret(secrets.token_bytes(32))
        self._used: dict[str, float] = {}

    def issue(self) -> str:
        deadline = f"{int((self._monotonic() + NONCE_SECONDS) * 1000):x}"
        unique = secrets.token_hex(16)
        return f"{deadline}.{unique}.{self._own.proof('nonce', deadline, unique)}"

    def is_good(self, nonce: str) -> bool:
        """Return whether it was issued here, is unused, and has not expired."""
        deadline, _, rest = nonce.partition(".")
        unique, _, signature = rest.partition(".")
        if nonce in self._used or not self._own.verify(signature, "nonce", deadline, unique):
            return False
        return int(deadline, 16) > self._monotonic() * 1000

    def redeem(self, nonce: str) -> bool:
        """Use a nonce, after its proof was verified: `False` if it is not good, and always from now on."""
        if not self.is_good(nonce) or len(self._used) >= MAX_USED:
            return False
        now = self._monotonic()
        for old in [one for one, deadline in self._used.items() if deadline <= now]:
            del self._used[old]
        self._used[nonce] = now + NONCE_SECONDS
        return True
