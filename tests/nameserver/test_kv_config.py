"""Key-value settings: in memory, in RocketMQ's file, and within bounds."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from pyromq.errors import BadRequest, CorruptFile, StoreError, SystemBusy
from pyromq.files.disk import OsDisk
from pyromq.nameserver import kv_config
from pyromq.nameserver.kv_config import ORDER_TOPICS, KvConfig


def test_put_get_list_delete() -> None:
    kv = KvConfig()
    kv.put(ORDER_TOPICS, "orders", "broker-a:4")
    kv.put(ORDER_TOPICS, "orders", "broker-a:8")
    assert kv.get(ORDER_TOPICS, "orders") == "broker-a:8"
    assert kv.namespace(ORDER_TOPICS) == {"orders": "broker-a:8"}
    kv.delete(ORDER_TOPICS, "unheard-of")
    kv.delete(ORDER_TOPICS, "orders")
    assert kv.get(ORDER_TOPICS, "orders") is None
    assert kv.namespace(ORDER_TOPICS) is None


def test_without_a_path_saving_is_nothing() -> None:
    asyncio.run(KvConfig().save())


def test_what_is_saved_is_there_after_a_restart_in_rocketmq_s_form(tmp_path: Path) -> None:
    path = tmp_path / "namesrv" / "kvConfig.json"
    kv = KvConfig(path)
    kv.load()
    kv.put("space", "größe", "välue")
    asyncio.run(kv.save())
    assert json.loads(path.read_bytes())["configTable"] == {"space": {"größe": "välue"}}
    again = KvConfig(path)
    again.load()
    assert again.get("space", "größe") == "välue"


def test_a_file_of_rocketmq_is_read_and_what_we_do_not_know_in_it_stays(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    path.write_bytes(b'{"configTable":{"ORDER_TOPIC_CONFIG":{"T":"broker-a:4"}},"later":1}')
    kv = KvConfig(path)
    kv.load()
    assert kv.namespace(ORDER_TOPICS) == {"T": "broker-a:4"}
    kv.put(ORDER_TOPICS, "T2", "broker-a:1")
    asyncio.run(kv.save())
    assert json.loads(path.read_bytes())["later"] == 1


@pytest.mark.parametrize("content", [b"{", b'{"configTable":[]}', b'{"configTable":{"a":{"b":1}}}'])
def test_a_damaged_file_is_not_taken_for_an_empty_one(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "kvConfig.json"
    path.write_bytes(content)
    with pytest.raises(CorruptFile):
        KvConfig(path).load()


class CountingDisk(OsDisk):
    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.writes = 0
        self.full = False

    def replace_bytes(self, path: Path, data: bytes) -> None:
        if self.full:
            raise OSError(28, "No space left on device")
        self.writes += path.suffix == ".json"
        super().replace_bytes(path, data)


def test_changes_that_come_together_share_a_save(tmp_path: Path) -> None:
    disk = CountingDisk(tmp_path)
    kv = KvConfig(tmp_path / "kvConfig.json", disk)

    async def many() -> None:
        async def one(number: int) -> None:
            kv.put("space", f"key{number}", "value")
            await kv.save()

        await asyncio.gather(*map(one, range(50)))

    asyncio.run(many())
    assert 1 <= disk.writes <= 2
    again = KvConfig(tmp_path / "kvConfig.json")
    again.load()
    assert len(again.namespace("space") or {}) == 50


def test_a_full_disk_is_told_and_the_next_save_tries_again(tmp_path: Path) -> None:
    disk = CountingDisk(tmp_path)
    kv = KvConfig(tmp_path / "kvConfig.json", disk)
    kv.put("space", "key", "value")
    disk.full = True
    with pytest.raises(StoreError, match="No space left"):
        asyncio.run(kv.save())
    disk.full = False
    asyncio.run(kv.save())
    assert disk.writes == 1


def test_names_and_amounts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_config, "MAX_KV_CHARS", 20)
    kv = KvConfig()
    with pytest.raises(BadRequest):
        kv.put("", "key", "value")
    with pytest.raises(BadRequest):
        kv.put("space", "k" * 600, "value")
    kv.put("space", "key", "x" * 12)
    with pytest.raises(SystemBusy):
        kv.put("space", "k2", "")
    kv.put("space", "key", "")
    kv.put("space", "k2", "")
    kv.delete("space", "key")
    kv.delete("space", "k2")
    assert kv._chars == 0
