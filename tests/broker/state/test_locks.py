"""Queue locks: one client at a time, for as long as it renews."""

from __future__ import annotations

from pyromq.broker.state.locks import QueueLocks
from pyromq.model.ids import QueueId

QUEUE = QueueId("orders", 0)
EXPIRY_MS = 60_000


def test_a_queue_is_locked_by_one_client_until_it_gives_it_back() -> None:
    locks = QueueLocks()
    assert locks.lock("g", QUEUE, "c1", 0, EXPIRY_MS)
    assert not locks.lock("g", QUEUE, "c2", 1, EXPIRY_MS)
    assert locks.lock("other", QUEUE, "c2", 1, EXPIRY_MS), "each group has its own locks"
    locks.unlock("g", QUEUE, "c2")
    assert locks.holder("g", QUEUE) == "c1", "somebody else cannot give it back"
    locks.unlock("g", QUEUE, "c1")
    assert locks.lock("g", QUEUE, "c2", 2, EXPIRY_MS)


def test_a_lock_that_is_renewed_lasts_and_one_that_is_not_runs_out() -> None:
    locks = QueueLocks()
    locks.lock("g", QUEUE, "c1", 0, EXPIRY_MS)
    assert locks.lock("g", QUEUE, "c1", 50_000, EXPIRY_MS)
    assert not locks.lock("g", QUEUE, "c2", 110_000, EXPIRY_MS), "exactly as long as it may last"
    assert locks.lock("g", QUEUE, "c2", 110_001, EXPIRY_MS)
    assert not locks.lock("g", QUEUE, "c1", 110_002, EXPIRY_MS)


def test_what_ran_out_takes_no_room() -> None:
    locks = QueueLocks()
    for number in range(100):
        locks.lock(f"g{number}", QUEUE, "c1", number, 50)
    locks.forget_expired(100, 50)
    assert len(locks) == 50
    locks.forget_group("g99")
    assert locks.holder("g99", QUEUE) is None
    locks.forget_expired(1000, 50)
    assert len(locks) == 0
    locks.unlock("g1", QUEUE, "c1")


def test_a_group_with_a_lock_consumes_in_order() -> None:
    locks = QueueLocks()
    assert not locks.is_held("g", 0, EXPIRY_MS)
    locks.lock("g", QUEUE, "c1", 0, EXPIRY_MS)
    assert locks.is_held("g", EXPIRY_MS, EXPIRY_MS)
    assert not locks.is_held("g", EXPIRY_MS + 1, EXPIRY_MS)
