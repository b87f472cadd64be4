"""A JSON object with its checksum as the first field, `pyromqCrc`: see `json_file`."""

from __future__ import annotations

import zlib

from pyromq.errors import WrongShape
from pyromq.model import lenient_json
from pyromq.model.json_form import JsonObject, an_object

CHECKSUM = "pyromqCrc"


def _checksum(value: JsonObject) -> int:
    return zlib.crc32(lenient_json.canonical(value))


def encode_checked(value: JsonObject) -> bytes:
    """The checksum comes first: then removing its line leaves JSON."""
    content = {key: item for key, item in value.items() if key != CHECKSUM}
    return lenient_json.dumps({CHECKSUM: _checksum(content), **content})


def decode_checked(raw: bytes) -> JsonObject:
    value = an_object(lenient_json.loads(raw))
    if CHECKSUM in value and value.pop(CHECKSUM) != _checksum(value):
        raise WrongShape(f'its checksum is of another content (after a change by hand the "{CHECKSUM}" line must go)')
    return value
