"""Which settings let a promotion lose acknowledged messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pyromq.config import BrokerConfig, ReplicationConfig, StoreConfig
from pyromq.config.static_roles import unsafe_acknowledgements

TWO_OTHERS = ("1@10.0.0.2:10911", "2@10.0.0.3:10911")


def config(role: str = "SYNC_MASTER", **replication: Any) -> BrokerConfig:
    return BrokerConfig(
        role=role, broker_id=0 if role != "SLAVE" else 1, replication=ReplicationConfig(**replication),
        store=StoreConfig(root=Path("store")),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "known", "waits_for", "brokers"),
    [
        ({"total": 3}, 1, 2, 3),
        ({"total": 3, "all_in_sync": True}, 1, 2, 3),
        ({"members": TWO_OTHERS}, 1, 2, 3),
        ({"members": TWO_OTHERS, "copies": 2, "min_in_sync": 2}, 1, 2, 3),
        ({}, 3, 2, 3),
        ({"copies": 3}, 4, 3, 4),
        ({"copies": 1}, 1, 1, 2),
        ({"adapts": True}, 2, 1, 2),
        ({"adapts": True, "copies": 3, "min_in_sync": 2}, 3, 2, 3),
    ],
)
def test_fewer_copies_than_brokers_are_unsafe(settings: Any, known: int, waits_for: int, brokers: int) -> None:
    sentence = unsafe_acknowledgements(config(**settings), known)
    assert sentence is not None
    assert f"what {waits_for} of {brokers} brokers have" in sentence
    assert f"replication.copies (inSyncReplicas) = {brokers}" in sentence
    assert ("without replication.adapts" in sentence) == settings.get("adapts", False)


@pytest.mark.parametrize(
    ("settings", "known"),
    [
        ({}, 1), ({}, 2), ({"total": 2}, 2), ({"total": 3, "copies": 3}, 3), ({"members": TWO_OTHERS, "copies": 3}, 3),
        ({"adapts": True, "copies": 2, "min_in_sync": 2}, 2), ({"min_in_sync": 3}, 3),
        ({"role": "ASYNC_MASTER", "total": 3}, 3), ({"role": "SLAVE", "total": 3}, 3),
    ],
)  # fmt: skip
def test_all_copies_or_no_promise_of_copies_are_safe(settings: Any, known: int) -> None:
    assert unsafe_acknowledgements(config(**settings), known) is None
