"""Two brokers that lead one after the other, drawn from seeds: no log is cut without a decision."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest

from pyromq.testing.sim import forks
from pyromq.testing.sim.forks import run_fork

SEEDS = 100


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """The stores have much to say about what is done to them."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def run_seeds() -> set[str]:
    return {word for seed in range(SEEDS) for word in run_fork(seed).trace if word in ("held", "goes on")}


def test_no_log_is_cut_before_an_operator_decides() -> None:
    assert run_seeds() == {"held", "goes on"}
    assert run_fork(3).digest == run_fork(3).digest


@pytest.mark.parametrize(
    ("function", "mistake"),
    [
        ("fork_that_holds", lambda *_: None),  # the newer epoch begins over a leader that has more
        ("own_bytes", lambda *_: 0),  # an old master is cut for every newer epoch
        ("lives_given_up", lambda *_: ()),  # a decision is not told to the broker whose log is given up
    ],
)
def test_a_planted_mistake_is_found(
    monkeypatch: pytest.MonkeyPatch, function: str, mistake: Callable[..., object]
) -> None:
    monkeypatch.setattr(forks, function, mistake)
    with pytest.raises(AssertionError):
        run_seeds()
