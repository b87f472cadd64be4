"""Identities of idempotent writers: issued by this broker, proved by a token with every send.

A writer asks for its identity with a seed, 32 bytes that only it knows, and gets a token. Its id, the first part of
`PYROMQ_WRITER` in its messages, is a digest of the seed: consumers read the id, and cannot derive the seed or the token
from it. The token is a request field of each numbered send and is stored nowhere.

    id     = "w" + the first 40 hex digits of SHA-256("pyromq writer" + seed)
    token  = HMAC-SHA256(key, id), with a key that is drawn at each start

The same seed gives the same id on every broker and after every restart, so a writer resumes its sequence after a
fail-over, from another process or another machine: it asks again, and gets a token of the broker that it asked. A token
of an earlier start is refused with the field `writerToken=renew`, upon which a writer asks once more.

Identities and their streams are counted for the host that asked first, so that one host cannot fill the table of
writers: it has at most a quarter of it.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Callable, Iterable
from typing import NamedTuple

from pyromq.errors import BadRequest, NotNow, WriterNotIssued

#: The digits of an id; a sender may add a suffix of its own after a slash (the Spark sink: the partition).
_ID = re.compile(rb"w[0-9a-f]{40}(?=/|\Z)")
_SEED = re.compile(r"[0-9a-f]{64}")
#: Identities of one host, and of all hosts.
MAX_PER_HOST = 1000
MAX_IDENTITIES = 100_000


class Issued(NamedTuple):
    writer: str
    token: str


def writer_id(seed: str) -> str:
    """Return the public id of a seed (64 hex digits)."""
    return "w" + hashlib.sha256(b"pyromq writer" + bytes.fromhex(seed)).hexdigest()[:40]


def id_of(writer: bytes) -> bytes | None:
    """Return the id in a `PYROMQ_WRITER`; None if no broker issued a name of this form."""
    found = _ID.match(writer)
    return None if found is None else found.group()


class WriterIdentities:
    """`streams_of` tells how many streams of an id the table of writers holds."""

    def __init__(self, streams_of: Callable[[bytes], int], key: bytes | None = None) -> None:
        self._streams_of = streams_of
        self._key = key or secrets.token_bytes(32)
        #: Ids with the host that asked first; and the reverse.
        self._hosts: dict[bytes, str] = {}
        self._ids: dict[str, dict[bytes, None]] = {}

    def __len__(self) -> int:
        return len(self._hosts)

    def issue(self, seed: str, host: str) -> Issued:
        """Return the identity of a seed. Raises BadRequest, and NotNow if a limit is reached."""
        if not _SEED.fullmatch(seed):
            raise BadRequest("writerSeed must be 64 hexadecimal digits: 32 random or derived bytes")
        writer = writer_id(seed)
        writer_bytes = writer.encode()
        if writer_bytes not in self._hosts:
            self._make_room(host)
            self._hosts[writer_bytes] = host
            self._ids.setdefault(host, {})[writer_bytes] = None
        return Issued(writer, self._token(writer_bytes))

    def verify(self, writers: Iterable[bytes], token: str | None) -> bytes:
        """Return the id that all these writers have. Raises WriterNotIssued unless the token proves it."""
        ids = {id_of(writer) for writer in writers}
        found = ids.pop()
        if ids or found is None:
            raise WriterNotIssued(
                "the writer of a numbered message must be one identity that this broker issued (request code 17010): "
                "PYROMQ_WRITER is reserved for idempotent writers",
                may_renew=False,
            )
        if token is None:
            raise WriterNotIssued(
                f"the writer {found.decode()} proves its identity with the field writerToken, and this send has none: "
                "a message with PYROMQ_WRITER cannot be forwarded as it is; leave the property out",
                may_renew=False,
            )
        known = found in self._hosts
        if not known or not hmac.compare_digest(token.encode(errors="replace"), self._token(found).encode()):
            raise WriterNotIssued(
                f"the token is not the one that this broker issued to the writer {found.decode()} since its start: "
                "ask for the identity again",
                may_renew=True,
            )
        return found

    def require_room(self, writer: bytes, new: int, most: int) -> None:
        """Raise NotNow if the host of this id would have more streams than it may."""
        host = self._hosts.get(writer)
        if host is None or not new:
            return
        held = sum(self._streams_of(one) for one in self._ids[host])
        if held + new > most:
            raise NotNow(
                f"the writers of {host} have {held} streams (one for every queue that a writer writes to), and one "
                f"host may have {most}: use fewer writers or queues, or have them forgotten sooner "
                "(idempotence.retention_hours)"
            )

    def _token(self, writer: bytes) -> str:
        return hmac.digest(self._key, writer, "sha256").hex()

    def _make_room(self, host: str) -> None:
        own = self._ids.get(host, {})
        if len(own) >= MAX_PER_HOST or len(self._hosts) >= MAX_IDENTITIES:
            for writer in [one for one in own if not self._streams_of(one)]:
                del self._hosts[writer], own[writer]
        if len(own) >= MAX_PER_HOST or len(self._hosts) >= MAX_IDENTITIES:
            raise NotNow(
                f"{len(own)} identities of writers with stored messages were issued to {host}, and {len(self._hosts)} "
                "to all hosts: no more until some are forgotten (idempotence.retention_hours)"
            )
