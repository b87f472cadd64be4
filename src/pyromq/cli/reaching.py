"""Default address of a cluster, and the credentials of this client.

Keys and certificates come from the environment only: every user of the machine can read a command line.
"""

from __future__ import annotations

import os
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from pyromq.config.plain_file import NotAFile, read_plain_file
from pyromq.errors import ConfigError

if TYPE_CHECKING:
    from pyromq.auth.signature import Credentials

#: The authorities of a whole system have some hundred KiB.
MAX_CERTIFICATE_BYTES = 8 << 20

DEFAULT_NAME_SERVER = "127.0.0.1:9876"


class Connection(TypedDict):
    """The keywords that every client takes."""

    tls: ssl.SSLContext | bool | None
    credentials: Credentials | None


def connection() -> Connection:
    """From PYROMQ_TLS, PYROMQ_ACCESS_KEY, PYROMQ_SECRET_KEY and PYROMQ_SECURITY_TOKEN. Raises ConfigError."""
    return {"tls": _tls(os.environ.get("PYROMQ_TLS", "")), "credentials": _credentials()}


def _tls(wanted: str) -> ssl.SSLContext | bool | None:
    """`1`: checked with the system's authorities; a file: with the authorities in it."""
    if wanted.lower() in ("", "0", "no", "off", "false"):
        return None
    if wanted.lower() in ("1", "yes", "on", "true"):
        return True
    try:
        if len(read_plain_file(Path(wanted), MAX_CERTIFICATE_BYTES)) > MAX_CERTIFICATE_BYTES:
            raise NotAFile(f"it is larger than {MAX_CERTIFICATE_BYTES >> 20} MiB")
        return ssl.create_default_context(cafile=wanted)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise ConfigError(f"PYROMQ_TLS is {wanted!r}, which is no file of certificates: {why}", "PYROMQ_TLS") from None


def _credentials() -> Credentials | None:
    access, secret = os.environ.get("PYROMQ_ACCESS_KEY"), os.environ.get("PYROMQ_SECRET_KEY")
    if not access and not secret:
        return None
    if not access or not secret:
        raise ConfigError("PYROMQ_ACCESS_KEY and PYROMQ_SECRET_KEY belong together: one of them is missing")
    from pyromq.auth.signature import Credentials

    return Credentials(access, secret, os.environ.get("PYROMQ_SECURITY_TOKEN") or None)
