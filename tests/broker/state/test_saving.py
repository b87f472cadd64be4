"""Tables on their way to the disk: who waits for them hears the truth, and one save serves all who wait."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import threading
from pathlib import Path

import pytest

from pyromq.broker.state import saving
from pyromq.broker.state.saved_topics import SavedTopics
from pyromq.broker.state.saving import Saver
from pyromq.clock import ManualClock
from pyromq.errors import NotNow
from pyromq.model.topic import TopicConfig
from pyromq.store.tables.config_files import TopicTable
from pyromq.testing import SimDisk


class Table:
    """Counts its saves; the test decides when one may end, and how."""

    def __init__(self) -> None:
        self.saves = 0
        self.began = threading.Event()
        self.may_end = threading.Event()
        self.may_end.set()
        self.full = False

    def save(self) -> bool:
        self.saves += 1
        self.began.set()
        assert self.may_end.wait(10)
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return True


def test_a_change_is_saved_soon() -> None:
    async def story() -> None:
        table = Table()
        saver = Saver(table)
        running = asyncio.ensure_future(saver.run())
        assert saver.is_saved
        saver.changed()
        assert not saver.is_saved
        await saver.saved()
        assert saver.is_saved
        running.cancel()
        assert table.saves >= 1

    asyncio.run(story())


def test_all_who_wait_share_a_save() -> None:
    """The first save may have begun before the change: then one more is needed, and one is enough."""

    async def story() -> None:
        table = Table()
        saver = Saver(table)
        saver.changed()
        table.may_end.clear()
        first = asyncio.ensure_future(saver.saved())
        await asyncio.to_thread(table.began.wait)
        others = []
        for _ in range(50):
            saver.changed()
            others.append(asyncio.ensure_future(saver.saved()))
        await asyncio.sleep(0)
        assert not first.done()
        table.may_end.set()
        await asyncio.gather(first, *others)
        assert table.saves == 2

    asyncio.run(story())


def test_nobody_waits_when_nothing_changed() -> None:
    async def story() -> None:
        table = Table()
        await Saver(table).saved()
        assert table.saves == 0

    asyncio.run(story())


def test_a_disk_that_does_not_take_it_is_told_and_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(saving, "RETRY_SECONDS", 0.001)

    async def story() -> None:
        table = Table()
        table.full = True
        saver = Saver(table)
        saver.changed()
        for _ in range(3):
            with pytest.raises(NotNow, match=r"cannot be written now.*No space"):
                await saver.saved()
        assert not saver.is_saved
        running = asyncio.ensure_future(saver.run())
        is_saved = asyncio.Event()
        saver.on_save = lambda: is_saved.set
        table.full = False
        await is_saved.wait()
        assert saver.is_saved
        running.cancel()

    with caplog.at_level(logging.INFO, "pyromq.broker"):
        asyncio.run(story())
    assert [record.levelname for record in caplog.records] == ["ERROR", "INFO"]


def test_a_topic_counts_as_saved_when_it_is_on_the_disk_as_it_is() -> None:
    clock = ManualClock()
    table = TopicTable(SimDisk(clock), Path("/store/config"), clock)
    table.load()
    table.put(TopicConfig("old", 4, 4))
    table.save()
    told: list[list[str]] = []
    saved = SavedTopics(table, lambda: told.append(sorted(topic.name for topic in saved)))
    assert "old" in saved
    table.put(TopicConfig("new", 4, 4))
    table.put(TopicConfig("old", 8, 8))
    assert "new" not in saved
    assert "old" not in saved, "its settings are others now"
    assert "unknown" not in saved
    done = saved.saving()
    table.put(TopicConfig("late", 4, 4))
    done()
    assert told == [["new", "old"]]
    assert "late" not in saved, "it came when the others were on their way"
    saved.saving()()
    saved.saving()()
    assert told == [["new", "old"], ["late", "new", "old"]], "nobody is told of nothing"
    table.remove("old")
    assert "old" not in saved
