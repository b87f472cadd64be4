"""The options of the source: the values of each, and the messages for other values."""

from __future__ import annotations

import contextlib
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyromq.errors import ConfigError, PyroMQError
from pyromq.model.names import TOOLS_GROUP
from pyromq.model.queue import MessageQueue
from pyromq.spark.option_reader import Given, moment_ms
from pyromq.spark.source.options import (
    SOURCE,
    Start,
    batch_options,
    check_options,
    connection_of,
    stream_options,
)
from pyromq.spark.source.queue_json import (
    Kind,
    Placed,
    found_for,
    is_assigned,
    parse_assigned,
    parse_placed,
    parse_queue_name,
    parse_times,
    queue_name,
)

LEAST = {"namesrv": "localhost:9876", "subscribe": "orders"}


def refused(options: dict[str, str], read=stream_options) -> str:
    with pytest.raises(ConfigError) as caught:
        read(options)
    return str(caught.value)


# --- accepted values -------------------------------------------------------------------------------------------------


def test_two_options_are_enough() -> None:
    stream, batch = stream_options(LEAST), batch_options(LEAST)
    assert stream.selection.topics == ("orders",)
    assert stream.starting.start is Start.LATEST
    assert batch.starting.start is Start.EARLIEST
    assert stream.pulling.group == TOOLS_GROUP
    assert stream.pulling.pull_bytes == 2 << 20
    assert stream.fails_on_loss


def test_spark_writes_the_names_in_lower_case() -> None:
    found = stream_options(LEAST | {"startingoffsets": "earliest", "maxoffsetspertrigger": "500", "PULLBYTES": "512k"})
    assert found.starting.start is Start.EARLIEST
    assert found.limits.max_offsets == 500
    assert found.pulling.pull_bytes == 512 << 10


def test_several_topics() -> None:
    found = stream_options(LEAST | {"subscribe": " orders, returns ,orders"}).selection
    assert found.topics == ("orders", "returns")
    assert found.is_wanted("returns")
    assert not found.is_wanted("others")


def test_a_pattern_is_matched_as_a_whole() -> None:
    found = stream_options({"namesrv": "a:1", "subscribePattern": "order.*"}).selection
    assert found.is_wanted("orders")
    assert not found.is_wanted("reorders")


def test_everything_travels_to_executors() -> None:
    found = stream_options(
        LEAST | {"startingOffsets": '{"orders@broker-a@0": 17}', "acl.accessKey": "me", "acl.secretKey": "s"}
    )
    assert pickle.loads(pickle.dumps(found)) == found
    assert "s'" not in repr(found.cluster)


def test_the_connection() -> None:
    found = connection_of(
        LEAST
        | {"acl.accessKey": "me", "acl.secretKey": "hush", "client.callTimeoutMs": "1500", "client.tlsCa": "/ca.pem"}
    )
    assert (found.access_key, found.secret_key) == ("me", "hush")
    assert found.call_timeout_s == 1.5
    assert found.tls
    assert found.tls_ca == "/ca.pem"


def test_who_has_keys_pulls_as_its_own_group() -> None:
    keys = {"acl.accessKey": "me", "acl.secretKey": "hush", "group": "reports"}
    assert stream_options(LEAST | keys).pulling.group == "reports"
    assert stream_options(LEAST | {"group": "reports"}).pulling.group == TOOLS_GROUP


def test_tags_are_checked_again_where_they_are_read() -> None:
    assert stream_options(LEAST | {"tags": "a || b"}).pulling.wanted_tags == {"a", "b"}
    assert stream_options(LEAST | {"tags": "*"}).pulling.wanted_tags is None


def test_times_and_sizes() -> None:
    found = stream_options(LEAST | {"minOffsetsPerTrigger": "10", "maxTriggerDelay": "90s", "maxBytesPerTrigger": "1g"})
    assert (found.limits.min_offsets, found.limits.max_delay_s, found.limits.max_bytes) == (10, 90.0, 1 << 30)
    assert stream_options(LEAST | {"startingTimestamp": "2026-01-31T12:00:00Z"}).starting.timestamp_ms == 1769860800000


