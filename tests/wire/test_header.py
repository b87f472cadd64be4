"""Both forms of a header: a written header can be read, and an unreadable one is refused with a sentence."""

from __future__ import annotations

import struct

import orjson
import pytest
from hypothesis import given, settings

from pyromq.errors import BadFrame
from pyromq.wire.codes import RequestCode, ResponseCode
from pyromq.wire.command import FLAG_ANSWER, Command, Serialization
from pyromq.wire.header import MAX_FIELDS, decode_header, encode_header
from wire.shapes import commands

JSON, BINARY = Serialization.JSON, Serialization.BINARY


def binary(code: int = 10, flags: int = 0, reason: bytes = b"", fields: bytes = b"", language: int = 0) -> bytes:
    return (
        struct.pack(f">hBhii i{len(reason)}s i", code, language, 317, 7, flags, len(reason), reason, len(fields))
        + fields
    )


def field(name: bytes, value: bytes) -> bytes:
    return struct.pack(f">h{len(name)}si", len(name), name, len(value)) + value


@settings(deadline=None)
@given(commands())
def test_what_is_written_is_read_again(command: Command) -> None:
    command.body = b""
    assert decode_header(encode_header(command), command.serialization) == command


@settings(deadline=None)
@given(commands(serialization=JSON))
def test_the_json_form_is_what_a_json_reader_expects(command: Command) -> None:
    header = orjson.loads(encode_header(command))
    assert header["code"] == command.code
    assert header["opaque"] == command.correlation_id
    assert header["flag"] == command.flags
    assert header.get("extFields", {}) == command.fields
    assert header.get("remark") == command.reason
    assert header["serializeTypeCurrentRPC"] == "JSON"
    assert list(header) == sorted(header)


def test_an_answer_has_its_fields_even_when_there_are_none() -> None:
    assert b'"extFields":{}' in encode_header(Command(code=0, flags=FLAG_ANSWER))
    assert b"extFields" not in encode_header(Command(code=34))


def test_a_header_of_the_java_client_is_read() -> None:
    command = decode_header(
        b'{"code":105,"extFields":{"topic":"TBW102"},"flag":0,"language":"JAVA","opaque":0,'
        b'"serializeTypeCurrentRPC":"JSON","version":479}',
        JSON,
    )
    assert command == Command(code=105, fields={"topic": "TBW102"}, language="JAVA", version=479)


def test_a_binary_header_is_laid_out_as_rocketmq_does_it() -> None:
    data = binary(code=34, reason="möglich".encode(), fields=field(b"a", b"1") + field(b"", b""), language=9)
    command = decode_header(data, BINARY)
    assert command == Command(
        code=34, fields={"a": "1", "": ""}, correlation_id=7, reason="möglich", language="GO", version=317,
        serialization=BINARY,
    )  # fmt: skip
    assert encode_header(command) == data


@pytest.mark.parametrize("code", [code for code in RequestCode if code > 0x7FFF])
def test_codes_that_do_not_fit_into_16_bits_are_known_again(code: RequestCode) -> None:
    sent = Command(code=code, serialization=BINARY)
    assert decode_header(encode_header(sent), BINARY).code == code


def test_a_code_of_an_answer_is_taken_as_it_is() -> None:
    cut = RequestCode.POP_MESSAGE & 0xFFFF
    assert decode_header(binary(code=cut, flags=FLAG_ANSWER), BINARY).code == cut


def test_numbers_and_truth_values_among_the_fields_become_text() -> None:
    fields = decode_header(b'{"code":1,"extFields":{"a":1,"b":true,"c":false,"d":null,"e":1.5}}', JSON).fields
    assert fields == {"a": "1", "b": "true", "c": "false", "e": "1.5"}


@pytest.mark.parametrize("language", [b'"COBOL"', b"99", b"-1", b"null", b"[]"])
def test_an_unknown_language_is_some_other(language: bytes) -> None:
    assert decode_header(b'{"code":1,"language":%b}' % language, JSON).language == "OTHER"


def test_of_two_fields_with_one_name_the_second_counts() -> None:
    assert decode_header(b'{"extFields":{"a":"1","a":"2"}}', JSON).fields == {"a": "2"}
    assert decode_header(binary(fields=field(b"a", b"1") + field(b"a", b"2")), BINARY).fields == {"a": "2"}


