"""PyroMQ: a distributed message queue in Python that speaks Apache RocketMQ's protocols and file formats.

    async with pyromq.Producer("localhost:9876", group="signup") as producer:
        await producer.send(pyromq.Message("users", b"...", tags="registered"))

This is the front door: every public name is here, the same names for blocking code in `pyromq.sync`, all errors in
`pyromq.errors`, an embedded broker for tests in `pyromq.testing`. Each is imported when it is first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyromq.admin.admin import Admin as Admin
    from pyromq.client.consuming.verdicts import DeadLetter as DeadLetter
    from pyromq.client.consuming.verdicts import RetryLater as RetryLater
    from pyromq.client.group import strategies
    from pyromq.client.group.starting_point import ConsumeFrom as ConsumeFrom
    from pyromq.client.hooks import Handling as Handling
    from pyromq.client.hooks import Hook as Hook
    from pyromq.client.hooks import Sending as Sending
    from pyromq.client.message import Message as Message
    from pyromq.client.options import ClientOptions as ClientOptions
    from pyromq.client.options import Credentials as Credentials
    from pyromq.client.producer import Producer as Producer
    from pyromq.client.pull_consumer import PullConsumer as PullConsumer
    from pyromq.client.push_consumer import PushConsumer as PushConsumer
    from pyromq.client.received import ReceivedMessage as ReceivedMessage
    from pyromq.client.sending.batching import BatchOptions as BatchOptions
    from pyromq.client.sending.receipt import SendReceipt as SendReceipt
    from pyromq.client.sending.receipt import SendStatus as SendStatus
    from pyromq.client.transaction_producer import Decision as Decision
    from pyromq.client.transaction_producer import TransactionProducer as TransactionProducer
    from pyromq.model.queue import MessageQueue as MessageQueue

#: Where each public name is defined.
_PLACES = {
    "Admin": "pyromq.admin.admin",
    "BatchOptions": "pyromq.client.sending.batching",
    "ClientOptions": "pyromq.client.options",
    "ConsumeFrom": "pyromq.client.group.starting_point",
    "Credentials": "pyromq.client.options",
    "DeadLetter": "pyromq.client.consuming.verdicts",
    "Decision": "pyromq.client.transaction_producer",
    "Handling": "pyromq.client.hooks",
    "Hook": "pyromq.client.hooks",
    "Message": "pyromq.client.message",
    "MessageQueue": "pyromq.model.queue",
    "Producer": "pyromq.client.producer",
    "PullConsumer": "pyromq.client.pull_consumer",
    "PushConsumer": "pyromq.client.push_consumer",
    "ReceivedMessage": "pyromq.client.received",
    "RetryLater": "pyromq.client.consuming.verdicts",
    "SendReceipt": "pyromq.client.sending.receipt",
    "SendStatus": "pyromq.client.sending.receipt",
    "Sending": "pyromq.client.hooks",
    "TransactionProducer": "pyromq.client.transaction_producer",
}

#: Modules that belong to the public face.
_MODULES = {
    "errors": "pyromq.errors",
    "strategies": "pyromq.client.group.strategies",
    "sync": "pyromq.sync",
    "testing": "pyromq.testing",
}

__all__ = ["__version__", "strategies", *_PLACES]


def __getattr__(name: str) -> Any:
    if name in _PLACES:
        found = getattr(import_module(_PLACES[name]), name)
    elif name in _MODULES:
        found = import_module(_MODULES[name])
    elif name == "__version__":
        found = import_module("pyromq.version").version()
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