# --- refused values --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"subscribr": "x"}, ["'subscribr'", "did you mean subscribe?"]),
        ({"startingOfsets": "x"}, ["did you mean startingOffsets?"]),
        ({"path": "/data"}, ["takes no path", "pyromq-segments"]),
        ({"subscribePattern": "o.*"}, ["subscribe and subscribePattern", "together"]),
        ({"assign": '["orders@a@0"]'}, ["subscribe and assign", "together"]),
        ({"subscribe": ""}, ["no topic is given", "subscribePattern"]),
        ({"subscribe": "a b"}, ["subscribe", "'a b'"]),
        ({"namesrv": ""}, ["namesrv is missing"]),
        ({"namesrv": "nowhere"}, ["namesrv", "'nowhere'", "host:port"]),
        ({"startingOffsets": "soon"}, ["startingOffsets", "'soon'", "earliest, latest, group"]),
        ({"startingOffsets": "{"}, ["startingOffsets", "no JSON"]),
        ({"startingOffsets": '{"orders@a@0": -7}'}, ["startingOffsets", "-7"]),
        ({"startingOffsets": '{"orders@a": 7}'}, ["startingOffsets", "topic@broker@id"]),
        ({"startingOffsets": "group"}, ["startingOffsets", "the option group"]),
        ({"startingOffsets": "latest", "startingTimestamp": "1"}, ["startingOffsets and startingTimestamp"]),
        ({"startingTimestamp": "yesterday"}, ["startingTimestamp", "'yesterday'", "2026-01-31T12:00:00Z"]),
        ({"endingOffsets": "latest"}, ["endingOffsets", "spark.read", "availableNow"]),
        ({"maxOffsetsPerTrigger": "0"}, ["maxOffsetsPerTrigger", "'0'", "from 1 on"]),
        ({"maxOffsetsPerTrigger": "5", "minOffsetsPerTrigger": "6"}, ["minOffsetsPerTrigger", "above"]),
        ({"maxTriggerDelay": "5m"}, ["maxTriggerDelay", "minOffsetsPerTrigger"]),
        ({"minOffsetsPerTrigger": "5", "maxTriggerDelay": "5"}, ["maxTriggerDelay", "15m"]),
        ({"maxBytesPerTrigger": "much"}, ["maxBytesPerTrigger", "2m"]),
        ({"pullBytes": "1g"}, ["pullBytes", "'1g'"]),
        ({"failOnDataLoss": "maybe"}, ["failOnDataLoss", "true or false"]),
        ({"readFrom": "moon"}, ["readFrom", "master or replica or auto"]),
        ({"mode": "file"}, ["mode", "pyromq-segments"]),
        ({"newQueues": "group"}, ["newQueues", "earliest or latest"]),
        ({"tags": "a", "sql": "b = 1"}, ["tags and sql"]),
        ({"tags": "||"}, ["tags", "||"]),
        ({"sql": "a >"}, ["sql", "character"]),
        ({"columns": "bodi"}, ["'bodi'", "body"]),
        ({"group": "a b"}, ["group", "'a b'"]),
        ({"acl.accessKey": "me"}, ["acl.secretKey", "belong together"]),
    ],
)
def test_what_is_wrong_is_said(more: dict[str, str], words: list[str]) -> None:
    said = refused(LEAST | more)
    for word in words:
        assert word in said
    assert "\n" not in said


def test_a_batch_has_other_options_than_a_stream() -> None:
    assert "spark.readStream" in refused(LEAST | {"maxOffsetsPerTrigger": "5"}, batch_options)
    assert "empty" in refused(LEAST | {"startingOffsets": "latest"}, batch_options)
    assert "endingOffsets and endingTimestamp" in refused(
        LEAST | {"endingOffsets": "latest", "endingTimestamp": "1"}, batch_options
    )
    ending = batch_options(LEAST | {"endingOffsets": '{"orders": {"broker-a": {"0": 5}}}'}).ending
    assert ending.named == {MessageQueue("orders", "broker-a", 0): Placed(Kind.OFFSET, 5)}


