"""The `pyromq` command."""

from pyromq.cli.app import main

__all__ = ["main"]
