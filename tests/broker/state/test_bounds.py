"""Tables that clients can fill have limits: an excess is refused with a sentence, and nothing changes."""

from __future__ import annotations

import orjson
import pytest

from broker.support.admin_parts import AdminParts
from pyromq.broker import bounds
from pyromq.broker.bounds import MAX_EXTRA_BYTES, OffsetCount, extra_bytes
from pyromq.errors import SystemBusy
from pyromq.model.group import GroupConfig
from pyromq.wire.codes import ResponseCode
from pyromq.wire.requests import admin as ask
from pyromq.wire.responses import Response


def update(parts: AdminParts, name: str = "shop", **more: object) -> Response:
    return parts.ask(ask.UpdateGroup(body=orjson.dumps({"groupName": name, **more})))


LARGE = "x" * (MAX_EXTRA_BYTES + 1)


@pytest.mark.parametrize(
    "more",
    [
        {"newField": LARGE},
        {"attributes": {"+note": LARGE}},
        {"groupRetryPolicy": {"type": "CUSTOMIZED", "more": LARGE}},
        {"subscriptionDataSet": [{"topic": LARGE}]},
        {f"field{number}": number for number in range(2000)},
    ],
    ids=["unknown", "attributes", "policy", "subscriptions", "many"],
)
def test_what_is_kept_of_a_group_as_it_came_is_bounded(more: dict[str, object]) -> None:
    parts = AdminParts()
    answer = update(parts, **more)
    assert answer.code != ResponseCode.SUCCESS
    assert f"{MAX_EXTRA_BYTES} are the limit" in (answer.reason or "")
    assert parts.groups.get("shop") is None


def test_fields_of_a_newer_rocketmq_are_kept() -> None:
    parts = AdminParts()
    assert update(parts, liteBindTopic="orders", attributes={"+a": "b"}).code == ResponseCode.SUCCESS
    group = parts.groups.get("shop")
    assert group is not None
    assert group.unknown == {"liteBindTopic": "orders"}
    assert extra_bytes(GroupConfig("usual")) == 0


def test_attributes_that_are_added_one_by_one_are_counted_together() -> None:
    parts = AdminParts()
    codes = [update(parts, attributes={f"+note{number}": "x" * 6000}).code for number in range(3)]
    assert codes == [ResponseCode.SUCCESS, ResponseCode.SUCCESS, ResponseCode.INVALID_PARAMETER]


def test_all_groups_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "MAX_EXTRA_BYTES_IN_ALL", 2500)
    parts = AdminParts()
    codes = [update(parts, f"g{number}", note="x" * 1000).code for number in range(4)]
    assert codes == [ResponseCode.SUCCESS] * 2 + [ResponseCode.SYSTEM_BUSY] * 2
    assert update(parts, "g0", note="y" * 1000).code == ResponseCode.SUCCESS, "one that is known may change"
    assert update(parts, "plain").code == ResponseCode.SUCCESS
    body = orjson.dumps({"groupConfigList": [{"groupName": "g8"}, {"groupName": "g9", "note": "x" * 1000}]})
    assert parts.ask(ask.UpdateGroupList(body=body)).code == ResponseCode.SYSTEM_BUSY
    assert parts.groups.get("g8") is None, "all of them or none"


def test_topics_that_a_group_may_not_read_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyromq.broker.requests.admin.groups.MAX_FORBIDDEN", 2)
    parts = AdminParts()
    parts.make_group()

    def forbid(topic: str) -> int:
        return parts.ask(ask.UpdateForbidden(group="shop", topic=topic, readable=False)).code

    assert [forbid(topic) for topic in ("a", "b", "c", "a")] == [0, 0, ResponseCode.SYSTEM_BUSY, 0]
    assert forbid("x" * 1000) == ResponseCode.INVALID_PARAMETER, "no topic has such a name"


def test_offsets_are_counted_again_before_one_is_refused() -> None:
    parts = AdminParts()
    parts.make_topic("orders", 4)
    count = OffsetCount(parts.offsets, limit=3)
    for number in range(3):
        count.add()
        parts.offsets.commit("shop", "orders", number, 0)
    with pytest.raises(SystemBusy, match="3 offsets"):
        count.add()
    parts.offsets.forget_group("shop")
    count.add()


def test_progress_of_more_groups_than_fit_is_refused_and_what_is_known_moves_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parts = AdminParts()
    parts.make_topic("orders", 2)
    parts.send(2)
    monkeypatch.setattr(parts.progress, "_count", OffsetCount(parts.offsets, limit=1))
    parts.progress.commit("shop", "orders", 0, 1)
    with pytest.raises(SystemBusy):
        parts.progress.commit("other", "orders", 0, 1)
    parts.progress.commit("shop", "orders", 0, 2)
    with pytest.raises(SystemBusy):
        parts.progress.set("shop", "orders", 1, 0)
    parts.make_group("other")
    assert parts.ask(ask.CloneOffsets(source="shop", target="other", topic="orders", offline=True)).code != 0
    assert parts.offsets.count() == 1
