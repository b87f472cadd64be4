"""Consumer groups, as admin tools make, change, list and remove them."""

from __future__ import annotations

import logging

import orjson
import pytest

from broker.support.admin_parts import AdminParts
from pyromq.errors import BadRequest, GroupNotFound
from pyromq.model.ids import QueueId
from pyromq.wire.requests import admin as ask

#: As `mqadmin updateSubGroup` sends it.
SHOP = {
    "attributes": {}, "brokerId": 0, "consumeBroadcastEnable": True, "consumeEnable": True,
    "consumeFromMinEnable": True, "consumeMessageOrderly": False, "consumeTimeoutMinute": 15,
    "groupName": "shop", "groupRetryPolicy": {"type": "CUSTOMIZED"}, "groupSysFlag": 0,
    "notifyConsumerIdsChangedEnable": True, "retryMaxTimes": 3, "retryQueueNums": 2,
    "whichBrokerWhenConsumeSlowly": 1,
}  # fmt: skip


def update(**changes: object) -> ask.UpdateGroup:
    return ask.UpdateGroup(body=orjson.dumps({**SHOP, **changes}))


def test_a_group_is_made_changed_and_told() -> None:
    parts = AdminParts()
    assert parts.ask(update()).code == 0
    assert parts.told(ask.GetGroup(group="shop")) == SHOP
    changes = parts.changes
    assert parts.ask(update()).code == 0
    assert parts.changes == changes, "nothing new"
    parts.ask(update(consumeEnable=False, attributes={"+colour": "red"}))
    parts.ask(update(attributes={"+size": "9"}))
    assert parts.groups.require("shop").attributes == {"colour": "red", "size": "9"}
    parts.ask(update(attributes={"-colour": ""}))
    assert parts.groups.require("shop").attributes == {"size": "9"}
    assert parts.ask(ask.GetGroup(group="none")).code == GroupNotFound.code


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b'{"groupName": ""}', b'{"groupName": "a b"}', b'{"groupName": "g", "retryQueueNums": 5000}',
     b'{"groupName": "g", "attributes": {"colour": "red"}}', b'{"groupName": "g", "retryMaxTimes": "many"}'],
)  # fmt: skip
def test_a_group_that_cannot_be_is_refused(body: bytes) -> None:
    parts = AdminParts()
    assert parts.ask(ask.UpdateGroup(body=body)).code == BadRequest.code
    assert len(parts.group_table) == 0


def test_of_a_list_all_groups_are_made_or_none() -> None:
    parts = AdminParts()
    bad = ask.UpdateGroupList(body=orjson.dumps({"groupConfigList": [SHOP, {"groupName": "?"}]}))
    assert parts.ask(bad).code == BadRequest.code
    assert len(parts.group_table) == 0
    good = ask.UpdateGroupList(body=orjson.dumps({"groupConfigList": [SHOP, {"groupName": "g"}]}))
    assert parts.ask(good).code == 0
    assert {group.name for group in parts.groups} == {"shop", "g"}


def test_all_groups_at_once_and_in_pages() -> None:
    parts = AdminParts()
    for number in range(4):
        parts.make_group(f"g{number}")
    parts.ask(ask.UpdateForbidden(group="g1", topic="orders", readable=False))
    everything = parts.told(ask.GetAllGroups())
    assert list(everything["subscriptionGroupTable"]) == ["g0", "g1", "g2", "g3"]
    assert everything["forbiddenTable"] == {"g1": {"orders": 4}}
    version = orjson.dumps(everything["dataVersion"]).decode()
    answer = parts.ask(ask.GetAllGroups(first=2, most=5, version=version))
    assert isinstance(answer, ask.AllGroupsAnswer)
    assert answer.total == 4
    page = orjson.loads(bytes(answer.body))  # type: ignore[arg-type]
    assert list(page["subscriptionGroupTable"]) == ["g2", "g3"]
    assert page["forbiddenTable"] == {}


def test_a_removed_group_keeps_its_offsets_unless_they_are_to_go(caplog: pytest.LogCaptureFixture) -> None:
    parts = AdminParts()
    parts.make_group()
    parts.offsets.commit("shop", "orders", 0, 5)
    queue = QueueId("orders", 0)
    parts.locks.lock("shop", queue, "old", 0, 1000)
    with caplog.at_level(logging.WARNING):
        assert parts.ask(ask.DeleteGroup(group="shop")).code == 0
    assert "10.9.8.7:5555 removed the group 'shop' (known, its offsets stay)" in caplog.text
    assert parts.groups.get("shop") is None
    assert parts.offsets.offset_of("shop", "orders", 0) == 5
    assert parts.locks.lock("shop", queue, "new", 1, 1000)
    parts.ask(ask.DeleteGroup(group="shop", clean_offsets=True))
    assert parts.offsets.offset_of("shop", "orders", 0) is None


def test_groups_of_the_broker_itself_stay() -> None:
    parts = AdminParts()
    parts.groups.add_system_groups()
    assert parts.ask(ask.DeleteGroup(group="TOOLS_CONSUMER", clean_offsets=True)).code == BadRequest.code
    assert parts.groups.get("TOOLS_CONSUMER") is not None


def test_a_group_may_be_kept_from_a_topic_and_that_survives_a_restart() -> None:
    parts = AdminParts()
    parts.make_group()
    told = parts.told(ask.UpdateForbidden(group="shop", topic="orders"))
    assert told == {"group": "shop", "topic": "orders", "readable": True}
    changes = parts.changes
    assert parts.told(ask.UpdateForbidden(group="shop", topic="orders", readable=False))["readable"] is False
    assert parts.changes > changes
    parts = _restarted(parts)
    assert parts.group_table.forbidden == {"shop": {"orders": 4}}
    assert parts.told(ask.UpdateForbidden(group="shop", topic="orders", readable=True))["readable"] is True
    assert parts.group_table.forbidden == {}
    assert parts.ask(ask.UpdateForbidden(group="none", topic="orders", readable=False)).code == GroupNotFound.code


def _restarted(parts: AdminParts) -> AdminParts:
    parts.close()
    return AdminParts(parts.disk, parts.clock)
