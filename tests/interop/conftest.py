"""Every test here needs the real Apache RocketMQ; without its toolchain they are skipped, with the reason."""

from __future__ import annotations

import pytest

from interop.apache import ToolchainMissing, toolchain


@pytest.fixture(scope="session", autouse=True)
def _apache_is_here() -> None:
    """Only a missing toolchain skips: one that is there and fails must fail the test."""
    try:
        toolchain()
    except ToolchainMissing as missing:
        pytest.skip(str(missing))
