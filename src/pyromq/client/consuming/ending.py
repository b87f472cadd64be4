"""The end of handlers: they may finish what they are at, within the grace; then they are cancelled, and not waited for
any longer than a moment. What did not end does not count as handled."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from typing import Any

log = logging.getLogger("pyromq.client")

#: A cancelled handler may run this long before it is abandoned.
CANCEL_SECONDS = 2.0


async def let_end(tasks: Collection[asyncio.Task[Any]], grace_s: float) -> None:
    if not tasks:
        return
    _, late = await asyncio.wait(tasks, timeout=grace_s)
    if not late:
        return
    log.warning("%d handlers were cancelled: they did not end in time", len(late))
    for task in late:
        task.cancel()
    _, stubborn = await asyncio.wait(late, timeout=CANCEL_SECONDS)
    if stubborn:
        log.error("%d handlers did not end although they were cancelled; they are left alone", len(stubborn))
