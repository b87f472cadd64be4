from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from store.small_store import make_store


@pytest.fixture(scope="session")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("intact") / "store"
    make_store(root)
    return root


@pytest.fixture
def root(intact: Path, tmp_path: Path) -> Path:
    """A store of some segments, closed cleanly."""
    return Path(shutil.copytree(intact, tmp_path / "store"))
