"""The gate that closes the append batch before a method of the store runs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

if TYPE_CHECKING:
    from pyromq.store.message_store import MessageStore

Arguments = ParamSpec("Arguments")
Returned = TypeVar("Returned")


def gated(
    method: Callable[Concatenate[MessageStore, Arguments], Returned],
) -> Callable[Concatenate[MessageStore, Arguments], Returned]:
    """Close the append batch before a method of the store runs. Methods without this read only committed bytes or
    dispatched messages, which an open batch does not change."""

    @functools.wraps(method)
    def closed_first(store: MessageStore, /, *arguments: Arguments.args, **named: Arguments.kwargs) -> Returned:
        store.close_batch()
        return method(store, *arguments, **named)

    return closed_first
