"""Requests of brokers to a consumer, most of them for `mqadmin`: its state, offset resets, direct messages."""

from __future__ import annotations

import asyncio
import logging
import sys
import traceback
from collections.abc import Awaitable, Callable, Sequence

from pyromq.client.consuming.queue_worker import Lane, LockState
from pyromq.client.group.member import Member
from pyromq.client.received import ReceivedMessage, split_records
from pyromq.errors import BadRequest
from pyromq.model.queue import MessageQueue
from pyromq.net.peer import Peer
from pyromq.records import layout
from pyromq.wire.bodies.heartbeat import subscription_form
from pyromq.wire.bodies.locks import MessageQueue as WireQueue
from pyromq.wire.bodies.offsets import decode_reset, encode_client_status
from pyromq.wire.bodies.running_info import QueueState, TopicRates, encode_consumed_directly, encode_running_info
from pyromq.wire.requests.admin import AskConsumerStatus, ConsumeDirectly, GetRunningInfo, ResetClientOffsets
from pyromq.wire.responses import Response

log = logging.getLogger("pyromq.client")

#: The client version shown to people; RocketMQ's tools expect one of their names.
CLIENT_VERSION = "V5_5_0"
MAX_REMARK = 1000


class Questions:
    """Answers for one consumer."""

    def __init__(
        self,
        member: Member,
        name_servers: Sequence[str],
        handle: Callable[[ReceivedMessage], Awaitable[None]] | None = None,
    ) -> None:
        self._member = member
        self._name_servers = name_servers
        #: None: this consumer has no handlers, its program asks for messages.
        self._handle = handle
        self._started_ms = member.session.clock.now_ms()

    def listen(self) -> None:
        session = self._member.session
        session.on(GetRunningInfo, self.running_info)
        session.on(AskConsumerStatus, self.status)
        session.on(ResetClientOffsets, self.reset)
        if self._handle is not None:
            session.on(ConsumeDirectly, self.consume_directly)

    # --- how it is doing ---------------------------------------------------------------------------------------------

    def running_info(self, request: GetRunningInfo, peer: Peer) -> Response:
        described = self._member.describe()
        return Response(
            body=encode_running_info(
                self._properties(described.consume_type),
                [subscription_form(one) for one in described.subscriptions],
                [(_wire(lane.queue), self._state(lane)) for lane in self._lanes()],
                {one.topic: TopicRates() for one in described.subscriptions},
                _stacks() if request.with_stacks else None,
            )
        )

    def _properties(self, consume_type: str) -> dict[str, str]:
        settings = self._member.settings
        return {
            "PROP_CLIENT_VERSION": CLIENT_VERSION,
            "PROP_CONSUMEORDERLY": "true" if settings.ordered else "false",
            "PROP_CONSUMER_START_TIMESTAMP": str(self._started_ms),
            "PROP_CONSUME_TYPE": consume_type,
            "PROP_NAMESERVER_ADDR": ";".join(self._name_servers),
            "PROP_THREADPOOL_CORE_SIZE": str(settings.concurrency),
            "consumerGroup": settings.group,
            "messageModel": settings.model,
        }

    def _state(self, lane: Lane) -> QueueState:
        queue = lane.process_queue
        first, last = queue.bounds() or (0, 0)
        clock = self._member.session.clock
        return QueueState(
            committed=lane.committable or 0,
            first=first,
            last=last,
            messages=queue.buffered_messages,
            size=queue.buffered_bytes,
            is_locked=lane.lock_state is LockState.HELD,
            locked_ms=int(clock.now_ms() - (clock.monotonic() - lane.locked_at) * 1000) if lane.locked_at else 0,
            fetched_ms=lane.fetched_ms,
            handled_ms=lane.handled_ms,
        )

    def _lanes(self) -> list[Lane]:
        return sorted(self._member.lanes.values(), key=lambda lane: lane.queue)

    def status(self, request: AskConsumerStatus, peer: Peer) -> Response:
        lanes = [lane for lane in self._lanes() if lane.queue.topic == request.topic]
        return Response(body=encode_client_status((_wire(lane.queue), lane.committable or 0) for lane in lanes))

    # --- requests that change something ------------------------------------------------------------------------------

    def reset(self, request: ResetClientOffsets, peer: Peer) -> Awaitable[Response]:
        return self._reset(request)

    async def _reset(self, request: ResetClientOffsets) -> Response:
        """Raises BadRequest."""
        for place, offset in decode_reset(request.body).items():
            queue = MessageQueue(*place)
            if queue in self._member.lanes:
                log.warning("%s/%d goes on at %d: somebody reset the group", queue.topic, queue.queue_id, offset)
                await self._member.seek(queue, offset)
        return Response()

    def consume_directly(self, request: ConsumeDirectly, peer: Peer) -> Awaitable[Response]:
        return self._consume_directly(request)

    async def _consume_directly(self, request: ConsumeDirectly) -> Response:
        """Raises BadRequest."""
        clock = self._member.session.clock
        message = _message_in(request)
        began = clock.monotonic()
        result, remark = await self._outcome(message)
        spent_ms = int((clock.monotonic() - began) * 1000)
        is_ordered = self._member.settings.ordered
        return Response(
            body=encode_consumed_directly(is_ordered=is_ordered, result=result, remark=remark, spent_ms=spent_ms)
        )

    async def _outcome(self, message: ReceivedMessage) -> tuple[str, str | None]:
        assert self._handle is not None
        try:
            await self._handle(message)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001  the tool gets the error
            return "CR_THROW_EXCEPTION", f"{type(error).__name__}: {error}"[:MAX_REMARK]
        return "CR_SUCCESS", None


def _wire(queue: MessageQueue) -> WireQueue:
    return WireQueue(*queue)


def _message_in(request: ConsumeDirectly) -> ReceivedMessage:
    if len(request.body) < layout.HEAD.size:
        raise BadRequest("there is no message to consume in the request")
    queue = MessageQueue(request.topic or "", request.broker_name or "", layout.queue_id_of(request.body))
    messages = split_records(request.body, queue)
    if len(messages) != 1:
        raise BadRequest("one message is consumed directly, not several")
    return messages[0]


def _stacks() -> str:
    """Return the stack of every thread."""
    return "\n".join(
        f"thread {thread}\n{''.join(traceback.format_stack(frame))}" for thread, frame in sys._current_frames().items()
    )
