"""Names of topics and groups for shells that complete them: asked of the cluster, if it answers at once.

A shell waits while it asks, so the time is short, and whatever goes wrong is no name at all and nothing said.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING

import typer

from pyromq.cli.reaching import DEFAULT_NAME_SERVER, connection

if TYPE_CHECKING:
    from pyromq.admin.admin import Admin

NAME = re.compile(r"[%|a-zA-Z0-9_.-]+")
#: A delay that users hardly notice.
SECONDS = 0.4


def topics(ctx: typer.Context, incomplete: str) -> list[str]:
    """Topics that people made; those of the system when the name begins like one."""
    return _names(ctx, incomplete, _topics)


def groups(ctx: typer.Context, incomplete: str) -> list[str]:
    return _names(ctx, incomplete, _groups)


def brokers(ctx: typer.Context, incomplete: str) -> list[str]:
    return _names(ctx, incomplete, _brokers)


async def _topics(admin: Admin) -> Iterable[str]:
    return [one.name for one in await admin.topics.list() if one.kind != "system"]


async def _groups(admin: Admin) -> Iterable[str]:
    return [one.name for one in await admin.groups.list() if not one.is_system]


async def _brokers(admin: Admin) -> Iterable[str]:
    return {one.name for one in await admin.brokers.list()}


def _names(ctx: typer.Context, incomplete: str, listed: Callable[[Admin], Awaitable[Iterable[str]]]) -> list[str]:
    given = ctx.params.get("name_servers")
    where = str(given or os.environ.get("NAMESRV_ADDR") or DEFAULT_NAME_SERVER)
    logging.disable()  # nor for a warning
    try:
        found = asyncio.run(_quickly(where, listed))
    except Exception:  # noqa: BLE001  a shell has no place for an error
        return []
    finally:
        logging.disable(logging.NOTSET)
    # Keep only RocketMQ's valid names: a shell may execute other completions.
    return sorted(name for name in found if name.startswith(incomplete) and NAME.fullmatch(name))


async def _quickly(where: str, listed: Callable[[Admin], Awaitable[Iterable[str]]]) -> list[str]:
    from pyromq.admin.admin import Admin

    async with asyncio.timeout(SECONDS), Admin(where, **connection()) as admin:
        return list(await listed(admin))
