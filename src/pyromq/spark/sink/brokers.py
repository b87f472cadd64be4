"""Capabilities of the brokers that the sink writes to: asked once in each process."""

from __future__ import annotations

from collections.abc import Iterable
from weakref import WeakKeyDictionary

from pyromq.client.session import Session
from pyromq.errors import NotSupported, Unreachable
from pyromq.wire.bodies.routes import decode_kv_table
from pyromq.wire.requests.admin import GetRuntimeInfo

#: A broker that says so stores a numbered message once.
KNOWS_WRITERS = "pyromq.idempotentWriters"
#: Sent only by PyroMQ's brokers: they end a transaction once, even if told several times.
OURS = "pyromqVersion"

_figures: WeakKeyDictionary[Session, dict[str, dict[str, str]]] = WeakKeyDictionary()


async def figures_of(session: Session, broker_name: str) -> dict[str, str]:
    """Raises what a call raises."""
    known = _figures.setdefault(session, {})
    if broker_name not in known:
        address = session.routes.address(broker_name)
        if address is None:
            raise Unreachable(f"no route names a master of the broker {broker_name!r}")
        known[broker_name] = dict(decode_kv_table((await session.ask(address, GetRuntimeInfo())).body))
    return known[broker_name]


async def is_ours(session: Session, broker_name: str) -> bool:
    return OURS in await figures_of(session, broker_name)


async def check_knows_writers(session: Session, broker_names: Iterable[str]) -> None:
    """Raises NotSupported for brokers that would store a repeat twice."""
    for name in sorted(set(broker_names)):
        if (await figures_of(session, name)).get(KNOWS_WRITERS) != "true":
            raise NotSupported(
                f"the broker {name!r} does not know repeated messages by their numbers, as PyroMQ's do: it cannot be "
                "written to with mode idempotent; use transactional, or atLeastOnce and a dedup_key for consumers"
            )
