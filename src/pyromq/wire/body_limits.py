"""The largest body of each request. Pure.

A body is parsed on the event loop, so its size bounds how long one request keeps all other clients waiting: one MiB of
the smallest JSON values takes about 30 ms to read. Bodies that are messages are bounded by the frame and by
`store.max_body_bytes`.
"""

from __future__ import annotations

from pyromq.errors import BadRequest
from pyromq.wire.codes import RequestCode, code_name

KIB, MIB = 1 << 10, 1 << 20

#: Most requests have no body at all; the others a small JSON object or some lines of settings.
DEFAULT_BYTES = 64 * KIB
#: JSON values in one body, however small they are: each is an object in memory, and one MiB has room for 350,000.
MAX_VALUES = 66_000
#: Settings in one body, a line each.
MAX_LINES = 2000

#: `None`: the body is a message, or a list that its reader takes in slices.
MAX_BODY_BYTES: dict[int, int | None] = {
    RequestCode.SEND_MESSAGE: None,
    RequestCode.SEND_MESSAGE_V2: None,
    RequestCode.SEND_BATCH_MESSAGE: None,
    RequestCode.SEND_REPLY_MESSAGE: None,
    RequestCode.SEND_REPLY_MESSAGE_V2: None,
    # To clients.
    RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: None,
    RequestCode.CONSUME_MESSAGE_DIRECTLY: None,
    RequestCode.CHECK_TRANSACTION_STATE: None,
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET: MIB,
    # Every subscription of a client: some 200 bytes each, at most 4096 of them.
    RequestCode.HEART_BEAT: MIB,
    # At most 16,384 queues of some 90 bytes.
    RequestCode.LOCK_BATCH_MQ: 2 * MIB,
    RequestCode.UNLOCK_BATCH_MQ: 2 * MIB,
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: MIB,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: MIB,
    # To name servers: all topics of a broker.
    RequestCode.REGISTER_BROKER: None,
    RequestCode.REGISTER_TOPIC_IN_NAMESRV: 256 * KIB,
}

_OF_LINES = (RequestCode.UPDATE_BROKER_CONFIG, RequestCode.UPDATE_NAMESRV_CONFIG)


def max_body_bytes(code: int) -> int | None:
    """Return the largest body of a request; `None` if only the frame limits it."""
    return MAX_BODY_BYTES.get(code, DEFAULT_BYTES)


def check_body(code: int, body: bytes) -> None:
    """Raise BadRequest if a body is larger than its request may have."""
    limit = max_body_bytes(code)
    if limit is None or not body:
        return
    if len(body) > limit:
        raise BadRequest(f"the body of {code_name(code)} has {len(body)} bytes; {limit} are the limit")
    if code in _OF_LINES:
        lines = body.count(b"\n") + body.count(b"\r")
        if lines > MAX_LINES:
            raise BadRequest(f"the body of {code_name(code)} has {lines} lines; {MAX_LINES} are the limit")
    elif len(body) > DEFAULT_BYTES:
        values = body.count(b",") + body.count(b"{") + body.count(b"[")
        if values > MAX_VALUES:
            raise BadRequest(f"the body of {code_name(code)} has {values} values; {MAX_VALUES} are the limit")
