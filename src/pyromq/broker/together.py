"""Run coroutines concurrently, with a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any


async def within(timeout_s: float, work: Iterable[Coroutine[Any, Any, object]]) -> list[object]:
    """Return the results of coroutines run concurrently; those that do not finish in time are cancelled."""
    tasks = [asyncio.ensure_future(one) for one in work]
    if not tasks:
        return []
    try:
        await asyncio.wait(tasks, timeout=timeout_s)
    finally:
        for task in tasks:
            task.cancel()  # nothing happens to one that is done
    return list(await asyncio.gather(*tasks, return_exceptions=True))
