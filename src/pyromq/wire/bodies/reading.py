"""A JSON body as the value that it stands for; what cannot be one is the sender's fault."""

from __future__ import annotations

from typing import TypeVar

from pyromq.errors import BadRequest, NotJson, WrongShape
from pyromq.model.json_form import InJson, from_json
from pyromq.model.lenient_json import loads

Body = TypeVar("Body", bound=InJson)


def read_body(kind: type[Body], body: bytes, what: str, max_bytes: int | None = None) -> Body:
    """Raises BadRequest, which calls the body `what`."""
    if max_bytes is not None and len(body) > max_bytes:
        raise BadRequest(f"{what} has {len(body)} bytes, the limit is {max_bytes}")
    try:
        return from_json(kind, loads(body))
    except (NotJson, WrongShape) as problem:
        raise BadRequest(f"{what} cannot be read: {problem}") from None
