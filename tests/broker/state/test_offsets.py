"""Progress of groups: it moves where consumers say, and never to where it cannot be."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from broker.support.fakes import Parts
from pyromq.broker.state.offsets import Progress, near_bytes
from pyromq.errors import IllegalOffset
from pyromq.model.message import Draft


@pytest.fixture
def parts() -> Iterator[Parts]:
    parts = Parts()
    parts.store.append([Draft(b"orders", 0, b"x") for _ in range(10)])
    parts.store.dispatch()
    yield parts
    parts.close()


def test_a_group_moves_forward_and_goes_back_on_purpose(parts: Parts, caplog: pytest.LogCaptureFixture) -> None:
    progress = Progress(parts.offsets, parts.store)
    assert progress.offset_of("g", "orders", 0) is None
    progress.commit("g", "orders", 0, 7)
    progress.commit("g", "orders", 0, 7)
    assert caplog.messages == []
    progress.commit("g", "orders", 0, 3)
    assert progress.offset_of("g", "orders", 0) == 3
    assert "from 7 to 3" in caplog.text
    progress.commit("g", "orders", 0, 10)
    assert progress.offset_of("g", "orders", 0) == 10, "the end of the queue: everything is consumed"


def test_what_comes_along_with_a_pull_never_goes_back(parts: Parts) -> None:
    progress = Progress(parts.offsets, parts.store)
    progress.advance("g", "orders", 0, 7)
    progress.advance("g", "orders", 0, 3)  # of a reader that has lost the queue and does not know it yet
    assert progress.offset_of("g", "orders", 0) == 7
    progress.advance("g", "orders", 0, 9)
    assert progress.offset_of("g", "orders", 0) == 9
    for impossible in (-1, 11):
        with pytest.raises(IllegalOffset):
            progress.advance("g", "orders", 0, impossible)


@pytest.mark.parametrize("offset", [-1, -(2**63), 11, 2**63 - 1])
@pytest.mark.parametrize("known", [None, 0, 5])
def test_an_offset_that_cannot_be_changes_nothing(parts: Parts, offset: int, known: int | None) -> None:
    progress = Progress(parts.offsets, parts.store)
    if known is not None:
        progress.commit("g", "orders", 0, known)
    with pytest.raises(IllegalOffset):
        progress.commit("g", "orders", 0, offset)
    assert progress.offset_of("g", "orders", 0) == known


@pytest.mark.parametrize(("topic", "queue", "group"), [("a@b", 0, "g"), ("orders", -1, "g"), ("orders", 0, "")])
def test_names_that_cannot_be_kept_are_refused(parts: Parts, topic: str, queue: int, group: str) -> None:
    with pytest.raises(IllegalOffset):
        Progress(parts.offsets, parts.store).commit(group, topic, queue, 0)


def test_a_new_group_begins_at_the_first_message_while_that_is_near(parts: Parts) -> None:
    progress = Progress(parts.offsets, parts.store)
    assert progress.start_of("orders", 0) == 0
    assert progress.start_of("orders", 1) is None, "nobody knows such a queue"
    assert Progress(parts.offsets, parts.store, near=10).start_of("orders", 0) is None, "too much to go through"
    queue = parts.store.queues.get(b"orders", 0)
    assert queue is not None
    queue.min_offset = 2
    assert progress.start_of("orders", 0) is None, "the first message is gone"


def test_near_is_a_share_of_this_machine() -> None:
    assert 100 << 20 < near_bytes() < 1 << 50
