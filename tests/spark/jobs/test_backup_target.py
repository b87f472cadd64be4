"""A backup behind a URI keeps the same promises as one in a directory."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from pyromq.backup.checking import check
from pyromq.backup.making import back_up
from pyromq.backup.pruning import prune
from pyromq.backup.restoring import restore
from pyromq.backup.target import LocalTarget
from pyromq.errors import ConfigError
from pyromq.spark.jobs.backup.target import ArrowTarget, target_of
from store.small_store import MESSAGES, fill, make_store, open_store


@pytest.fixture
def target(tmp_path: Path) -> ArrowTarget:
    return ArrowTarget(f"file://{tmp_path}/backup")


def test_a_directory_and_a_uri(tmp_path: Path) -> None:
    assert target_of(str(tmp_path)) == target_of(f"file://{tmp_path}") == LocalTarget(tmp_path)
    assert target_of("backup") == LocalTarget(Path.cwd() / "backup"), "executors have another directory"
    with pytest.raises(ConfigError, match="no place for a backup"):
        target_of("nonsense://x")


def test_a_life_of_a_backup(target: ArrowTarget, tmp_path: Path) -> None:
    make_store(tmp_path / "store")
    back_up(tmp_path / "store", target)
    store = open_store(tmp_path / "store")
    fill(store, 60)
    store.close()
    assert back_up(tmp_path / "store", target).records == 60
    assert check(target).ok
    assert check(LocalTarget(tmp_path / "backup")).ok  # it is the same backup
    assert restore(target, tmp_path / "restored").records == MESSAGES + 60
    assert prune(target, before_ms=1 << 60).chunks > 0
    assert check(target).ok


def test_nothing_shows_before_it_is_whole(target: ArrowTarget, tmp_path: Path) -> None:
    def parts() -> object:
        yield b"half"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        target.write("log/x", parts())  # type: ignore[arg-type]
    assert target.names("log") == []
    assert not [path for path in (tmp_path / "backup").rglob("*") if path.is_file()]


def test_names_sizes_and_absence(target: ArrowTarget) -> None:
    assert target.names("manifests") == []
    target.create("manifests/1", b"abc")
    with pytest.raises(FileExistsError):
        target.create("manifests/1", b"")
    assert (target.names("manifests"), target.size("manifests/1"), target.read("manifests/1")) == (["1"], 3, b"abc")
    target.remove("manifests/1")
    target.remove("manifests/1")
    for ask in (target.read, target.size):
        with pytest.raises(FileNotFoundError):
            ask("manifests/1")
    with pytest.raises(FileNotFoundError), target.open("manifests/1"):
        pass
    assert target.shown("a/b") == f"{target.uri}/a/b"


def test_it_goes_to_another_process(target: ArrowTarget) -> None:
    target.write("a", [b"x"])
    assert pickle.loads(pickle.dumps(target)).read("a") == b"x"
