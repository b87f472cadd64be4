"""After a truncation of the log no table speaks of the part that was cut, also not once the log has grown over it."""

from __future__ import annotations

from broker.delivery import test_delays
from broker.delivery.test_delays import draft
from broker.support import numbered_scene, transaction_scene
from broker.support.fakes import Parts
from broker.support.transaction_scene import COMMIT, ROLL_BACK, questions
from pyromq.broker.state.clamping import LogEnds, clamp_tables
from pyromq.broker.state.tables import Tables
from pyromq.store.message_store import InlineRunner, MessageStore


def truncated(parts: Parts, position: int) -> Parts:
    """Start on a log that is cut, let it grow over its old end with other messages, and kill the broker."""
    end = parts.store.marks.appended.value
    parts.close()
    store = MessageStore(parts.config.store, disk=parts.disk, clock=parts.clock, runner=InlineRunner())
    store.open(truncate_at=position)
    assert store.marks.appended.value == position < end
    clamp_tables(LogEnds.of(store), Tables(parts.config, store, parts.clock).log_tables)
    while store.marks.appended.value <= end:
        store.append([draft("another", queue=3)])
    store.flush()
    return Parts(parts.disk.kill(), parts.clock, **parts._arguments)


def test_a_transaction_whose_end_was_cut_is_asked_for_again() -> None:
    scene = transaction_scene.Scene()
    sent = scene.send(key="K1")
    end = scene.parts.store.marks.appended.value
    scene.end(sent, COMMIT)
    scene.round()
    scene.parts.store.flush()
    assert scene.positions() == (1, 1)
    again = transaction_scene.Scene(truncated(scene.parts, end))
    peer = again.connect()
    again.round(120)
    assert [one.message_id for one in questions(peer)] == ["K1"]


def test_transactions_that_ended_below_the_cut_are_not_read_again() -> None:
    scene = transaction_scene.Scene()
    ends = []
    for key in ("K1", "K2"):
        scene.end(scene.send(key=key), ROLL_BACK)
        scene.round()
        scene.parts.store.flush()
        ends.append(scene.parts.store.marks.appended.value)
    assert scene.positions() == (2, 2)
    again = transaction_scene.Scene(truncated(scene.parts, ends[0]))
    assert again.positions() == (1, 1)


def test_a_delayed_message_whose_delivery_was_cut_is_delivered_and_no_other_is() -> None:
    scene = test_delays.Scene()
    scene.send("first", 1)
    scene.wait(1)
    assert scene.deliver() == ["first"]
    scene.confirm()
    scene.send("second", 1)
    end = scene.store.marks.appended.value
    scene.wait(1)
    assert scene.deliver() == ["first", "second"]
    scene.confirm()
    again = test_delays.Scene(truncated(scene.parts, end))
    assert again.offsets.offset_of(1) == 1
    assert again.deliver() == ["first", "second"]


def test_delays_without_a_log_end_that_is_left_begin_with_the_first_message() -> None:
    scene = test_delays.Scene()
    scene.send("first", 1)
    end = scene.store.marks.appended.value
    scene.wait(1)
    assert scene.deliver() == ["first"]
    scene.confirm()
    again = test_delays.Scene(truncated(scene.parts, end))
    assert again.deliver() == ["first"]


def test_numbers_of_writers_that_were_cut_are_no_repeats() -> None:
    scene = numbered_scene.Scene()
    scene.send(0, 0, 5)
    end = scene.parts.store.marks.appended.value
    scene.send(0, 5, 5)
    scene = scene.restarted()
    again = numbered_scene.Scene(truncated(scene.parts, end))
    answer = again.send(0, 3, 5)
    assert answer.more["repeated"] == "2"
    assert again.stored() == numbered_scene.numbers(0, 0, 8)
