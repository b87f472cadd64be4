"""A store whose files are taken away while it is open acknowledges nothing more, and says so."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pyromq.errors import StoreFenced, StoreGone, StoreLocked
from pyromq.files.disk import Locked, OsDisk
from pyromq.store import background
from pyromq.store.message_store import MessageStore
from pyromq.testing import SimDisk
from store.support import ROOT, config, open_store, order, read_all

SECONDS = 20


def remove_root(root: Path) -> None:
    shutil.rmtree(root)


def rename_root(root: Path) -> None:
    root.rename(root.with_name("elsewhere"))


def replace_root(root: Path) -> None:
    root.rename(root.with_name("elsewhere"))
    shutil.copytree(root.with_name("elsewhere"), root)


def remove_lock(root: Path) -> None:
    (root / "lock").unlink()


def replace_lock(root: Path) -> None:
    (root / "lock").unlink()
    (root / "lock").write_bytes(b"lock")


def remove_log(root: Path) -> None:
    shutil.rmtree(root / "commitlog")


def remove_open_segment(root: Path) -> None:
    min((root / "commitlog").glob("0*")).unlink()


LOSSES = [remove_root, rename_root, replace_root, remove_lock, replace_lock, remove_log, remove_open_segment]


@pytest.mark.parametrize("lose", LOSSES)
def test_a_running_store_is_fenced(tmp_path: Path, lose: Callable[[Path], None]) -> None:
    root = tmp_path / "store"

    async def tell() -> None:
        settings = config(root=root, segment_bytes=1 << 16)
        async with asyncio.timeout(SECONDS), MessageStore(settings).running() as store:
            store.append([order("before")])
            lose(root)
            await store.marks.synced.wait(1 << 60)  # ends with what the check found

    with pytest.raises(StoreFenced, match="while the store was open"):
        asyncio.run(tell())
    assert not (root / "config").exists()


@pytest.mark.parametrize("lose", LOSSES)
def test_a_loss_before_the_next_check_is_found_at_the_close(tmp_path: Path, lose: Callable[[Path], None]) -> None:
    root = tmp_path / "store"

    async def tell() -> None:
        async with MessageStore(config(root=root, segment_bytes=1 << 16)).running() as store:
            store.append([order("before")])
            lose(root)

    with pytest.raises(StoreFenced):
        asyncio.run(tell())


def test_a_store_in_its_place_passes_every_check(tmp_path: Path) -> None:
    root = tmp_path / "store"
    link = tmp_path / "link"
    root.mkdir()
    link.symlink_to(root)
    with MessageStore(config(root=link)) as store:
        for number in range(200):
            store.append([order(bytes(1000), queue=number % 3)])
            store.check_presence()
        store.dispatch()
        assert len(store.log.files.segments) > 3
    with MessageStore(config(root=root)) as store:
        assert len(read_all(store)) == 67


def test_what_cannot_be_looked_at_is_no_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store()

    def refuse(path: Path) -> None:
        raise PermissionError(13, "denied", str(path))

    monkeypatch.setattr(store.disk, "identity", refuse)
    store.check_presence()
    store.append([order("accepted")])
    monkeypatch.undo()
    store.close()


def test_a_fenced_store_writes_nothing_under_its_old_name() -> None:
    disk = SimDisk()
    store = open_store(disk)
    store.append([order("one", KEYS="key")])
    store.dispatch()
    disk.remove(ROOT / "lock")
    disk.plant(ROOT / "lock", b"lock")
    store.check_presence()
    before = disk.files()
    with pytest.raises(StoreFenced, match="replaced by another one"):
        store.append([order("two")])
    for write in (
        lambda: disk.replace_bytes(ROOT / "config" / "table.json", b"{}"),
        lambda: disk.remove(ROOT / "abort"),
        lambda: disk.remove_tree(ROOT / "config"),
        lambda: disk.create_mapped(ROOT / "new", 4096, reserve=True),
    ):
        with pytest.raises(OSError, match="tale"):
            write()
    store.close()
    assert disk.files() == before


def test_the_sentence_says_what_to_do() -> None:
    fenced = StoreFenced(StoreGone(Path("/data/store"), "removed or renamed"))
    assert "/data/store was removed or renamed" in str(fenced)
    assert "put the store directory back" in str(fenced)


def test_the_running_store_checks_each_second() -> None:
    assert background.CHECK_SECONDS == 1.0


HOLD = """
import sys
from pathlib import Path
from pyromq.files.disk import OsDisk
lock = OsDisk(Path(sys.argv[1]) / "staging").lock(Path(sys.argv[1]) / "lock")
print("held", flush=True)
sys.stdin.read()
"""


def test_a_removed_lock_file_lets_no_second_process_in(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == b"held\n"
        (tmp_path / "lock").unlink()
        with pytest.raises(Locked):
            OsDisk(tmp_path / "staging").lock(tmp_path / "lock")
        with pytest.raises(StoreLocked):
            MessageStore(config(root=tmp_path)).open()
        first.communicate(b"")
    OsDisk(tmp_path / "staging").lock(tmp_path / "lock").release()


def test_a_lock_file_that_is_replaced_while_it_is_taken_is_not_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = OsDisk(tmp_path / "staging")
    monkeypatch.setattr(disk, "identity", lambda path: (0, 0))
    with pytest.raises(Locked):
        disk.lock(tmp_path / "lock")
    monkeypatch.undo()
    disk.lock(tmp_path / "lock").release()
