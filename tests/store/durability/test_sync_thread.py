"""Threads that do blocking work for the loop: each piece ends on the loop with its outcome, and none is lost."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from pathlib import Path

import pytest

from pyromq.files.work_thread import WorkThread
from pyromq.store.durability.sync_thread import SyncThread

compiled = pytest.mark.skipif(not SyncThread.is_possible(), reason="needs the compiled kernel and event descriptors")


def test_work_is_done_on_another_thread_one_piece_after_the_other() -> None:
    async def story() -> list[str]:
        thread, done = WorkThread("helper"), []
        pieces = [thread.submit(lambda n=n: done.append(f"{n} {threading.current_thread().name}")) for n in range(3)]
        await asyncio.gather(*pieces)
        thread.close()
        return done

    assert asyncio.run(story()) == ["0 helper", "1 helper", "2 helper"]


def test_an_error_is_raised_where_somebody_waits() -> None:
    async def story() -> None:
        thread = WorkThread("helper")

        def fail() -> None:
            raise OSError(errno.EIO, "the disk is gone")

        with pytest.raises(OSError, match="the disk is gone"):
            await thread.submit(fail)
        await thread.submit(lambda: None)
        thread.close()

    asyncio.run(story())


def test_closing_finishes_what_was_handed_over() -> None:
    async def story() -> list[int]:
        thread, done = WorkThread("helper"), []
        for n in range(20):
            thread.submit(lambda n=n: done.append(n))
        thread.close()
        return done

    assert asyncio.run(story()) == list(range(20))


def ignore(_: OSError | None) -> None:
    pass


@compiled
def test_files_are_synced_and_the_loop_hears_of_it_before_whoever_waits(tmp_path: Path) -> None:
    async def story() -> None:
        thread, order = SyncThread(), []
        files = [os.open(tmp_path / str(n), os.O_RDWR | os.O_CREAT) for n in range(3)]
        for _ in range(5):
            done = thread.sync(files, order.append)
            done.add_done_callback(lambda _: order.append("who waits"))
            await done
        assert order == [None, "who waits"] * 5
        thread.close()
        for file in files:
            os.close(file)

    asyncio.run(story())


@compiled
def test_a_sync_that_fails_says_why() -> None:
    async def story() -> None:
        thread = SyncThread()
        reading, writing = os.pipe()  # cannot be synced
        heard: list[OSError | None] = []
        with pytest.raises(OSError, match="Invalid argument") as problem:
            await thread.sync([reading], heard.append)
        assert problem.value.errno == errno.EINVAL
        assert heard == [problem.value]
        with pytest.raises(OSError, match="Bad file descriptor"):
            await thread.sync([1 << 20], ignore)
        os.close(reading)
        os.close(writing)
        thread.close()

    asyncio.run(story())


@compiled
def test_what_goes_wrong_when_it_is_told_is_raised_where_somebody_waits(tmp_path: Path) -> None:
    def fail(_: OSError | None) -> None:
        raise ValueError("what follows a sync is broken")

    async def story() -> None:
        thread = SyncThread()
        file = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
        with pytest.raises(ValueError, match="is broken"):
            await thread.sync([file], fail)
        await thread.sync([file], ignore)
        thread.close()
        os.close(file)

    asyncio.run(story())


@compiled
def test_the_loops_own_thread_can_wait_for_it(tmp_path: Path) -> None:
    async def story() -> None:
        thread, heard = SyncThread(), []
        file = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
        done = thread.sync([file], heard.append)
        thread.finish()
        assert done.done()
        assert heard == [None]
        thread.finish()  # nothing is under way
        await thread.sync([file], ignore)
        thread.close()
        os.close(file)

    asyncio.run(story())
