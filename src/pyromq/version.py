"""Which version of PyroMQ this is. Looked up when it is asked for: that takes a tenth of a broker's start."""

from __future__ import annotations

from functools import cache


@cache
def version() -> str:
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as version_of

    try:
        return version_of("pyromq")
    except PackageNotFoundError:  # a source tree that was never installed
        return "0+unknown"
