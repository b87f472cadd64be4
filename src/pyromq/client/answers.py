"""Turn an answer into a command, or into the error of its code."""

from __future__ import annotations

from pyromq.errors import (
    BadRequest,
    BrokerError,
    ConsumerOffline,
    GroupNotFound,
    IllegalMessage,
    NoPermission,
    NotFound,
    NotNow,
    NotSupported,
    PyroMQError,
    SubscriptionNotFound,
    SubscriptionNotLatest,
    SystemBusy,
    TopicExists,
    TopicNotFound,
)
from pyromq.wire.codes import ResponseCode
from pyromq.wire.command import Command
from pyromq.wire.responses import MAX_REASON

_KINDS: dict[int, type[PyroMQError]] = {
    kind.code: kind
    for kind in (
        BadRequest, ConsumerOffline, GroupNotFound, IllegalMessage, NoPermission, NotFound, NotNow, NotSupported,
        SubscriptionNotFound, SubscriptionNotLatest, SystemBusy, TopicExists, TopicNotFound,
    )
}  # fmt: skip

#: Brokers' error texts without advice: code, text, advice.
_ADVICE = (
    (
        ResponseCode.NO_PERMISSION,
        "username cannot be null",
        "it wants to know who asks: give credentials; the command line takes PYROMQ_ACCESS_KEY and PYROMQ_SECRET_KEY",
    ),
    (
        ResponseCode.NO_PERMISSION,
        "signature failed",
        "the secret key is not the one that belongs to this access key: check the credentials",
    ),
    (ResponseCode.NO_PERMISSION, "User:", "it does not accept this access key: check the credentials"),
    (ResponseCode.SYSTEM_ERROR, "timerWheelEnable is false", "it delivers at no given time: use a delay_level instead"),
)


def error_of(answer: Command, address: str) -> PyroMQError:
    """The error that an answer with any code but success stands for; it names who answered."""
    kind = _KINDS.get(answer.code)
    if kind is not None:
        return kind(f"{address}: {_reason(answer)}")
    return BrokerError(f"{address}: {_reason(answer)}", answer.code)


def _reason(answer: Command) -> str:
    if answer.reason:
        return _on_one_line(answer.reason) + _advice(answer.code, answer.reason)
    try:
        return f"it answered {ResponseCode(answer.code).name} and gave no reason"
    except ValueError:
        return f"it answered with the code {answer.code} and gave no reason"


def _on_one_line(reason: str) -> str:
    """Sanitise a broker's text for logs and terminals: it may quote untrusted input."""
    line = " ".join(reason[:MAX_REASON].split())
    return line if line.isprintable() else ascii(line)[1:-1]


def _advice(code: int, reason: str) -> str:
    return next((f" ({advice})" for of, said, advice in _ADVICE if of == code and said in reason), "")
