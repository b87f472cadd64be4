"""Both JSON dialects: written as fastjson and standard JSON do, read whatever comes."""

from __future__ import annotations

import json
import tracemalloc

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pyromq.errors import NotJson
from pyromq.wire import fastjson
from pyromq.wire.fastjson import ObjectKeyed

TEXTS = st.text(st.characters(codec="utf-8"), max_size=8)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS
)
PLAIN = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4), max_leaves=20
)
OBJECTS = st.dictionaries(TEXTS, SCALARS, max_size=3)
OBJECT_KEYED = st.lists(st.tuples(OBJECTS, PLAIN), min_size=1, max_size=4).map(lambda pairs: ObjectKeyed(tuple(pairs)))


def test_whole_numbers_as_keys_have_no_quotes_in_the_dialect_and_quotes_in_standard_json() -> None:
    route = {"brokerAddrs": {0: "127.0.0.1:10911", 1: "127.0.0.1:10921"}}
    assert fastjson.dumps(route) == b'{"brokerAddrs":{0:"127.0.0.1:10911",1:"127.0.0.1:10921"}}'
    assert fastjson.dumps_standard(route) == b'{"brokerAddrs":{"0":"127.0.0.1:10911","1":"127.0.0.1:10921"}}'


def test_old_clients_get_the_dialect_unless_they_ask_for_standard_json() -> None:
    assert not fastjson.standard_for(317)
    assert fastjson.standard_for(317, accepts_standard_only=True)
    assert fastjson.standard_for(401)


def test_objects_as_keys() -> None:
    pairs = [({"brokerName": "a", "queueId": 0, "topic": "t"}, {"minOffset": 0}), ({"queueId": 1}, {"minOffset": 7})]
    data = fastjson.dumps(ObjectKeyed(tuple(pairs)))
    assert data == b'{{"brokerName":"a","queueId":0,"topic":"t"}:{"minOffset":0},{"queueId":1}:{"minOffset":7}}'
    assert fastjson.loads(data) == ObjectKeyed(tuple(pairs))
    assert fastjson.loads(b" { } ") == fastjson.loads(fastjson.dumps(ObjectKeyed())) == {}


def test_a_map_with_objects_for_keys_inside_a_body() -> None:
    body = {"offsetTable": ObjectKeyed((({"queueId": 0}, 12),)), "consumeTps": 0.5}
    data = fastjson.dumps(body)
    assert data == b'{"offsetTable":{{"queueId":0}:12},"consumeTps":0.5}'
    assert fastjson.loads(data) == body


def test_standard_json_cannot_say_object_keys() -> None:
    with pytest.raises(NotJson):
        fastjson.dumps_standard({"table": ObjectKeyed()})


@given(PLAIN)
def test_standard_json_is_read_as_the_standard_library_does(value: object) -> None:
    assert fastjson.loads(json.dumps(value).encode()) == value


@given(PLAIN | OBJECT_KEYED | st.dictionaries(TEXTS, OBJECT_KEYED))
def test_what_is_written_is_read_back(value: object) -> None:
    assert fastjson.loads(fastjson.dumps(value)) == value


@given(st.dictionaries(st.integers(-(2**63), 2**63 - 1), SCALARS))
def test_whole_numbers_as_keys_are_read_as_text(table: dict[int, object]) -> None:
    expected = {str(key): value for key, value in table.items()}
    assert fastjson.loads(fastjson.dumps(table)) == fastjson.loads(fastjson.dumps_standard(table)) == expected


@given(st.binary(max_size=60) | st.text('{}[]":,\\0123eE.-+ \n tfn', max_size=60).map(str.encode))
@example(b'{"a":1,{}:2}')
@example(b'{{}:1,"a":2}')
@example(b"{{}:1,}")
@example(b'"\\ud800"')
@example(b"1e999")
@example(b"-")
@example(b"01")
@example(b"9" * 5000)
@example(b"{" * 100_000)
@example(b"[" * 100_000)
@example(b'{"a":' * 100_000)
def test_whatever_the_bytes_are_it_is_a_value_or_not_json(data: bytes) -> None:
    try:
        value = fastjson.loads(data)
    except NotJson:
        return
    assert fastjson.loads(fastjson.dumps(value)) == value


def test_nesting_is_limited_when_writing_too() -> None:
    value: object = 0
    for _ in range(400):
        value = [value]
    with pytest.raises(NotJson):
        fastjson.dumps(value)


def test_a_table_of_many_queues_is_written_with_one_call_for_each_part_that_is_standard_json() -> None:
    queues = [({"topic": "orders", "queueId": number}, {"maxOffset": 1, "minOffset": 0}) for number in range(2000)]
    table = fastjson.ObjectKeyed(tuple(queues))
    tracemalloc.start()
    data = fastjson.dumps({"offsetTable": table})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert fastjson.loads(data) == {"offsetTable": table}
    assert peak < 4 * len(data), "one result for each scalar would be some KiB each"
    assert b"".join(fastjson.map_pieces(queues)) == fastjson.dumps(table)
    assert b"".join(fastjson.list_pieces([1, "a", table])) == fastjson.dumps([1, "a", table])
    assert b"".join(fastjson.map_pieces([])) == b"{}"
    assert b"".join(fastjson.list_pieces([])) == b"[]"
