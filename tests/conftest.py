"""For every test run."""

from __future__ import annotations

# Imported here and not at the end of a run, where pytest would do it: its many modules are parsed then while garbage is
# collected, and CPython 3.11 miscounts when a finalizer has something parsed in the midst of that.
import hypothesis  # noqa: F401
