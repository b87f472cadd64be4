"""Directories in the place of queue and index files, and the other way round: moved away, and derived again."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from pyromq.store.message_store import InlineRunner, MessageStore
from store.queues.test_queue_repair import MESSAGES, check, fill, index_files, queue_files, settings
from store.support import bodies

Damage = Callable[[Path], Path]


def as_directory(path: Path) -> Path:
    """Put a directory with something in it in the place of a file."""
    path.unlink()
    path.mkdir()
    (path / "keep").write_text("a note")
    return path


def as_file(path: Path) -> Path:
    """Put a file in the place of a directory."""
    shutil.rmtree(path)
    path.write_text("a note")
    return path


def first_queue_file(root: Path) -> Path:
    return as_directory(queue_files(root)[0])


def middle_queue_file(root: Path) -> Path:
    return as_directory(queue_files(root)[2])


def last_queue_file(root: Path) -> Path:
    return as_directory(queue_files(root)[-1])


def queue(root: Path) -> Path:
    return as_file(root / "consumequeue" / "orders" / "0")


def topic(root: Path) -> Path:
    return as_file(root / "consumequeue" / "orders")


def all_queues(root: Path) -> Path:
    return as_file(root / "consumequeue")


def first_index_file(root: Path) -> Path:
    return as_directory(index_files(root)[0])


def last_index_file(root: Path) -> Path:
    return as_directory(index_files(root)[-1])


def index(root: Path) -> Path:
    return as_file(root / "index")


DAMAGES: list[Damage] = [
    first_queue_file, middle_queue_file, last_queue_file, queue, topic, all_queues, first_index_file, last_index_file,
    index,
]  # fmt: skip


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("filled") / "store"
    fill(root)
    return root


@pytest.fixture
def root(filled: Path, tmp_path: Path) -> Path:
    shutil.copytree(filled, tmp_path / "store")
    return tmp_path / "store"


@pytest.mark.parametrize("crashed", [False, True])
@pytest.mark.parametrize("damage", DAMAGES)
def test_everything_is_served_and_nothing_is_thrown_away(root: Path, damage: Damage, crashed: bool) -> None:
    if crashed:
        (root / "abort").write_bytes(b"1")
    place = damage(root)
    was_directory = place.is_dir()
    with MessageStore(settings(root), runner=InlineRunner()) as store:
        store.dispatch()
        missing = [n for n in range(MESSAGES) if bodies(store.query("orders", f"k{n}")) != [f"{n}".encode()]]
        assert missing == []
        check(store)
    kept = root / "quarantine" / "1" / place.relative_to(root)
    assert (kept / "keep" if was_directory else kept).read_text() == "a note"
    with MessageStore(settings(root), runner=InlineRunner()):
        assert not (root / "quarantine" / "2").exists()


def test_other_directories_are_left_alone(root: Path) -> None:
    """A file system has some of its own, also in the directory of a queue that is derived again."""
    strays = [root / "index" / "lost+found", root / "consumequeue" / "orders" / "0" / "lost+found"]
    for stray in strays:
        stray.mkdir()
    queue_files(root)[-2].write_bytes(b"too short")
    with MessageStore(settings(root), runner=InlineRunner()) as store:
        check(store)
    assert all(stray.is_dir() for stray in strays)
    assert not (root / "quarantine").exists()
