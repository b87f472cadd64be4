"""Handlers by topic, ready to be called: coroutines as they are, plain functions on a thread, with hooks."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError as FutureCancelled
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Any

from pyromq.client.hooks import Handling, Hooks
from pyromq.client.received import ReceivedMessage
from pyromq.clock import Clock
from pyromq.errors import ClientError

#: Takes a message, or a list of them when it asked for batches.
Handler = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Listener:
    """`call` takes one message; or up to `batch` of them in a list, when that is not 0."""

    call: Callable[[Any], Awaitable[object]]
    batch: int = 0

    async def handle(self, message: ReceivedMessage) -> None:
        """One message, whatever the handler prefers."""
        await self.call([message] if self.batch else message)


def ready(
    handler: Handler, batch: int, hooks: Hooks, group: str, clock: Clock, threads: Callable[[], Executor]
) -> Listener:
    call = handler if _is_async(handler) else partial(_on_thread, handler, threads)
    if hooks:
        call = partial(_hooked, call, hooks, group, clock)
    return Listener(call, batch)


def _is_async(handler: Handler) -> bool:
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)


async def _on_thread(handler: Handler, threads: Callable[[], Executor], what: Any) -> None:
    try:
        handling = asyncio.get_running_loop().run_in_executor(threads(), _carried, handler, what)
    except (
        RuntimeError
    ):  # there are no threads any more, for the process ends: nothing may be begun, and nothing failed
        await asyncio.Event().wait()
        raise
    result = await handling
    if inspect.isawaitable(result):  # a plain function that returns a coroutine
        await result


def _carried(handler: Handler, what: Any) -> Any:
    """Call it in its thread. An exception that a future cannot carry, or that would end the loop, is wrapped.

    `sys.exit()` in a thread ends that thread only, everywhere in Python.
    """
    try:
        return handler(what)
    except (StopIteration, FutureCancelled, SystemExit, KeyboardInterrupt) as error:
        raise RuntimeError(f"the handler raised {type(error).__name__}") from error


def is_its_own(error: BaseException) -> bool:
    """Return whether the handler failed; False if its task or the whole program is ending."""
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()  # a handler may well wait for something that others cancelled
        return task is not None and not task.cancelling()
    return not isinstance(error, GeneratorExit | KeyboardInterrupt | SystemExit)


async def _hooked(call: Callable[[Any], Awaitable[object]], hooks: Hooks, group: str, clock: Clock, what: Any) -> None:
    handling = Handling(what if isinstance(what, list) else [what], group)
    hooks.before_handle(handling)
    began = clock.monotonic()
    try:
        await call(what)
    except BaseException as error:
        handling.error = error
        raise
    finally:
        handling.duration_s = clock.monotonic() - began
        hooks.after_handle(handling)


class Listeners:
    """By topic."""

    def __init__(self) -> None:
        self._by_topic: dict[str, Listener] = {}
        self._of_retries = Listener(self._by_origin)

    def put(self, topic: str, listener: Listener) -> None:
        self._by_topic[topic] = listener

    def remove(self, topic: str) -> None:
        self._by_topic.pop(topic, None)

    def of(self, topic: str) -> Listener:
        """Return the handler of a topic; for the retry topic, the handler of the original topic."""
        return self._by_topic.get(topic, self._of_retries)

    async def _by_origin(self, message: ReceivedMessage) -> None:
        listener = self._by_topic.get(message.topic)
        if listener is None:
            raise ClientError(f"nobody here handles {message.topic}, which this message was in first")
        await listener.handle(message)
