"""The keys that changed since a token."""

from __future__ import annotations

import pytest

from pyromq.store.tables import change_log
from pyromq.store.tables.change_log import ChangeLog


def test_a_token_stands_for_the_changes_after_it() -> None:
    log: ChangeLog[str] = ChangeLog()
    first = log.token
    log.note("a")
    log.note("b")
    second = log.token
    log.note("a")
    assert log.since(first) == ["a", "b"]
    assert log.since(second) == ["a"]
    assert log.since(log.token) == []


def test_other_tokens_are_unknown() -> None:
    log: ChangeLog[str] = ChangeLog()
    for token in (None, "", "x", f"{ChangeLog[str]().token}", f"{log.token}x", log.token.partition(":")[0]):
        assert log.since(token) is None


def test_too_many_keys_begin_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_log, "MOST_KEYS", 3)
    log: ChangeLog[int] = ChangeLog()
    token = log.token
    for key in range(4):
        log.note(key)
    assert log.since(token) is None
    assert log.since(log.token) == []
