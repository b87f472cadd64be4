"""For every test run."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from pathlib import Path

# Imported here and not at the end of a run, where pytest would do it: its many modules are parsed then while garbage is
# collected, and CPython 3.11 miscounts when a finalizer has something parsed in the midst of that.
import hypothesis  # noqa: F401
import pytest

import late
import spark_classes

os.environ.setdefault("SPARK_SUBMIT_OPTS", spark_classes.options())

#: The group secret of every broker and every command of this run, in their processes too.
_secrets = tempfile.TemporaryDirectory(prefix="pyromq-secret-")
os.environ["PYROMQ_SECRET_FILE"] = str(Path(_secrets.name) / "secret")


def pytest_configure(config: pytest.Config) -> None:
    late.register(config)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spark runs in a Java process: where there is none, its tests say so."""
    home = os.environ.get("JAVA_HOME")
    if shutil.which("java", path=f"{home}/bin" if home else None) is None:
        for item in items:
            if item.get_closest_marker("spark"):
                item.add_marker(pytest.mark.skip(reason="Spark needs Java, and there is none here"))


def pytest_runtest_teardown() -> None:
    """A command that ran in here has set logging up for its own process, and with a stream that is closed by now."""
    root = logging.getLogger()
    for handler in [one for one in root.handlers if type(one) is logging.StreamHandler]:
        root.removeHandler(handler)
    root.setLevel(logging.WARNING)
    logging.captureWarnings(False)