def test_before_it_is_known_what_it_will_be_only_what_fits_neither_is_refused() -> None:
    check_options(LEAST | {"endingOffsets": "latest"})
    check_options(LEAST | {"maxOffsetsPerTrigger": "5"})
    assert "cannot be 'x'" in refused(LEAST | {"maxOffsetsPerTrigger": "x"}, check_options)
    assert "'soon'" in refused(LEAST | {"startingOffsets": "soon"}, check_options)


@given(st.dictionaries(st.sampled_from(SOURCE), st.text(max_size=20), max_size=6))
def test_whatever_is_given_it_is_taken_or_refused_on_purpose(options: dict[str, str]) -> None:
    for read in (stream_options, batch_options):
        with contextlib.suppress(PyroMQError):
            read(LEAST | options)


# --- single values ---------------------------------------------------------------------------------------------------


def test_a_blank_value_is_no_value() -> None:
    assert Given({"a": "  "}, ["a"]).text("a") is None


@given(st.integers(0, 10**15), st.sampled_from(["", "b", "k", "m", "g", "K", " m"]))
def test_sizes(number: int, unit: str) -> None:
    factor = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}[unit.strip().lower()]
    found = Given({"a": f"{number}{unit}"}, ["a"])
    if 1 <= number * factor < 1 << 63:
        assert found.size("a") == number * factor


def test_moments() -> None:
    assert moment_ms("1700000000000") == 1700000000000
    assert moment_ms("2026-01-31 12:00:00") == moment_ms("2026-01-31T14:00:00+02:00") == 1769860800000
    assert moment_ms("31.1.2026") is None


# --- queues ----------------------------------------------------------------------------------------------------------

NAMES = st.text("abcXYZ0189_-%|", min_size=1, max_size=12)
QUEUES = st.builds(MessageQueue, NAMES, NAMES | st.just("a@b"), st.integers(0, 2**31 - 1))


@given(QUEUES)
def test_the_name_of_a_queue_is_read_back(queue: MessageQueue) -> None:
    assert parse_queue_name(queue_name(queue)) == queue


@given(st.text(max_size=30))
def test_what_is_no_queue_is_refused(name: str) -> None:
    try:
        queue = parse_queue_name(name)
    except ValueError:
        return
    assert queue.topic
    assert queue.broker_name


def test_the_forms_of_assign() -> None:
    both = (MessageQueue("t", "a", 0), MessageQueue("t", "a", 1))
    assert parse_assigned(["t@a@1", "t@a@0"]) == both
    assert parse_assigned({"t": {"a": [0, 1]}}) == both
    assert is_assigned(MessageQueue("t", "anywhere", 1), parse_assigned({"t": [1]}))
    assert not is_assigned(MessageQueue("t", "anywhere", 0), parse_assigned({"t": [1]}))
    for wrong in ([], {}, 5, ["t"], {"t": 5}, {"t": {"a": [-1]}}, {"t": {"a": ["x"]}}):
        with pytest.raises(ValueError, match=r".+"):
            parse_assigned(wrong)


def test_the_forms_of_offsets() -> None:
    first = MessageQueue("t", "a", 0)
    assert parse_placed({"t@a@0": 17}) == parse_placed({"t": {"a": {"0": 17}}}) == {first: Placed(Kind.OFFSET, 17)}
    assert parse_placed({"v": 1, "q": {"t@a@0": 17}}) == parse_placed({"t@a@0": 17})
    assert parse_placed({"t@a@0": -2}) == parse_placed({"t@a@0": "earliest"}) == {first: Placed(Kind.EARLIEST)}
    assert parse_placed({"t@a@0": -1}) == {first: Placed(Kind.LATEST)}
    assert parse_times({"t": "2026-01-31T12:00:00Z"}) == {MessageQueue("t", "", -1): Placed(Kind.TIME, 1769860800000)}


def test_the_nearest_name_counts() -> None:
    said = parse_placed({"t": "latest", "u": {"a": 5}, "u@a@1": 7})
    assert found_for(MessageQueue("t", "any", 3), said) == Placed(Kind.LATEST)
    assert found_for(MessageQueue("u", "a", 0), said) == Placed(Kind.OFFSET, 5)
    assert found_for(MessageQueue("u", "a", 1), said) == Placed(Kind.OFFSET, 7)
    assert found_for(MessageQueue("u", "b", 1), said) is None
