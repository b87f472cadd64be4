"""The two forms of a header, read and written: JSON, and RocketMQ's own binary form.

    binary form: 2 code, 1 language, 2 version, 4 correlation id, 4 flags, 4+n reason, 4+n fields
    fields:      2+n name, 4+n value, repeated

Whatever the bytes are, reading returns a `Command` or raises `BadFrame`, in time proportional to their length. Where
the peer can be told of it, that is `Illegible`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import orjson

from pyromq.errors import BadFrame
from pyromq.wire.codes import whole_code
from pyromq.wire.command import FLAG_ANSWER, LANGUAGES, OTHER_LANGUAGE, Command, Serialization

#: The widest known request has under forty.
MAX_FIELDS = 512
#: The length of a field's name has 16 bits, one of them for the sign.
MAX_NAME_BYTES = 0x7FFF

_HEAD = struct.Struct(
    ">h"  # code
    "B"   # language
    "h"   # version
    "i"   # correlation id
    "i"   # flags
)  # fmt: skip
_LENGTH = struct.Struct(">i")
_SHORT = struct.Struct(">h")

_FIELDS_AT = _HEAD.size + _LENGTH.size  # in a header without a reason

_LANGUAGE_NUMBER = {name: number for number, name in enumerate(LANGUAGES)}
_OTHER_NUMBER = _LANGUAGE_NUMBER[OTHER_LANGUAGE]

_LOW, _HIGH = -(2**31), 2**31 - 1

# Looking up a member of an enumeration takes longer than everything else that is done with it here.
_JSON, _BINARY = Serialization.JSON, Serialization.BINARY


class Illegible(BadFrame):
    """A header in which something is wrong, but not where it ends nor who is to be told: what follows can be read."""

    def __init__(self, why: str, request: Command) -> None:
        super().__init__(why)
        #: The fields that an answer needs, and nothing else.
        self.request = request


def decode_header(data: bytes, serialization: int, max_fields: int = MAX_FIELDS) -> Command:
    """The command without its body. Raises BadFrame."""
    if serialization == 0:
        return _decode_json(data, max_fields)
    if serialization == 1:
        return _decode_binary(data, max_fields)
    raise BadFrame(unknown_form(serialization))


def unknown_form(serialization: int) -> str:
    return f"the header is written in form {serialization}, which is neither JSON (0) nor binary (1)"


def encode_header(command: Command) -> bytes:
    """Raises BadFrame for a field that the form has no room for."""
    if command.serialization == 1:
        return _encode_binary(command)
    return _encode_json(command)


# --- JSON ------------------------------------------------------------------------------------------------------------


def _decode_json(data: bytes, max_fields: int) -> Command:
    try:
        header = orjson.loads(data)
    except orjson.JSONDecodeError as problem:
        raise BadFrame(f"the header is not JSON: {problem}") from None
    if type(header) is not dict:
        raise BadFrame("the header is JSON, but not an object")
    try:
        return _command_of(header.get, max_fields)
    except BadFrame as bad:
        request = _who_asks(header)
        if request is None:
            raise
        raise Illegible(str(bad), request) from None


def _command_of(get: Callable[..., Any], max_fields: int) -> Command:
    code, correlation_id, flags, version = get("code", 0), get("opaque", 0), get("flag", 0), get("version", 0)
    if not type(code) is type(correlation_id) is type(flags) is type(version) is int:
        raise BadFrame("code, opaque, flag and version of the header must be whole numbers")
    if not (
        _LOW <= code <= _HIGH
        and _LOW <= correlation_id <= _HIGH
        and _LOW <= flags <= _HIGH
        and _LOW <= version <= _HIGH
    ):
        raise BadFrame("code, opaque, flag and version of the header must be numbers of 32 bits")
    language, reason = get("language"), get("remark")
    return Command(
        code,
        _text_fields(get("extFields"), max_fields),
        b"",
        correlation_id,
        flags,
        reason if type(reason) is str else None,
        language if type(language) is str and language in _LANGUAGE_NUMBER else _language(language),
        version,
        _JSON,
    )


def _who_asks(header: dict[str, Any]) -> Command | None:
    """Return a command with only the fields needed to answer it; None if even those are unreadable."""
    correlation_id, flags = header.get("opaque"), header.get("flag", 0)
    if type(correlation_id) is type(flags) is int and _LOW <= correlation_id <= _HIGH and _LOW <= flags <= _HIGH:
        return Command(0, correlation_id=correlation_id, flags=flags)
    return None


def _text_fields(fields: object, max_fields: int) -> dict[str, str]:
    if fields is None:
        return {}
    if type(fields) is not dict:
        raise BadFrame("the header's extFields are not an object")
    if len(fields) > max_fields:
        raise BadFrame(f"the header has {len(fields)} fields; the limit is {max_fields}")
    for value in fields.values():
        if type(value) is not str:
            return {name: _as_text(value) for name, value in fields.items() if value is not None}
    return fields


def _as_text(value: object) -> str:
    """Fields are text; some clients write a number or a truth value as what it is."""
    if value is True or value is False:
        return "true" if value else "false"
    if type(value) in (str, int, float):
        return str(value)
    raise BadFrame("a field of the header is neither text nor a number")


def _language(value: object) -> str:
    """Return the name of a language given as a number, or `OTHER_LANGUAGE` if it is unknown."""
    return LANGUAGES[value] if type(value) is int and 0 <= value < len(LANGUAGES) else OTHER_LANGUAGE


def _encode_json(command: Command) -> bytes:
    """As RocketMQ writes it, in the order of the names."""
    fields, reason = command.fields, command.reason
    return b'{"code":%d,%b"flag":%d,"language":"%b","opaque":%d,%b"serializeTypeCurrentRPC":"JSON","version":%d}' % (
        command.code,
        # An answer has its fields even when there are none: clients look into them unasked.
        b'"extFields":%b,' % _dumps(fields) if fields or command.flags & FLAG_ANSWER else b"",
        command.flags,
        command.language.encode() if command.language in _LANGUAGE_NUMBER else b"OTHER",
        command.correlation_id,
        b'"remark":%b,' % _dumps(reason) if reason is not None else b"",
        command.version,
    )


def _dumps(value: dict[str, str] | str) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError:  # half a surrogate pair has no UTF-8 form
        return orjson.dumps(_with_plain_text(value))


def _with_plain_text(value: Any) -> Any:
    if isinstance(value, dict):
        return {_with_plain_text(name): _with_plain_text(item) for name, item in value.items()}
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


# --- binary ----------------------------------------------------------------------------------------------------------


def _decode_binary(data: bytes, max_fields: int) -> Command:
    try:
        code, language, version, correlation_id, flags = _HEAD.unpack_from(data)
    except struct.error:
        raise BadFrame(_cut_off(data)) from None
    try:
        reason, at = _take_reason(data)
        fields = _unpack_fields(data, at, max_fields)
    except (struct.error, BadFrame) as bad:
        why = str(bad) if isinstance(bad, BadFrame) else _cut_off(data)
        request = Command(0, correlation_id=correlation_id, flags=flags, serialization=_BINARY)
        raise Illegible(why, request) from None
    return Command(
        code if flags & FLAG_ANSWER else whole_code(code),
        fields,
        b"",
        correlation_id,
        flags,
        reason,
        LANGUAGES[language] if language < len(LANGUAGES) else OTHER_LANGUAGE,
        version,
        _BINARY,
    )


def _cut_off(data: bytes) -> str:
    return f"the binary header is cut off: it has {len(data)} bytes"


def _take_reason(data: bytes) -> tuple[str | None, int]:
    """The reason, and where the fields begin."""
    (size,) = _LENGTH.unpack_from(data, _HEAD.size)
    end = _FIELDS_AT + size
    if size < 0 or end > len(data):
        raise BadFrame(_wrong_length(size, len(data) - _FIELDS_AT))
    return (data[_FIELDS_AT:end].decode("utf-8", "replace") if size else None), end


def _unpack_fields(data: bytes, at: int, max_fields: int) -> dict[str, str]:
    """The fields, from their length on. Of two with one name the second counts."""
    (size,) = _LENGTH.unpack_from(data, at)
    at += 4
    end = at + size
    if size < 0 or end > len(data):
        raise BadFrame(_wrong_length(size, len(data) - at))
    fields: dict[str, str] = {}
    room = max_fields
    while at < end:
        if room == 0:
            raise BadFrame(f"the header has more than {max_fields} fields, which is the limit")
        room -= 1
        (size,) = _SHORT.unpack_from(data, at)
        name_end = at + 2 + size
        if size < 0 or name_end > end:
            raise BadFrame(_wrong_length(size, end - at - 2))
        name = data[at + 2 : name_end].decode("utf-8", "replace")
        (size,) = _LENGTH.unpack_from(data, name_end)
        at = name_end + 4 + size
        if size < 0 or at > end:
            raise BadFrame(_wrong_length(size, end - name_end - 4))
        fields[name] = data[name_end + 4 : at].decode("utf-8", "replace")
    return fields


def _wrong_length(size: int, left: int) -> str:
    return f"a length in the binary header says {size}, {max(0, left)} bytes are left"


def _encode_binary(command: Command) -> bytes:
    reason = command.reason.encode("utf-8", "replace") if command.reason else b""
    packed = b"".join([_pack_field(name, value) for name, value in command.fields.items()])
    return b"%b%b%b%b%b" % (
        _HEAD.pack(
            _to_short(command.code),
            _LANGUAGE_NUMBER.get(command.language, _OTHER_NUMBER),
            _to_short(command.version),
            command.correlation_id,
            command.flags,
        ),
        _LENGTH.pack(len(reason)),
        reason,
        _LENGTH.pack(len(packed)),
        packed,
    )


def _pack_field(name: str, value: str) -> bytes:
    name_bytes, value_bytes = name.encode("utf-8", "replace"), value.encode("utf-8", "replace")
    if len(name_bytes) > MAX_NAME_BYTES:
        raise BadFrame(
            f"the name of a field has {len(name_bytes)} bytes; a binary header has room for {MAX_NAME_BYTES}"
        )
    return b"%b%b%b%b" % (_SHORT.pack(len(name_bytes)), name_bytes, _LENGTH.pack(len(value_bytes)), value_bytes)


def _to_short(number: int) -> int:
    """The low 16 bits, as a signed number: that is what the form has room for."""
    return number if -0x8000 <= number <= 0x7FFF else (number + 0x8000 & 0xFFFF) - 0x8000
