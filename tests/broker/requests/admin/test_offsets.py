"""The offsets of groups, as admin tools see them; and resets back and forth."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.support.admin_parts import ADDRESS, AdminParts, pairs
from pyromq.broker.state.resets import Resets
from pyromq.errors import BadRequest, GroupNotFound, TopicNotFound
from pyromq.model.json_form import INT64_MAX
from pyromq.wire.requests import admin as ask


def used() -> AdminParts:
    """Ten messages, a second apart, in each of two queues; a group that has done some of them."""
    parts = AdminParts()
    parts.make_topic()
    parts.make_group()
    for queue in (0, 1):
        parts.send(10, queue=queue)
    parts.offsets.commit("shop", "orders", 0, 4)
    parts.offsets.commit("shop", "orders", 1, 10)
    return parts


def offsets_of(parts: AdminParts, group: str = "shop") -> dict[int, int]:
    return dict(parts.offsets.offsets_of(group, "orders"))


# --- how far ---------------------------------------------------------------------------------------------------------


def test_consume_stats_say_how_far_a_group_is() -> None:
    parts = used()
    start_ms = parts.time.now_ms() - 20_000
    parts.statistics.got("shop", "orders", 60, 600)
    told = parts.told(ask.GetConsumeStats(group="shop"))
    assert told["consumeTps"] == 60 / 10
    assert pairs(told["offsetTable"]) == {
        0: {"brokerOffset": 10, "consumerOffset": 4, "pullOffset": 4, "lastTimestamp": start_ms + 3000},
        1: {"brokerOffset": 10, "consumerOffset": 10, "pullOffset": 10, "lastTimestamp": start_ms + 19_000},
    }


def test_consume_stats_of_a_group_at_work_are_of_what_it_subscribes_to() -> None:
    parts = used()
    parts.make_topic("returns", 1)
    parts.offsets.commit("shop", "returns", 0, 0)
    parts.consumer()
    topics = [key["topic"] for key, _ in parts.told(ask.GetConsumeStats(group="shop"))["offsetTable"].pairs]
    assert set(topics) == {"orders"}
    asked_for = ask.GetConsumeStats(group="shop", topics="returns;none")
    assert [key["topic"] for key, _ in parts.told(asked_for)["offsetTable"].pairs] == ["returns"]
    assert pairs(parts.told(ask.GetConsumeStats(group="shop", topic="returns"))["offsetTable"]) == {}
    assert pairs(parts.told(ask.GetConsumeStats(group="nobody"))["offsetTable"]) == {}


def test_consume_stats_of_all_groups() -> None:
    parts = used()
    parts.make_group("idle")
    told = parts.told(ask.GetBrokerConsumeStats())
    assert (told["brokerAddr"], told["totalDiff"], told["totalInflightDiff"]) == (ADDRESS, 6, 0)
    by_group = {group: stats for entry in told["consumeStatsList"] for group, stats in entry.items()}
    assert by_group["idle"] == []
    assert pairs(by_group["shop"][0]["offsetTable"])[0]["consumerOffset"] == 4
    assert parts.told(ask.GetBrokerConsumeStats(only_ordered=True))["totalDiff"] == 0


def test_time_spans_say_how_late_a_group_is() -> None:
    parts = used()
    start_ms = parts.time.now_ms() - 20_000
    spans = parts.told(ask.QueryTimeSpan(topic="orders", group="shop"))["consumeTimeSpanSet"]
    assert spans[0] == {
        "messageQueue": {"brokerName": "broker-a", "queueId": 0, "topic": "orders"},
        "minTimeStamp": start_ms, "maxTimeStamp": start_ms + 9000, "consumeTimeStamp": start_ms + 3000,
        "delayTime": 16_000,
    }  # fmt: skip
    assert spans[1]["delayTime"] == 0
    parts.make_topic("empty", 1)
    empty = parts.told(ask.QueryTimeSpan(topic="empty", group="shop"))["consumeTimeSpanSet"][0]
    assert (empty["minTimeStamp"], empty["maxTimeStamp"], empty["consumeTimeStamp"]) == (-1, -1, -1)


def test_all_offsets_in_one_table() -> None:
    parts = used()
    parts.delay_offsets.commit(3, 12)
    assert parts.told(ask.GetAllOffsets())["offsetTable"] == {"orders@shop": {"0": 4, "1": 10}}
    assert b"{0:4,1:10}" in bytes(parts.ask(ask.GetAllOffsets()).body)  # type: ignore[arg-type]
    assert parts.told(ask.GetAllDelayOffsets())["offsetTable"] == {"3": 12}


# --- set back and forth ----------------------------------------------------------------------------------------------


def test_a_reset_by_time_holds_at_once_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    parts = used()
    start_ms = parts.time.now_ms() - 20_000
    request = ask.ResetOffset(group="shop", topic="orders", timestamp_ms=start_ms + 5500, force=True)
    with caplog.at_level(logging.WARNING):
        told = parts.told(request)
    assert pairs(told["offsetTable"]) == {0: 6, 1: 0}
    assert told["offsetTable"].pairs[0][0] == {"brokerName": "broker-a", "queueId": 0, "topic": "orders"}
    assert offsets_of(parts) == {0: 6, 1: 0}
    assert "10.9.8.7:5555 reset shop in orders to {0: 6, 1: 0}" in caplog.text
    assert len(parts.resets) == 0, "nobody is at work who must hear of it"


def test_without_force_a_group_is_only_set_back() -> None:
    parts = used()
    start_ms = parts.time.now_ms() - 20_000
    parts.ask(ask.ResetOffset(group="shop", topic="orders", timestamp_ms=start_ms + 5500))
    assert offsets_of(parts) == {0: 4, 1: 0}


def test_a_time_below_zero_skips_what_is_left() -> None:
    parts = used()
    parts.ask(ask.ResetOffset(group="shop", topic="orders", timestamp_ms=-1, force=True))
    assert offsets_of(parts) == {0: 10, 1: 10}


def test_a_group_that_never_consumed_is_set_too() -> None:
    parts = used()
    parts.make_group("new")
    parts.ask(ask.ResetOffset(group="new", topic="orders", timestamp_ms=0, force=True))
    assert offsets_of(parts, "new") == {0: 0, 1: 0}


def test_consumers_at_work_hear_of_a_reset_with_their_next_pull() -> None:
    parts = used()
    parts.consumer()
    parts.ask(ask.ResetOffset(group="shop", topic="orders", timestamp_ms=0, force=True))
    assert parts.woken == [("orders", 0), ("orders", 1)], "pulls that wait look again"
    assert parts.resets.is_pending("shop", "orders", 0), "what it commits now is old"
    assert parts.resets.take("shop", "orders", 0, pulled=4) == 0
    assert not parts.resets.is_pending("shop", "orders", 0)
    assert parts.resets.take("shop", "orders", 0, pulled=0) is None
    assert parts.resets.take("shop", "orders", 1, pulled=0) is None, "it is there already"


def test_one_queue_is_set_to_an_offset_or_a_time() -> None:
    parts = used()
    parts.ask(ask.ResetOffset(group="shop", topic="orders", queue_id=1, offset=7))
    assert offsets_of(parts) == {0: 4, 1: 7}
    parts.ask(ask.ResetOffset(group="shop", topic="orders", queue_id=0, timestamp_ms=-1))
    assert offsets_of(parts) == {0: 10, 1: 7}
    outside = parts.ask(ask.ResetOffset(group="shop", topic="orders", queue_id=1, offset=11))
    assert (outside.code, "range [0-10]" in str(outside.reason)) == (1, True)
    assert parts.ask(ask.ResetOffset(group="shop", topic="orders", queue_id=2, offset=0)).code == BadRequest.code
    assert offsets_of(parts) == {0: 10, 1: 7}


def test_a_reset_of_what_is_not_there_is_refused() -> None:
    parts = used()
    assert parts.ask(ask.ResetOffset(group="none", topic="orders")).code == GroupNotFound.code
    assert parts.ask(ask.ResetOffset(group="shop", topic="none")).code == TopicNotFound.code
    assert parts.ask(ask.ResetOffset(group="none", topic="orders", timestamp_ms=-1)).code == GroupNotFound.code


def test_a_reset_survives_a_restart() -> None:
    parts = used()
    parts.ask(ask.ResetOffset(group="shop", topic="orders", timestamp_ms=0, force=True))
    parts.close()
    assert offsets_of(AdminParts(parts.disk, parts.clock)) == {0: 0, 1: 0}


# --- compared and copied ---------------------------------------------------------------------------------------------


def test_the_correction_is_the_smallest_offset_of_all_groups() -> None:
    parts = used()
    parts.offsets.commit("slow", "orders", 0, 2)
    asked = ask.QueryCorrectionOffset(topic="orders", compare_group="shop")
    assert parts.told(asked)["correctionOffsets"] == {"0": 2, "1": 10}
    without = ask.QueryCorrectionOffset(topic="orders", compare_group="slow", filter_groups="slow,other")
    assert parts.told(without)["correctionOffsets"] == {"0": INT64_MAX, "1": 10}
    assert offsets_of(parts, "slow") == {0: 2}, "asking changes nothing"


def test_offsets_are_copied_to_another_group() -> None:
    parts = used()
    parts.make_topic("returns")
    parts.offsets.commit("shop", "returns", 0, 0)
    parts.offsets.commit("twin", "orders", 0, 9)
    assert parts.ask(ask.CloneOffsets(source="shop", target="twin", topic="orders")).code == 0
    assert offsets_of(parts, "twin") == {0: 4, 1: 10}
    assert parts.offsets.topics_of("twin") == {"orders"}
    parts.consumer()  # it subscribes to orders only
    parts.ask(ask.CloneOffsets(source="shop", target="other"))
    assert parts.offsets.topics_of("other") == {"orders"}
    parts.ask(ask.CloneOffsets(source="shop", target="other", offline=True))
    assert parts.offsets.topics_of("other") == {"orders", "returns"}
    assert parts.ask(ask.CloneOffsets(source="shop", target="not@ll")).code == BadRequest.code


KEYS = st.tuples(st.sampled_from("gh"), st.sampled_from("tu"), st.integers(0, 1))


@given(st.lists(st.tuples(KEYS, st.integers(0, 3), st.booleans())))
def test_a_reset_is_told_once_and_only_to_whom_it_concerns(steps: list[tuple[tuple[str, str, int], int, bool]]) -> None:
    resets, model = Resets(), {}
    for key, offset, is_note in steps:
        if is_note:
            resets.note(*key, offset)
            model[key] = offset
        else:
            known = model.pop(key, None)
            assert resets.take(*key, pulled=offset) == (None if known == offset else known)
        assert len(resets) == len(model)
        assert all(resets.is_pending(*one) for one in model)
    resets.forget_group("g")
    resets.forget_topic("t")
    assert len(resets) == sum(1 for group, topic, _ in model if group != "g" and topic != "t")
