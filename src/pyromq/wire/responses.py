"""How a server answers: a code, typed fields, a body. Field names on the wire stand beside the attributes, once."""

from __future__ import annotations

from dataclasses import dataclass, field

from pyromq.errors import PyroMQError
from pyromq.wire.codes import ResponseCode
from pyromq.wire.command import FLAG_ANSWER, Body, Command
from pyromq.wire.fields import boolean, int32, int64, text, write_fields
from pyromq.wire.frames import body_pieces


@dataclass(slots=True, kw_only=True)
class Response:
    """Any answer. `more` are fields without a type of their own."""

    code: int = ResponseCode.SUCCESS
    reason: str | None = None
    body: Body = b""
    more: dict[str, str] = field(default_factory=dict)

    @property
    def body_bytes(self) -> int:
        return sum(map(len, body_pieces(self.body)))


def refusal(error: PyroMQError) -> Response:
    """An error as the answer that tells the client of it."""
    return Response(code=error.code, reason=str(error))


@dataclass(slots=True, kw_only=True)
class SendReceipt(Response):
    message_id: str | None = text("msgId", default=None)
    queue_id: int | None = int32("queueId", default=None)
    queue_offset: int | None = int64("queueOffset", default=None)
    transaction_id: str | None = text("transactionId", default=None)
    batch_unique_id: str | None = text("batchUniqId", default=None)
    recall_handle: str | None = text("recallHandle", default=None)


@dataclass(slots=True, kw_only=True)
class PullResult(Response):
    suggested_broker_id: int = int64("suggestWhichBrokerId", default=0)
    next_offset: int = int64("nextBeginOffset", default=0)
    min_offset: int = int64("minOffset", default=0)
    max_offset: int = int64("maxOffset", default=0)
    offset_delta: int | None = int64("offsetDelta", default=None)
    topic_flags: int | None = int32("topicSysFlag", default=None)
    group_flags: int | None = int32("groupSysFlag", default=None)
    forbidden_type: int | None = int32("forbiddenType", default=None)


@dataclass(slots=True, kw_only=True)
class OffsetAnswer(Response):
    offset: int | None = int64("offset", default=None)


@dataclass(slots=True, kw_only=True)
class StoreTimeAnswer(Response):
    timestamp_ms: int | None = int64("timestamp", default=None)


@dataclass(slots=True, kw_only=True)
class QueryAnswer(Response):
    index_timestamp_ms: int = int64("indexLastUpdateTimestamp", default=0)
    index_position: int = int64("indexLastUpdatePhyoffset", default=0)


@dataclass(slots=True, kw_only=True)
class HeartbeatAnswer(Response):
    supports_v2: bool = boolean("IS_SUPPORT_HEART_BEAT_V2", default=True)
    subscription_changed: bool = boolean("IS_SUB_CHANGE", default=False)


#: A reason may name what a client sent, and that may be long: peers refuse headers above some hundred KiB.
MAX_REASON = 2000


def _bounded(reason: str | None) -> str | None:
    return reason if reason is None or len(reason) <= MAX_REASON else f"{reason[:MAX_REASON]} …"


def answer_to(request: Command, response: Response) -> Command:
    """The command that answers another: same correlation id, same form of header. The body stays apart."""
    fields = write_fields(response)
    fields.update(response.more)
    return Command(
        code=response.code,
        fields=fields,
        correlation_id=request.correlation_id,
        flags=FLAG_ANSWER,
        reason=_bounded(response.reason),
        serialization=request.serialization,
    )
