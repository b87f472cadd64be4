"""Request and reply: a message that a consumer answers, and the delivery of the answer to the requester.

The wire form is that of RocketMQ's Java client. A request carries an id of its own, the client that waits and for how
long; its consumer sends the reply to the broker that the request came from, which hands it to that client at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager

from pyromq.client.message import Message
from pyromq.client.received import ReceivedMessage
from pyromq.errors import IllegalMessage
from pyromq.model.message import LOCALHOST, Draft, PackedHost
from pyromq.model.queue import MessageQueue
from pyromq.net.address import pack_address, parse_address
from pyromq.net.peer import Peer
from pyromq.records import property_names as names
from pyromq.records.properties import decode_properties
from pyromq.records.record import encode
from pyromq.wire.requests.client import PushReply
from pyromq.wire.responses import Response

log = logging.getLogger("pyromq.client")

REPLY_TYPE = "reply"


class Replies:
    """The requests of one client that wait for a reply."""

    def __init__(self) -> None:
        self._waiting: dict[str, asyncio.Future[ReceivedMessage]] = {}

    @contextmanager
    def expected(self, correlation_id: str) -> Iterator[asyncio.Future[ReceivedMessage]]:
        """The reply of a waiting request."""
        reply: asyncio.Future[ReceivedMessage] = asyncio.get_running_loop().create_future()
        self._waiting[correlation_id] = reply
        try:
            yield reply
        finally:
            del self._waiting[correlation_id]

    def take(self, pushed: PushReply, peer: Peer) -> Response:
        """A broker delivers a reply. A late one, without a waiting request, is accepted and dropped."""
        properties = decode_properties(pushed.properties.encode("utf-8", "replace"))
        waiting = self._waiting.get(properties.get(names.CORRELATION_ID, ""))
        if waiting is None or waiting.done():
            log.info("a reply came from %s that nobody waits for (any more)", peer.address)
        else:
            waiting.set_result(_received(pushed))
        return Response()


def request_properties(correlation_id: str, client_id: str, timeout_s: float) -> dict[str, str]:
    """Return the properties added to a request."""
    return {
        names.CORRELATION_ID: correlation_id,
        names.REPLY_TO_CLIENT: client_id,
        names.TIME_TO_LIVE: str(max(1, int(timeout_s * 1000))),
    }


def is_request(message: ReceivedMessage) -> bool:
    """Return whether a request waits for a reply to it."""
    return (
        message.get_property(names.CORRELATION_ID) is not None
        and message.get_property(names.REPLY_TO_CLIENT) is not None
    )


def reply_to(request: ReceivedMessage, body: bytes | str) -> tuple[Message, dict[str, str]]:
    """The reply to a request, and what it carries. Raises IllegalMessage for a message that asks for none."""
    cluster = request.get_property(names.CLUSTER)
    if cluster is None or not is_request(request):
        raise IllegalMessage(f"the message {request.message_id} asks for no reply: nobody waits for one")
    carried = {
        name: value
        for name in (names.CORRELATION_ID, names.REPLY_TO_CLIENT, names.TIME_TO_LIVE)
        if (value := request.get_property(name)) is not None
    }
    return Message(f"{cluster}_REPLY_TOPIC", body), {names.MESSAGE_TYPE: REPLY_TYPE, **carried}


def _received(pushed: PushReply) -> ReceivedMessage:
    """A reply in the form that every other received message has."""
    draft = Draft(
        topic=pushed.topic.encode(),
        queue_id=pushed.queue_id,
        body=pushed.body,
        properties=pushed.properties.encode("utf-8", "replace"),
        user_flag=pushed.user_flag,
        storage_flags=pushed.storage_flags,
        born_timestamp_ms=pushed.born_timestamp_ms,
        born_host=_packed(pushed.born_host),
        store_host=_packed(pushed.store_host),
        reconsume_times=pushed.reconsume_times,
    )
    record = encode(draft, 0, 0, pushed.store_timestamp_ms, with_crc=False)
    return ReceivedMessage(record, 0, len(record), MessageQueue(pushed.topic, "", pushed.queue_id), 0)


def _packed(address: str) -> PackedHost:
    try:
        return pack_address(*parse_address(address.removeprefix("/")))
    except ValueError:
        return LOCALHOST
