"""Every request has a largest body, and a body that is larger is refused before it is read."""

from __future__ import annotations

import pytest

from pyromq.errors import BadRequest
from pyromq.wire.body_limits import DEFAULT_BYTES, MAX_BODY_BYTES, MAX_LINES, MAX_VALUES, check_body, max_body_bytes
from pyromq.wire.codes import RequestCode

MIB = 1 << 20
#: Bodies that are messages, or that are read in slices.
UNLIMITED = {code for code, limit in MAX_BODY_BYTES.items() if limit is None}


@pytest.mark.parametrize("code", sorted(set(RequestCode) - UNLIMITED))
def test_no_body_that_is_read_at_once_is_large(code: RequestCode) -> None:
    limit = max_body_bytes(code)
    assert limit is not None
    assert limit <= 2 * MIB
    check_body(code, b"x" * limit)
    with pytest.raises(BadRequest, match=f"{code.name} has {limit + 1} bytes"):
        check_body(code, b"x" * (limit + 1))


@pytest.mark.parametrize("code", [code for code, limit in MAX_BODY_BYTES.items() if limit and limit > DEFAULT_BYTES])
def test_a_body_has_not_more_values_than_fit_into_memory(code: int) -> None:
    with pytest.raises(BadRequest, match="values"):
        check_body(code, b"[" + b"0," * MAX_VALUES + b"0]")


@pytest.mark.parametrize("code", [RequestCode.UPDATE_BROKER_CONFIG, RequestCode.UPDATE_NAMESRV_CONFIG])
def test_settings_have_not_more_lines_than_there_are_settings(code: RequestCode) -> None:
    check_body(code, b"a=1\n" * MAX_LINES)
    for end in (b"\n", b"\r"):
        with pytest.raises(BadRequest, match="lines"):
            check_body(code, b"a" + end * (MAX_LINES + 1))


def test_messages_are_bounded_by_the_frame() -> None:
    check_body(RequestCode.SEND_MESSAGE_V2, bytes(16 * MIB))
