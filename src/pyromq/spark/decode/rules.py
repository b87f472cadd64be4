"""Conversions of record fields to column values, shared by both decoders.

- Text that is no UTF-8 reads as Java reads it, with U+FFFD for what cannot be read.
- Properties: of two with one name the later counts, one without a name or a value does not; the record's own CRC is
  not among them.
- A time that no calendar has, before the year 1 or after 9999, is none: producers write what they like.
- A body that says that it is compressed and cannot be unpacked is given as it is stored; `sys_flag` still says so.
"""

from __future__ import annotations

import ipaddress
from typing import Final

from pyromq.errors import UnreadableBody
from pyromq.model.message import PackedHost
from pyromq.net.address import shown_address
from pyromq.records.compression import decompress
from pyromq.records.layout import CRC_PROPERTY_NAME
from pyromq.records.properties import NAME_END, VALUE_END, decode_properties

#: In milliseconds since 1970: the first of the year 1, and the last of the year 9999.
FIRST_MS: Final = -62_135_596_800_000
LAST_MS: Final = 253_402_300_799_999

_CRC = CRC_PROPERTY_NAME.decode()


def properties_of(data: bytes) -> dict[str, str]:
    found = decode_properties(data)
    found.pop(_CRC, None)
    return found


def normal_properties(data: bytes) -> bytes:
    """The same properties with every name once, in good UTF-8."""
    return b"".join(
        b"%b%b%b%b" % (name.encode(), NAME_END, value.encode(), VALUE_END)
        for name, value in properties_of(data).items()
    )


def micros(ms: int) -> int | None:
    return ms * 1000 if FIRST_MS <= ms <= LAST_MS else None


def shown_host(host: PackedHost) -> str:
    return shown_address(str(ipaddress.ip_address(host[:-4])), int.from_bytes(host[-4:], "big"))


def unpacked(body: bytes, storage_flags: int) -> bytes:
    try:
        return decompress(body, storage_flags)
    except UnreadableBody:
        return body
