"""What an answer means to whoever asked: a command when it went well, else the error that its code stands for."""

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

_KINDS: dict[int, type[PyroMQError]] = {
    kind.code: kind
    for kind in (
        BadRequest, ConsumerOffline, GroupNotFound, IllegalMessage, NoPermission, NotFound, NotNow, NotSupported,
        SubscriptionNotFound, SubscriptionNotLatest, SystemBusy, TopicExists, TopicNotFound,
    )
}  # fmt: skip


def error_of(answer: Command, address: str) -> PyroMQError:
    """The error that an answer with any code but success stands for; it names who answered."""
    kind = _KINDS.get(answer.code)
    if kind is not None:
        return kind(f"{address}: {_reason(answer)}")
    return BrokerError(f"{address}: {_reason(answer)}", answer.code)


def _reason(answer: Command) -> str:
    if answer.reason:
        return answer.reason.strip()
    try:
        return f"it answered {ResponseCode(answer.code).name} and gave no reason"
    except ValueError:
        return f"it answered with the code {answer.code} and gave no reason"