def test_bad_utf8_in_a_binary_header_is_replaced() -> None:
    command = decode_header(binary(reason=b"\xff", fields=field(b"\xc3", b"a\0\xf0")), BINARY)
    assert (command.reason, command.fields) == ("�", {"�": "a\0�"})


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"\0" * 40, "not JSON"),
        (b'{"code":1,"remark":"\xff"}', "not JSON"),
        (b'{"code":1,"remark":"\\ud800"}', "not JSON"),
        (b"[" * 200_000, "not JSON"),
        (b'{"a":' * 50_000 + b"1" + b"}" * 50_000, "not JSON"),
        (b"[]", "not an object"),
        (b"17", "not an object"),
        (b'{"code":"10"}', "must be whole numbers"),
        (b'{"code":1.5}', "must be whole numbers"),
        (b'{"code":true}', "must be whole numbers"),
        (b'{"opaque":null}', "must be whole numbers"),
        (b'{"opaque":2147483648}', "32 bits"),
        (b'{"flag":-2147483649}', "32 bits"),
        (b'{"version":99999999999999999999999}', "must be"),
        (b'{"extFields":[]}', "not an object"),
        (b'{"extFields":{"a":{}}}', "neither text nor a number"),
        (b'{"extFields":{"a":["b"]}}', "neither text nor a number"),
    ],
)
def test_bad_json_headers_are_refused(data: bytes, why: str) -> None:
    with pytest.raises(BadFrame, match=why):
        decode_header(data, JSON)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "cut off"),
        (binary()[:12], "cut off"),
        (binary()[:16], "cut off"),
        (binary()[:20], "cut off"),
        (struct.pack(">hBhiii", 1, 0, 0, 0, 0, -1), "says -1"),
        (struct.pack(">hBhiii", 1, 0, 0, 0, 0, 2**31 - 1), "says 2147483647"),
        (struct.pack(">hBhiiii", 1, 0, 0, 0, 0, 0, -5), "says -5"),
        (struct.pack(">hBhiiii", 1, 0, 0, 0, 0, 0, 100), "says 100"),
        (binary(fields=b"\0"), "cut off"),
        (binary(fields=struct.pack(">h", -1)), "says -1"),
        (binary(fields=struct.pack(">h", 9) + b"name"), "says 9"),
        (binary(fields=struct.pack(">h4s", 4, b"name")), "cut off"),
        (binary(fields=struct.pack(">h4si", 4, b"name", -2)), "says -2"),
        (binary(fields=struct.pack(">h4si", 4, b"name", 1)), "says 1"),
    ],
)
def test_bad_binary_headers_are_refused(data: bytes, why: str) -> None:
    with pytest.raises(BadFrame, match=why):
        decode_header(data, BINARY)


def test_a_form_that_nobody_knows_is_refused() -> None:
    with pytest.raises(BadFrame, match="form 2"):
        decode_header(b"{}", 2)


@pytest.mark.parametrize("serialization", Serialization)
def test_fields_have_a_limit(serialization: Serialization) -> None:
    widest = Command(code=1, fields={str(number): "" for number in range(MAX_FIELDS)}, serialization=serialization)
    assert len(decode_header(encode_header(widest), serialization).fields) == MAX_FIELDS
    widest.fields["one more"] = ""
    with pytest.raises(BadFrame, match="limit"):
        decode_header(encode_header(widest), serialization)
    with pytest.raises(BadFrame, match="limit"):
        decode_header(binary(fields=field(b"same", b"") * 3), BINARY, max_fields=2)


@pytest.mark.parametrize("serialization", Serialization)
def test_half_a_surrogate_pair_does_not_stop_an_answer(serialization: Serialization) -> None:
    odd = Command(code=0, reason="\ud800", fields={"\udfff": "\ud800x"}, serialization=serialization)
    assert decode_header(encode_header(odd), serialization).fields == {"?": "?x"}


def test_a_name_that_a_binary_header_has_no_room_for_is_our_own_fault() -> None:
    with pytest.raises(BadFrame, match="room for 32767"):
        encode_header(Command(code=0, fields={"n" * 0x8000: ""}, serialization=BINARY))


def test_numbers_of_an_enumeration_are_written_as_numbers() -> None:
    for serialization in Serialization:
        command = Command(code=ResponseCode.PULL_NOT_FOUND, flags=FLAG_ANSWER, serialization=serialization)
        assert decode_header(encode_header(command), serialization).code == 19
