"""Answers of brokers as values: RocketMQ's numbers, its dialect, its figures that are text."""

from __future__ import annotations

import pytest

from pyromq.admin.brokers import read_status
from pyromq.admin.directory import BrokerAddress
from pyromq.admin.reading import by_queue, form_of, number_in, offset_or_none, several, version_name, whole, words
from pyromq.admin.topics import attribute_changes, kind_of
from pyromq.errors import BadRequest, NotJson, WrongShape
from pyromq.model.queue import MessageQueue
from pyromq.wire.command import Command

BROKER = BrokerAddress("c", "broker-a", 0, "127.0.0.1:10911")


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (513, "5.5.0"), (493, "5.4.0"), (479, "5.3.3"), (413, "5.0.0"), (409, "4.9.8"), (401, "4.9.4"),
        (317, "4.5.2"), (232, "4.1.0-SNAPSHOT"), (213, "4.0.0"), (37, "before 4.0.0 (37)"),
    ],
)  # fmt: skip
def test_versions_have_numbers(number: int, name: str) -> None:
    assert version_name(number) == name


def test_queues_as_keys_in_both_spellings() -> None:
    queue = '{"brokerName":"b","queueId":3,"topic":"t"}'
    as_object = Command(0, body=f'{{"table":{{{queue}:{{"lag":7}}}}}}'.encode())
    as_text = Command(0, body=b'{"table":{"{\\"brokerName\\":\\"b\\",\\"queueId\\":3,\\"topic\\":\\"t\\"}":{"lag":7}}}')
    for answer in (as_object, as_text):
        assert list(by_queue(form_of(answer), "table")) == [(MessageQueue("t", "b", 3), {"lag": 7})]
    assert list(by_queue(form_of(Command(0, body=b'{"table":{"x":1}}')), "table")) == []
    assert list(by_queue({}, "table")) == []


def test_what_is_absent_or_strange_has_a_default() -> None:
    form = form_of(Command(0, body=b'{"n":"text","list":7,"word":null}'))
    assert (whole(form, "n"), several(form, "list"), words(form, "word")) == (0, [], "")
    assert form_of(Command(0)) == {}


def test_what_is_no_object_is_refused() -> None:
    with pytest.raises(WrongShape):
        form_of(Command(0, body=b"[1]"))
    with pytest.raises(NotJson):
        form_of(Command(0, body=b"\xff"))


def test_the_figures_of_a_broker() -> None:
    figures = {
        "brokerVersionDesc": "V5_5_0",
        "bootTimestamp": "1000000",
        "runtime": "[ 1 days, 2 hours, 3 minutes, 4 seconds ]",
        "putTps": "1.5 2.5 3.5",
        "getTransferedTps": "7.0 8 9",
        "msgPutTotalTodayMorning": "10",
        "msgPutTotalTodayNow": "25",
        "commitLogDiskRatio": "0.4",
        "commitLogMinOffset": "100",
        "commitLogMaxOffset": "1100",
        "earliestMessageTimeStamp": "-1",
    }
    status = read_status(BROKER, figures)
    assert (status.version, status.pyromq_version) == ("5.5.0", None)
    assert status.clock_ms == 1_000_000 + (((24 + 2) * 60 + 3) * 60 + 4) * 1000
    assert (status.in_per_second, status.out_per_second, status.messages_in_today) == (1.5, 7.0, 15)
    assert (status.disk_used, status.log_bytes, status.oldest_message_ms) == (0.4, 1000, 0)


def test_a_broker_that_says_nothing_has_no_figures() -> None:
    status = read_status(BROKER, {"putTps": "", "bootTimestamp": "soon", "runtime": "?"})
    assert (status.in_per_second, status.started_ms, status.clock_ms, status.version) == (0.0, 0, 0, "")


def test_kinds_of_topics() -> None:
    names = ("orders", "%RETRY%g", "%DLQ%g", "TBW102", "rmq_sys_REVIVE_LOG_c", "DefaultCluster")
    found = [kind_of(name, {"DefaultCluster"}) for name in names]
    assert found == ["normal", "retry", "dead-letter", "system", "system", "system"]


def test_attributes_are_changes() -> None:
    assert attribute_changes({"message.type": "FIFO", "old": None}) == "+message.type=FIFO,-old"
    for wrong in ({"": "x"}, {"a,b": "x"}, {"a": "x=y"}, {"+a": "x"}):
        with pytest.raises(BadRequest):
            attribute_changes(wrong)


def test_numbers_in_fields_are_numbers() -> None:
    assert number_in(Command(0, {"offset": "-7"}), "offset") == -7
    assert offset_or_none(Command(0, {"offset": "7"})) == 7
    assert offset_or_none(Command(0, {"offset": "-1"})) is None
    assert offset_or_none(Command(22)) is None
    for wrong in ({}, {"offset": ""}, {"offset": "1e3"}, {"offset": "٣"}, {"offset": "9" * 20}):
        with pytest.raises(WrongShape, match="which is no number"):
            number_in(Command(0, wrong), "offset")
