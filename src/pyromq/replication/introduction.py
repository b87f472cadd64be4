"""The follower's side of the handshake with a primary of ours. No input or output."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass

from pyromq.replication.handshake import (
    OF_FOLLOWER,
    OF_PRIMARY,
    Accepted,
    Hello,
    Proof,
    Secret,
    Welcome,
    digest_between,
    digest_start,
    follower_parts,
    frame_of,
    framed,
    primary_parts,
    read,
)
from pyromq.replication.identity import Identity, Refused
from pyromq.replication.log import CopyLog
from pyromq.replication.log_matching import Epoch


def _new_nonce() -> str:
    return secrets.token_hex(16)


@dataclass(frozen=True, slots=True, kw_only=True)
class Introduction:
    """A follower's introduction to a primary of ours with whose log it has compared its own."""

    cluster: str
    name: str
    identity: Identity
    epochs: tuple[Epoch, ...]
    #: The primary's member id and the start of its log, as it told them.
    primary: str
    primary_start: int = 0
    secret: Secret | None = None
    #: The primary has to prove the secret; else it is believed because the settings name it.
    expects_proof: bool = False
    nonce: Callable[[], str] = _new_nonce

    def begin(self, log: CopyLog) -> Introducing:
        """Raises OffsetNotFound if the end of the log cannot be read yet."""
        start, end = log.log_start, log.log_start if log.is_empty else log.copy_end
        digest_from = digest_start(start, end, self.primary_start)
        identity = self.identity
        return Introducing(
            self,
            Hello(
                cluster=self.cluster, name=self.name, member=identity.member, broker_id=identity.broker_id,
                address=identity.address, ha_address=identity.ha_address, process=identity.process, nonce=self.nonce(),
                epochs=self.epochs, start=start, end=end, digest_from=digest_from,
                digest=digest_between(log.log_bytes, digest_from, end),
            ),
        )  # fmt: skip


class Introducing:
    """One handshake."""

    def __init__(self, introduction: Introduction, hello: Hello) -> None:
        self._introduction = introduction
        self._hello = hello
        self._payload = hello.encode()
        self._unsaid = framed(self._payload)
        self._is_welcome = False
        self.is_over = False
        #: Why this follower does not count for acknowledgements; empty if it counts.
        self.uncounted = ""

    def take_unsaid(self) -> bytes:
        unsaid, self._unsaid = self._unsaid, b""
        return unsaid

    def take(self, payload: bytes) -> None:
        """Take the primary's next frame. Raises Refused, BadFrame."""
        if not self._is_welcome:
            self._prove(read(Welcome, payload))
            return
        accepted = read(Accepted, payload)
        if accepted.refused:
            raise Refused(f"the master refuses this slave: {accepted.refused}", for_good=accepted.for_good)
        self.uncounted, self.is_over = accepted.uncounted, True

    def _prove(self, welcome: Welcome) -> None:
        if welcome.refused:
            raise Refused(f"the master refuses this slave: {welcome.refused}", for_good=welcome.for_good)
        introduction, secret = self._introduction, self._introduction.secret
        if welcome.member != introduction.primary:
            raise Refused(
                f"the replication port belongs to member {welcome.member}, and the log was compared with that of "
                f"{introduction.primary}: comparing again"
            )
        has_proved = secret is not None and secret.verify(
            welcome.proof, OF_PRIMARY, *primary_parts(self._hello, welcome)
        )
        if not has_proved and introduction.expects_proof:
            raise Refused("the replication port does not prove the secret of this group: its log is not copied")
        proof = secret.proof(OF_FOLLOWER, *follower_parts(self._payload, welcome)) if secret is not None else ""
        self._unsaid += frame_of(Proof(proof=proof))
        self._is_welcome = True
