"""The `pyromq` command: `app` is its root."""
