"""Errors as Spark's users meet them: Spark shows the whole trace of whatever a data source raises, so it is kept short.

PyroMQ's own errors say in a sentence what to mend; a stack trace into its code adds nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from pyromq.errors import PyroMQError

P = ParamSpec("P")
T = TypeVar("T")


def plainly(method: Callable[P, T]) -> Callable[P, T]:
    """Of an error that was raised on purpose, hand on the sentence without the way there."""

    @wraps(method)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(*args, **kwargs)
        except PyroMQError as error:
            raise error.with_traceback(None) from None

    return called
