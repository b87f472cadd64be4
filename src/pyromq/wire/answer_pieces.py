"""An answer that is made again and again, cut where its values stand: the pieces between them are made once.

The ordinary encoder writes it, so that there is one definition of its shape.
"""

from __future__ import annotations

from pyromq.wire.command import Command
from pyromq.wire.header import encode_header
from pyromq.wire.responses import Response, answer_to

#: Stands for the correlation id.
_CORRELATION = 1_333_333_333


def answer_pieces(response: Response, *values: str | int) -> list[bytes]:
    """The pieces of a JSON header around these values, which stand in it once and in this order, and around the
    correlation id, which comes last."""
    rest = encode_header(answer_to(Command(code=0, correlation_id=_CORRELATION), response))
    pieces: list[bytes] = []
    for value in (*values, _CORRELATION):
        piece, found, rest = rest.partition(str(value).encode())
        assert found, f"the header of {type(response).__name__} has another order of fields"
        pieces.append(piece)
    return [*pieces, rest]
