"""The requirements of a lake on its storage, for a directory of this machine and for a file system of Arrow's."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from pyarrow import fs

from pyromq.errors import ConfigError, LakeError
from pyromq.spark.lake.parquet_lake import ParquetLake
from pyromq.spark.lake.place import ArrowPlace, LocalPlace, Place, place_at, told
from spark.support.lake_rows import added, change


@pytest.fixture(params=["local", "arrow"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    root = str(tmp_path / "lake")
    return LocalPlace(root) if request.param == "local" else ArrowPlace(fs.LocalFileSystem(), root, root)


def test_a_file_is_created_once(place: Place) -> None:
    assert place.create("a/b/1", b"first")
    assert not place.create("a/b/1", b"second")
    assert place.read("a/b/1") == b"first"
    assert [entry.name for entry in place.entries("a/b")] == ["a/b/1"], "nothing is left beside"


def test_what_is_replaced_is_whole(place: Place) -> None:
    place.replace("mark", b"1")
    place.replace("mark", b"22")
    assert place.read("mark") == b"22"
    assert place.read("nothing") is None


def test_files_are_listed_moved_and_removed(place: Place) -> None:
    for name in ("x/1", "x/y/2"):
        place.create(name, b"abc")
    assert [entry.name for entry in place.entries("x")] == ["x/1"]
    assert sorted((entry.name, entry.size) for entry in place.entries("x", recursive=True)) == [
        ("x/1", 3),
        ("x/y/2", 3),
    ]
    assert place.directories("x") == ["y"]
    place.move("x/1", "z/new/1")
    assert (place.exists("x/1"), place.exists("z/new/1")) == (False, True)
    with pytest.raises(FileNotFoundError):
        place.move("x/1", "z/1")
    for _ in range(2):
        place.remove("z/new/1")
        place.remove_tree("x")
    assert place.entries("", recursive=True) == []
    assert place.entries("nowhere") == place.directories("nowhere") == []


def test_a_commit_works_there(place: Place) -> None:
    lake = ParquetLake(place)
    lake.commit(change(lake.head(), "r1", added(lake, "r1", {"t@a@0": (0, 3)}), {"t@a@0": 3}))
    assert ParquetLake(place).head().offsets == {"t@a@0": 3}
    assert place.read(next(iter(lake.files())).path) is not None


def test_of_many_who_create_the_same_file_here_one_does(tmp_path: Path) -> None:
    start, made = threading.Barrier(8), []

    def create(number: int) -> None:
        start.wait()
        if place_at(str(tmp_path)).create("commit", str(number).encode()):
            made.append(number)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    assert (tmp_path / "commit").read_text() == str(made[0])


def test_a_path_may_be_written_as_a_url(tmp_path: Path) -> None:
    place_at(f"file://{tmp_path}").create("x", b"1")
    assert place_at(str(tmp_path)).location("x") == str(tmp_path / "x")
    assert place_at(str(tmp_path)).read("x") == b"1"


@pytest.mark.parametrize("name", ["a%20b", "[ab]", "a{b}", "a*", "a?b", "a#b"])
def test_paths_that_spark_or_a_format_would_read_otherwise_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="cannot be that of a lake"):
        place_at(str(tmp_path / name))
    assert place_at(str(tmp_path / "a b ü")).create("x", b"1")


def test_what_a_disk_says_becomes_a_sentence() -> None:
    with (
        pytest.raises(LakeError, match=r"the lake /lake cannot be read or written: No space left on device"),
        told("/lake"),
    ):
        raise OSError(28, "Error writing bytes to file. Detail: [errno 28] No space left on device")
