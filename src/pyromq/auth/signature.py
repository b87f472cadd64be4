"""Signatures of requests with an access key: the form that RocketMQ's own clients use, and its brokers check.

The signature covers the values of all fields, in the order of their names, and the body; not the request's code, the
time or the peer. An eavesdropper can replay a signed request: use it with TLS.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field

from pyromq.wire.command import Command

ACCESS_KEY = "AccessKey"
SECURITY_TOKEN = "SecurityToken"  # noqa: S105  the name of a field
SIGNATURE = "Signature"


@dataclass(frozen=True, slots=True)
class Credentials:
    """An access key and its secret, which is never shown."""

    access_key: str
    secret_key: str = field(repr=False)
    #: Belongs to temporary keys that a token service issues.
    security_token: str | None = field(default=None, repr=False)


def sign(command: Command, credentials: Credentials) -> None:
    """Put the fields into a request that say who sends it."""
    command.fields[ACCESS_KEY] = credentials.access_key
    if credentials.security_token is not None:
        command.fields[SECURITY_TOKEN] = credentials.security_token
    command.fields[SIGNATURE] = signature(command.fields, command.body, credentials.secret_key)


def signature(fields: Mapping[str, str], body: bytes, secret_key: str) -> str:
    values = "".join(fields[name] for name in sorted(fields) if name != SIGNATURE)
    digest = hmac.new(secret_key.encode(), values.encode() + body, hashlib.sha1)
    return base64.b64encode(digest.digest()).decode()
