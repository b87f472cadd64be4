"""Everything that may happen to two or three brokers, drawn from seeds: promises hold, planted mistakes are found."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyromq.model.message import Draft
from pyromq.store.message_store import MessageStore
from pyromq.testing.sim.replica_node import Planted
from pyromq.testing.sim.replication import run_seed
from replication.pairs import config

SEEDS = int(os.environ.get("PYROMQ_REPLICATION_SEEDS", "200"))
#: A planted mistake is found within this many seeds.
MOST_SEEDS = 1_000
#: A seed of two nodes in which a log is begun again: few have that.
START_OVER_SEED = 1379
#: Few stories show these: they are looked at first, and all the others if they no longer do.
SHOWN_BY = {
    2: {
        Planted.NO_EPOCH_AT_RESTART: 673, Planted.LEAD_OVER_A_LOST_END: 46, Planted.LEAD_UNFLUSHED: 243,
        Planted.THROW_AWAY: START_OVER_SEED, Planted.PROMOTE_WITHOUT_ASKING: 228,
    },
    3: {Planted.NO_EPOCH_AT_RESTART: 167, Planted.LEAD_OVER_A_LOST_END: 42, Planted.LEAD_UNFLUSHED: 277},
}  # fmt: skip


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """The stores have much to say about what is done to them."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("size", [2, 3])
def test_the_promises_hold(size: int) -> None:
    happened = set()
    for seed in (*range(SEEDS), START_OVER_SEED):
        happened |= {
            word
            for line in run_seed(seed, size=size).trace
            for word in ("CutBack", "StartOver", "promoted", "power")
            if word in line
        }
    assert happened == {"CutBack", "StartOver", "promoted", "power"}


def test_the_same_seed_is_the_same_story() -> None:
    for seed in range(5):
        assert run_seed(seed).digest == run_seed(seed).digest
        assert run_seed(seed, size=3).digest == run_seed(seed, size=3).digest


@pytest.mark.parametrize("planted", list(Planted), ids=lambda planted: planted.name.lower())
@pytest.mark.parametrize("size", [2, 3])
def test_a_planted_mistake_is_found(planted: Planted, size: int) -> None:
    for seed in (SHOWN_BY[size].get(planted, 0), *range(MOST_SEEDS)):
        try:
            run_seed(seed, planted, size=size)
        except AssertionError:
            return
    raise AssertionError(f"{planted.name} was not found in {MOST_SEEDS} seeds")


def test_what_two_cuts_at_one_place_took_is_both_kept(tmp_path: Path) -> None:
    kept = []
    for body in (b"first", b"other"):
        with MessageStore(config(tmp_path)) as store:
            store.append([Draft(b"t", 0, b"common")])
            end = store.log.end if not kept else kept[0]
            kept.append(end)
            store.append([Draft(b"t", 0, body)])
        with contextlib.closing(MessageStore(config(tmp_path))) as store:
            store.open(truncate_at=kept[0])
    texts = [path.read_bytes() for path in (tmp_path / "cutoff").iterdir()]
    assert any(b"first" in text for text in texts)
    assert any(b"other" in text for text in texts)
