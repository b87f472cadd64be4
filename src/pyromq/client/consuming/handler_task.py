"""Tasks that run handlers. A handler may cancel the task that it runs in, at once or later: that costs its message a
redelivery, and the consumer no worker. Only a consumer that stops, and a loop that ends, end such a task for good."""

from __future__ import annotations

import asyncio
from typing import Any


class HandlerTask(asyncio.Task[Any]):
    """`is_of_loop_end`: it was cancelled while its loop was stopped, as `asyncio.run` cancels remaining tasks."""

    is_of_loop_end = False

    def cancel(self, msg: Any | None = None) -> bool:
        if not self.get_loop().is_running():
            self.is_of_loop_end = True
        return super().cancel(msg)


def is_at_loop_end() -> bool:
    """Return whether the current task was cancelled because its loop ends."""
    task = asyncio.current_task()
    return isinstance(task, HandlerTask) and task.is_of_loop_end


def is_cancelled() -> bool:
    """Return whether a cancellation of the current task was requested, delivered or not."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
