"""Progress that was told to a slave is not lost, and never takes a group back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pyromq.replication.progress_merge import Merged, Place, merge

HERE, THERE = Place("orders", "billing", 0), Place("orders", "billing", 1)
TABLES = st.dictionaries(st.sampled_from([HERE, THERE]), st.integers(0, 9))


def test_a_slave_believes_its_master() -> None:
    assert merge({HERE: 7}, {HERE: 5}, taken={HERE: 5}) == Merged({HERE: 7}, {})


def test_what_was_told_while_the_master_was_gone_flows_back() -> None:
    assert merge({HERE: 5}, {HERE: 9, THERE: 3}, taken={HERE: 5}) == Merged({HERE: 9, THERE: 3}, {HERE: 9, THERE: 3})


def test_a_master_that_knows_more_is_told_nothing() -> None:
    assert merge({HERE: 12}, {HERE: 9}, taken={HERE: 5}) == Merged({HERE: 12}, {})


def test_what_was_set_back_on_purpose_stays_back() -> None:
    assert merge({HERE: 2}, {HERE: 9}, taken={HERE: 9}) == Merged({HERE: 2}, {})


@given(TABLES, TABLES, TABLES)
def test_the_master_is_never_told_less_than_it_knows(
    master: dict[Place, int], slave: dict[Place, int], taken: dict[Place, int]
) -> None:
    merged = merge(master, slave, taken)
    assert all(offset > master.get(place, -1) for place, offset in merged.to_tell.items())
    assert merged.offsets == {**master, **merged.to_tell}
