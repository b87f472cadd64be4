"""PyroMQ: a distributed message queue in Python that speaks Apache RocketMQ's protocols and file formats."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("pyromq")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0+unknown"

__all__ = ["__version__"]
