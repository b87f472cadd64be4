"""Positions with the log ends they depend on: the newest that a log supports, however often it was truncated."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyromq.errors import WrongShape
from pyromq.store.tables.log_history import FIELD, MOST, Entry, LogHistory, from_document, to_json


def test_a_log_supports_the_entries_up_to_its_end() -> None:
    history = LogHistory()
    history.note(100, {"1": 1})
    history.note(200, {"1": 2})
    assert history.within(99) is None
    assert history.within(199) == Entry(100, {"1": 1})
    assert history.within(200) == Entry(200, {"1": 2})
    history.cut(150)
    assert history.newest == Entry(100, {"1": 1})


def test_equal_positions_keep_the_smaller_log_end() -> None:
    history = LogHistory()
    history.note(100, {"1": 1})
    history.note(200, {"1": 1})
    assert history.entries == [Entry(100, {"1": 1})]


def test_a_shorter_log_leaves_nothing_of_the_one_that_was_truncated() -> None:
    history = LogHistory([Entry(100, {"1": 1}), Entry(200, {"1": 2})])
    history.note(150, {"1": 5})
    assert history.entries == [Entry(100, {"1": 1}), Entry(150, {"1": 5})]


@given(st.integers(1, 3000))
def test_old_entries_are_thinned_out_and_reach_far_back(count: int) -> None:
    history = LogHistory()
    for number in range(1, count + 1):
        history.note(number * 10, {"1": number})
    assert len(history.entries) <= MOST
    assert history.entries[0] == Entry(10, {"1": 1})
    for lost in (1, 5, 50, 500):
        if lost < count:
            found = history.within((count - lost) * 10)
            assert found is not None
            assert count - found.end // 10 <= 4 * lost, "not much more is forgotten than was cut"


def test_it_survives_a_file_and_damage_is_noticed() -> None:
    history = LogHistory([Entry(100, {"1": 1}), Entry(200, {"1": 2})])
    assert from_document({FIELD: to_json(history)}).entries == history.entries
    assert from_document({}).entries == []
    for wrong in ({}, [1], [{"end": -1, "offsets": {}}], [{"end": 1}], [{"end": 2, "offsets": {}}] * 2):
        with pytest.raises(WrongShape):
            from_document({FIELD: wrong})
