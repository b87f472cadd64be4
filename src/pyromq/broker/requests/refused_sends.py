"""Sends that are refused because the broker is busy, answered without being taken apart.

Refusing must cost less than storing: if it cost more, a broker that has once fallen behind would fall further behind by
saying so. Only sends of the usual shape are answered here; all others are left to the ordinary way, which says the
same.
"""

from __future__ import annotations

import re
import struct

from pyromq.broker.overload import Overload, busy
from pyromq.broker.statistics.traffic import Statistics
from pyromq.net.connection import Connection
from pyromq.wire.answer_pieces import answer_pieces
from pyromq.wire.responses import refusal

#: Of the rest of the frame; of the header, with its form (0: JSON) in the high byte.
_LENGTHS = struct.Struct(">II")
#: The first bytes of a send's header. In JSON a quote inside a text has a backslash before it: a key searched for below
#: cannot be part of a text.
_SENDS = (b'{"code":310,', b'{"code":320,', b'{"code":10,')
_FLAG_NONE = re.compile(rb'"flag":0[,}]')
_CORRELATION = re.compile(rb'"opaque":(-?[0-9]{1,10})[,}]')


class RefusedSends:
    """A `FastPath` of the server that takes nothing unless the broker is busy."""

    def __init__(self, overload: Overload, statistics: Statistics) -> None:
        self._overload = overload
        self._statistics = statistics

    def take(self, data: memoryview, at: int, connection: Connection) -> int:
        """Refuse the sends at the front; where the first other frame begins."""
        reason = self._overload.reason()
        if reason is None:
            return at
        before, after = answer_pieces(refusal(busy(reason)))
        answers: list[bytes] = []
        while (found := _send_at(data, at)) is not None:
            at, correlation = found
            header = before + correlation + after
            answers.append(_LENGTHS.pack(4 + len(header), len(header)) + header)
        if answers:
            self._statistics.send_failed(len(answers))
            connection.put_bytes(b"".join(answers))
        return at


def _send_at(data: memoryview, at: int) -> tuple[int, bytes] | None:
    """Return the end and the correlation id of the send at this place; None if it is none, not whole, or unusual."""
    if len(data) - at < _LENGTHS.size:
        return None
    size, header_size = _LENGTHS.unpack_from(data, at)
    end = at + 4 + size
    if end > len(data) or header_size + 4 > size:  # a binary header has a length beyond any frame
        return None
    header = bytes(data[at + 8 : at + 8 + header_size])
    correlation = _CORRELATION.search(header)
    if correlation is None or not header.startswith(_SENDS) or _FLAG_NONE.search(header) is None:
        return None
    return end, correlation[1]
