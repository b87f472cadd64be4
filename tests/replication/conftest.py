"""Examples have no deadline of their own: a busy machine is not a slow program."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("pyromq", deadline=None)
settings.load_profile("pyromq")
