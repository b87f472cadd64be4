"""Hooks: a program's own code around every send and every handling of a message, for tracing and counting.

    class Tracing(Hook):
        def before_send(self, sending: Sending) -> None:
            sending.properties["traceparent"] = current_traceparent()

A hook sees what happens and may add properties to a message that is sent; it decides nothing. One that raises does not
harm the message: the first time is in the log with its trace, the rest is counted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

from pyromq.client.message import Message
from pyromq.client.received import ReceivedMessage
from pyromq.client.sending.receipt import SendReceipt

log = logging.getLogger("pyromq.client")


class Sending:
    """One message on its way to a broker. The last three are known afterwards."""

    __slots__ = ("duration_s", "error", "group", "is_half", "message", "message_id", "notes", "properties", "receipt")

    def __init__(self, message: Message, group: str, message_id: str, *, is_half: bool = False) -> None:
        self.message = message
        self.group = group
        self.message_id = message_id
        #: The first half of a transaction: consumers see it when the transaction is committed.
        self.is_half = is_half
        #: Properties that hooks add to the message.
        self.properties: dict[str, str] = {}
        #: For hooks to remember something between before and after, each under a key of its own.
        self.notes: dict[Any, Any] = {}
        self.receipt: SendReceipt | None = None
        self.error: BaseException | None = None
        self.duration_s = 0.0

    def failed(self, error: BaseException) -> None:
        """Messages of a batch that were sent before it failed are stored all the same, and have receipts."""
        if self.receipt is not None:
            return
        self.error = error
        receipt = getattr(error, "receipt", None)
        if isinstance(receipt, SendReceipt) and receipt.message_id == self.message_id:
            self.receipt = receipt


class Handling:
    """Messages on their way through a handler. The last two are known afterwards."""

    __slots__ = ("duration_s", "error", "group", "messages", "notes")

    def __init__(self, messages: list[ReceivedMessage], group: str) -> None:
        self.messages = messages
        self.group = group
        self.notes: dict[Any, Any] = {}
        #: The handler's exception; None if it accepted the messages.
        self.error: BaseException | None = None
        self.duration_s = 0.0


class Hook:
    """Override the methods you need."""

    def before_send(self, sending: Sending) -> None: ...

    def after_send(self, sending: Sending) -> None: ...

    def before_handle(self, handling: Handling) -> None: ...

    def after_handle(self, handling: Handling) -> None: ...


class Hooks:
    """The hooks of one client. False when there are none, so that nothing needs to be made for them."""

    __slots__ = ("_failures", "_hooks")

    def __init__(self, hooks: Iterable[Hook] = ()) -> None:
        self._hooks = tuple(hooks)
        self._failures: dict[int, int] = {}

    def __bool__(self) -> bool:
        return bool(self._hooks)

    def failures(self) -> int:
        """The number of exceptions of hooks."""
        return sum(self._failures.values())

    def before_send(self, sending: Sending) -> None:
        for hook in self._hooks:
            self._run(hook, hook.before_send, sending)

    def after_send(self, sending: Sending) -> None:
        for hook in reversed(self._hooks):
            self._run(hook, hook.after_send, sending)

    def before_handle(self, handling: Handling) -> None:
        for hook in self._hooks:
            self._run(hook, hook.before_handle, handling)

    def after_handle(self, handling: Handling) -> None:
        for hook in reversed(self._hooks):
            self._run(hook, hook.after_handle, handling)

    def _run(self, hook: Hook, step: Callable[[Any], None], about: Sending | Handling) -> None:
        try:
            step(about)
        except Exception:  # the message matters more
            count = self._failures[id(hook)] = self._failures.get(id(hook), 0) + 1
            if count == 1:
                log.exception("the hook %s failed; it is not reported again", type(hook).__name__)
