"""PyroMQ: a distributed message queue in Python that speaks Apache RocketMQ's protocols and file formats."""

__all__ = ["__version__"]


def __getattr__(name: str) -> str:
    """The version is looked up when it is asked for: what that needs would take a tenth of a broker's start."""
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import PackageNotFoundError, version

    try:
        found = version("pyromq")
    except PackageNotFoundError:  # a source tree that was never installed
        found = "0+unknown"
    globals()[name] = found
    return found
