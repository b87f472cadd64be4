"""One pull: the question that fetches messages for Spark, where it goes, and what its answer says.

No group or subscription is needed: the request has its own filter, and commits no
offset.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from pyromq.client.session import Session
from pyromq.errors import IllegalMessage, Unreachable
from pyromq.filters.subscription import EVERYTHING, SQL92, TAG
from pyromq.model.queue import MessageQueue
from pyromq.spark.source.options import Pulling
from pyromq.wire.codes import ResponseCode
from pyromq.wire.command import Command
from pyromq.wire.fields import read_fields
from pyromq.wire.requests.client import PullMessage
from pyromq.wire.responses import PullResult

MASTER = 0
#: Carries a subscription; is not held.
FLAGS = 4
#: The answers that say where to go on.
EXPECTED = frozenset({
    ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
})  # fmt: skip
#: Sample this many messages for the mean size.
SAMPLE = 32
SAMPLE_BYTES = 64 << 10


@dataclass(slots=True)
class Answer:
    """A broker's answer to a pull."""

    code: int
    #: Records as they are in the log, one behind the other.
    body: bytes
    next_offset: int
    min_offset: int
    max_offset: int
    #: The broker to pull from next.
    broker_id: int


def question(pulling: Pulling, queue: MessageQueue, offset: int, count: int, max_bytes: int) -> PullMessage:
    return PullMessage(
        group=pulling.group,
        topic=queue.topic,
        queue_id=queue.queue_id,
        offset=offset,
        max_messages=count,
        flags=FLAGS,
        subscription=pulling.sql or pulling.tags or EVERYTHING,
        expression_type=SQL92 if pulling.sql else TAG,
        max_bytes=max_bytes,
    )


def read_answer(answer: Command, queue: MessageQueue) -> Answer:
    """Raises IllegalMessage for an answer that does not say where to go on."""
    if "nextBeginOffset" not in answer.fields:
        raise IllegalMessage(f"{queue.broker_name} answered a pull of {queue.topic} without saying where to go on")
    said = PullResult(**read_fields(PullResult, answer.fields))
    return Answer(
        answer.code, answer.body, said.next_offset, said.min_offset, said.max_offset, said.suggested_broker_id
    )


async def address_of(session: Session, queue: MessageQueue, broker_id: int) -> tuple[int, str]:
    """Return the address of a broker by id; of the first known one if that id is unknown. Raises Unreachable."""
    if not session.routes.addresses(queue.broker_name):
        await session.routes.of(queue.topic)
    addresses = session.routes.addresses(queue.broker_name)
    if not addresses:
        raise Unreachable(f"the name servers know no address of the broker {queue.broker_name}")
    chosen = broker_id if broker_id in addresses else min(addresses)
    return chosen, addresses[chosen]


async def size_of_messages(session: Session, pulling: Pulling, queue: MessageQueue, offset: int) -> float:
    """Return the mean bytes per offset of some messages from there on; smaller if the broker filters. 0 if there are
    none."""
    _, address = await address_of(session, queue, MASTER)
    request = question(pulling, queue, offset, SAMPLE, SAMPLE_BYTES)
    answer = read_answer(await session.ask(address, request, ok=EXPECTED), queue)
    return len(answer.body) / max(answer.next_offset - offset, 1)


class Verdict(Enum):
    """Classify an answer for the reader of a planned range of offsets."""

    TAKE = auto()
    #: Nothing for us up to the next offset: the broker filters, or there is a hole. That is no loss.
    SKIP = auto()
    #: It makes no sense, or will be different in a moment.
    AGAIN = auto()
    #: The queue begins behind the offset.
    GONE = auto()
    #: The queue ends at the offset or before it.
    ENDED = auto()


def judge(answer: Answer, offset: int) -> Verdict:
    if answer.code == ResponseCode.SUCCESS and answer.body and answer.next_offset > offset:
        return Verdict.TAKE
    if answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY and answer.next_offset > offset:
        return Verdict.SKIP
    if answer.code == ResponseCode.PULL_OFFSET_MOVED and offset < answer.min_offset:
        return Verdict.GONE
    is_about_the_end = answer.code in (ResponseCode.PULL_OFFSET_MOVED, ResponseCode.PULL_NOT_FOUND)
    return Verdict.ENDED if is_about_the_end and offset >= answer.max_offset else Verdict.AGAIN
