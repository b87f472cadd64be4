"""Everything in here needs the accelerator, but for the test that removes it."""

from __future__ import annotations

from pyromq import accelerated

collect_ignore_glob = ["test_*.py"] if accelerated.load("accelerator") is None else []
