"""The dialect of RocketMQ's files, and everything else that may be found where one of them should be."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from late import in_time
from pyromq.errors import NotJson
from pyromq.model.lenient_json import MAX_DEPTH, canonical, dumps, loads

INT64 = st.integers(-(2**63), 2**63 - 1)
SCALARS = st.none() | st.booleans() | INT64 | st.floats(allow_nan=False, allow_infinity=False) | st.text()
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)
QUEUES = st.dictionaries(st.integers(-(2**31), 2**31 - 1), INT64, max_size=6)


def as_fastjson(offsets: dict[int, int]) -> bytes:
    return ("{" + ",\n\t\t\t".join(f"{queue}:{offset}" for queue, offset in offsets.items()) + "\n\t\t}").encode()


@given(VALUES)
def test_what_was_written_is_read_again(value: object) -> None:
    assert loads(dumps(value)) == value


@given(QUEUES)
def test_unquoted_integer_keys_are_read_as_text(offsets: dict[int, int]) -> None:
    assert loads(as_fastjson(offsets)) == {str(queue): offset for queue, offset in offsets.items()}


@given(st.dictionaries(st.text(), QUEUES, max_size=4))
def test_text_beside_unquoted_keys_stays_as_it_is(table: dict[str, dict[int, int]]) -> None:
    """Names may look like anything, even like `,0:`; only keys outside of strings are touched."""
    parts = [dumps(name).strip() + b":" + as_fastjson(offsets) for name, offsets in table.items()]
    expected = {name: {str(queue): at for queue, at in offsets.items()} for name, offsets in table.items()}
    assert loads(b'{"t":{' + b",".join(parts) + b"}}") == {"t": expected}


def test_a_file_as_rocketmq_writes_it() -> None:
    text = b'{\n\t"offsetTable":{\n\t\t"%RETRY%g@g":{0:12,1:7\n\t\t},\n\t\t"a{,3:@g":{}\n\t}\n}'
    assert loads(text) == {"offsetTable": {"%RETRY%g@g": {"0": 12, "1": 7}, "a{,3:@g": {}}}


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "empty"),
        (b" \r\n\t", "empty"),
        (bytes(4096), "only zero bytes"),
        (b'{"a":1', "line 1"),
        (b'{\n"a":1,\n"b"', "line 3"),
        (b"{a:1}", "line 1"),
        (b"{1.5:1}", "line 1"),
        (b"[1,2:3]", "line 1"),
        (b'{"a":NaN}', "line 1"),
        (b'{"a":1e999}', "line 1"),
        (b'{"a":1}{}', "line 1"),
        (b'{"\xff":1}', "UTF-8"),
        (b'{0:"\\ud800"}', "line 1"),
    ],
)
def test_what_is_no_json_is_named(data: bytes, says: str) -> None:
    with pytest.raises(NotJson, match=says):
        loads(data)


@given(st.binary(max_size=200))
def test_any_bytes_are_json_or_refused(data: bytes) -> None:
    try:
        value = loads(data)
    except NotJson:
        return
    dumps(value)


@pytest.mark.parametrize("opening", [b"[", b'{"a":', b"{0:", b"[{1:"])
def test_deep_nesting_is_refused(opening: bytes) -> None:
    with pytest.raises(NotJson):
        loads(opening * 200_000)


def test_the_limit_of_nesting_is_the_same_for_reading_and_writing() -> None:
    fits = b"[" * MAX_DEPTH + b"]" * MAX_DEPTH
    assert dumps(loads(fits))
    with pytest.raises(NotJson, match="levels deep"):
        loads(b"[" + fits + b"]")
    with pytest.raises(NotJson, match="levels deep"):
        dumps([loads(fits)])


@pytest.mark.parametrize("piece", [b'"\\"', b"{0:", b"{ 1", b",", b'"', b"\\", b"{" + b" " * 50, b"{-1" * 3])
def test_damage_does_not_cost_quadratic_time(piece: bytes) -> None:
    start = time.process_time()
    with pytest.raises(NotJson):
        loads(b"{" + piece * 200_000)
    in_time(time.process_time() - start, 5)


@pytest.mark.parametrize("value", [{1, 2}, 2**70, "\ud800", object()])
def test_what_json_cannot_say_is_refused(value: object) -> None:
    with pytest.raises(NotJson):
        dumps({"a": value})


@given(st.dictionaries(st.text(), SCALARS))
def test_the_canonical_form_does_not_depend_on_order(value: dict[str, object]) -> None:
    assert canonical(dict(reversed(value.items()))) == canonical(value) == canonical(loads(dumps(value)))
