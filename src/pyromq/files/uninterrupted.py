"""Work of another thread that must not be given up in the middle.

Cancelling a task does not stop the thread that works for it: the thread continues, and its outcome would be lost. For a
sync that is the difference between "not confirmed" and "confirmed", so a cancelled task waits for the outcome, takes
it into account, and only then ends.
"""

from __future__ import annotations

import asyncio
from typing import TypeVar

Result = TypeVar("Result")


async def uninterrupted(work: asyncio.Future[Result]) -> Result:
    """Return or raise the outcome of the work. A cancellation is raised after it, and only if the work succeeded:
    a caller that catches the error and continues must call `end_if_cancelled`."""
    cancelled: asyncio.CancelledError | None = None
    while not work.done():
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError as cancellation:
            cancelled = cancellation
        except Exception:  # noqa: BLE001  it is the work's own, and raised below
            break
    result = work.result()
    if cancelled is not None:
        raise cancelled
    return result


def end_if_cancelled() -> None:
    """Raise a pending cancellation, in a loop that continues after an error: the error may have hidden it."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
