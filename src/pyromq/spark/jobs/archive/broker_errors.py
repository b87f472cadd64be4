"""Which errors say that a broker is away, or has no time: what it has can be read when it is back."""

from __future__ import annotations

from typing import Final

from pyspark.errors import PySparkException

from pyromq.errors import CallFailed, CallTimeout, NotNow, SystemBusy, TlsFailed, Unreachable

PASSING: Final = (CallFailed, SystemBusy, NotNow)
#: As Spark quotes them, when one was raised where it plans or reads.
_QUOTED: Final = tuple(f"pyromq.errors.{kind.__name__}: " for kind in (*PASSING, Unreachable, CallTimeout))


def is_about_brokers(error: BaseException) -> bool:
    """Return whether a retry may succeed later. A TLS mismatch is permanent."""
    if isinstance(error, PySparkException):
        said = str(error)
        return any(quoted in said for quoted in _QUOTED)
    return isinstance(error, PASSING) and not isinstance(error, TlsFailed)
