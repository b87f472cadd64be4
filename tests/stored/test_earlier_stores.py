"""Stores written by an earlier version are opened and hold what they held.

`stores.tar.xz` was made once by `make_stores.py`; `manifest.json` in it lists the content. It does not change with the
code.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from pyromq.store.offline.verify import verify
from pyromq.sync import Admin, PullConsumer
from pyromq.testing import broker
from stored.describe import SIZES, config_of, describe

HERE = Path(__file__).parent
with tarfile.open(HERE / "stores.tar.xz") as _archive:
    MANIFEST: dict[str, Any] = json.load(_archive.extractfile("manifest.json"))  # type: ignore[arg-type]
STORES: dict[str, dict[str, Any]] = MANIFEST["stores"]


def unpack(name: str, home: Path) -> Path:
    with tarfile.open(HERE / "stores.tar.xz") as archive:
        members = [one for one in archive.getmembers() if one.name.split("/")[0] == name]
        archive.extractall(home, members, filter="data")
    return home / name


@pytest.mark.parametrize("name", STORES)
def test_a_store_holds_every_message_key_and_table_that_it_held(name: str, tmp_path: Path) -> None:
    root = unpack(name, tmp_path)
    found = json.loads(json.dumps(describe(root, MANIFEST["now_ms"])))
    for part, expected in STORES[name].items():
        assert found[part] == expected, part
    assert found.keys() == STORES[name].keys()


@pytest.mark.parametrize("name", STORES)
def test_a_store_holds_the_same_after_a_second_start(name: str, tmp_path: Path) -> None:
    root = unpack(name, tmp_path)
    describe(root, MANIFEST["now_ms"])
    found = json.loads(json.dumps(describe(root, MANIFEST["now_ms"])))
    expected = STORES[name] | {"clean": True, "checkpoint": found["checkpoint"]}
    assert found == expected


@pytest.mark.parametrize("name", STORES)
def test_a_store_is_found_intact(name: str, tmp_path: Path) -> None:
    root = unpack(name, tmp_path)
    report = verify(root, config=config_of(root))
    assert report.ok, report.findings


@pytest.mark.parametrize("name", ["stopped", "killed"])
def test_a_broker_serves_the_store(name: str, tmp_path: Path) -> None:
    unpack(name, tmp_path).rename(tmp_path / "store")
    expected = STORES[name]
    settings = {f"store.{setting}": value for setting, value in SIZES.items()}
    settings |= {"store.retention.max_age_hours": 1_000_000}
    with broker(data_dir=tmp_path, config=settings) as mq, Admin(mq.name_servers) as admin:
        for topic in ("orders", "fifo"):
            for queue in admin.messages.queues(topic):
                messages = expected["queues"].get(f"{topic}/{queue.queue_id}", [])
                first, end = admin.messages.bounds(queue)
                assert (first, end) == (0, len(messages))
                bodies = [one.properties.get("number") for one in admin.messages.read(queue, first, end)]
                assert bodies == [one[4].get("number") for one in messages]
        with PullConsumer(mq.name_servers, group="readers") as consumer:
            offsets = {str(one.queue_id): consumer.committed(one) for one in consumer.queues("orders")}
        assert offsets == expected["tables"]["offsets"]["orders@readers"]
        (found,) = admin.messages.by_key("orders", "order-7")
        assert found.body == b"order 7" * 8
