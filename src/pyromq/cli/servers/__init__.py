"""Commands that run servers, and `pyromq doctor`."""
