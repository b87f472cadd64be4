"""The driver's part of mode transactional, and the answers to brokers that ask what became of a half.

`commit` is given what the tasks of a batch wrote. It writes one decision (see `sink_decisions`), and ends all halves by
it. What can fail where, and what happens then:

    a task fails, or its executor dies     no decision names the attempt: it rolls its halves back itself if it can,
                                           else they are rolled back when their broker asks
    a half is sent and no answer comes     it is sent again under another number, and the first number is void
    driver dies before the decision        nothing is decided; the batch is replayed by other attempts, and the first
                                           ones' halves are rolled back when brokers ask
    the decision gets no answer            it is sent again until it is acknowledged; if that fails the batch fails, and
                                           nothing is rolled back: the decision may stand
    driver dies behind the decision,       the replayed batch finds itself decided and rolls its new halves back; the
    or while halves are being ended        first ones are committed when brokers ask
    two drivers decide one batch           the first decision in the queue counts for both
    a broker dies                          halves and decision are in its log; ends are sent again
    a later batch is decided               so are all before it: halves that no decision names are rolled back

Brokers ask any process of the producer group, and all sinks of a cluster are in the same one unless the option `group`
says otherwise: a query that ended for good needs only some sink to run.

Apache RocketMQ's brokers may store a message twice if its end is sent twice, or if they checked before the end
arrived. So each end is sent once; and none if the batch took longer than `transactionPatience`, because then the
checks have begun.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from weakref import WeakKeyDictionary

from pyromq.client.received import ReceivedMessage, split_records
from pyromq.client.session import Session
from pyromq.client.transaction_producer import Decision as End
from pyromq.errors import PyroMQError, TopicNotFound
from pyromq.model.queue import MessageQueue
from pyromq.net.peer import Peer
from pyromq.records import property_names as names
from pyromq.spark.sink.decision_topic import DecisionTopic
from pyromq.spark.sink.decisions import STAMP, BatchDecision, end_of, parse_stamp
from pyromq.spark.sink.halves import Ended, Ending, Handles, Written, check_committed
from pyromq.spark.sink.outlet import Patience, patiently
from pyromq.wire.requests.client import CheckTransaction, EndTransaction

log = logging.getLogger("pyromq.spark")

#: Send no ends to Apache's brokers this long before the patience ends: they apply an end some seconds later, and
#: would check in between.
SAFE_SHARE = 0.2
SAFE_SECONDS = 5.0

#: A query that stood still for days cannot be told from one that continues after quiet days.
FORGOTTEN = (
    "no decision of the query %s is left, for brokers keep messages only for some days: if it stopped so long ago in "
    "the middle of batch %d, the rows of this batch may be there twice now"
)


class Transactions:
    """The driver's steps at the end of a batch."""

    def __init__(
        self,
        session: Session,
        topic: DecisionTopic,
        group: str,
        patience: Patience,
        half_patience_s: int,
        now_ms: Callable[[], int],
    ) -> None:
        self._topic = topic
        self._patience = patience
        self._ending = Ending(session, group, patience)
        self._half_patience_s = half_patience_s
        self._now_ms = now_ms

    async def commit(self, written: Sequence[Written], batch: int) -> bool:
        """Decide the batch and end its halves. False when it was decided before, by others: then these are undone.

        Raises what a send raises while nothing is known to be decided, and SendUnknown when a decided message was
        refused.
        """
        parts = [one for one in written if one.attempt is not None and one.halves]
        if not parts:
            return True
        counts = await patiently(lambda: self._decision_for(parts[0].query, batch, parts), self._patience)
        chosen = [part for part in parts if counts is not None and _is_named(part, counts)]
        others = [part for part in parts if part not in chosen]
        await self._roll_back(others)
        if chosen:
            told, left = self._tellable(chosen)
            ended = await self._ending.end(told, End.COMMIT)
            _report(ended, left, batch)
            check_committed(ended, batch)
        return not others

    async def _decision_for(self, query: str, batch: int, parts: Sequence[Written]) -> BatchDecision | None:
        """The one that counts; None: the batch was over before."""
        view = await self._topic.view(query, batch)
        if view.of(batch) is None and view.last is not None and view.last.batch > batch:
            log.warning("batch %d of %s was over before: what was written again is undone", batch, query)
            return None
        if batch > 0 and view.last is None and not view.is_enough(batch):
            log.warning(FORGOTTEN, query, batch)
        attempts = {part.partition: part.attempt for part in parts if part.attempt is not None}
        return await self._topic.decide(query, batch, BatchDecision(query, batch, attempts))

    def _tellable(self, parts: Sequence[Written]) -> tuple[list[Handles], int]:
        """The halves whose end brokers may be told, and how many they will ask for by themselves."""
        told: list[Handles] = []
        left = 0
        latest_s = self._half_patience_s - max(self._half_patience_s * SAFE_SHARE, SAFE_SECONDS)
        for part in parts:
            is_old = self._now_ms() - part.began_ms > latest_s * 1000
            told += [half for half in part.halves if half.may_repeat or not is_old]
            left += sum(len(half) for half in part.halves if is_old and not half.may_repeat)
        return told, left

    async def abort(self, written: Sequence[Written | None], batch: int) -> None:
        """The batch failed. When every task had succeeded its decision may be written: then nothing is touched."""
        if any(one is None for one in written):
            await self._roll_back([one for one in written if one is not None])
        else:
            log.warning("batch %d failed at its end: what becomes of it is settled when brokers ask", batch)

    async def _roll_back(self, parts: Sequence[Written]) -> None:
        """Leave the rest to the brokers' check: that is no error."""
        halves = [half for part in parts for half in part.halves]
        if halves:
            ended = await self._ending.end(halves, End.ROLLBACK)
            log.info("%d halves are rolled back, %d are left", ended.done, ended.left + len(ended.refused))


def _is_named(part: Written, decision: BatchDecision) -> bool:
    named = decision.attempts.get(part.partition)
    return named is not None and part.attempt is not None and named.name == part.attempt.name


def _report(ended: Ended, left: int, batch: int) -> None:
    if ended.left + left:
        log.warning("batch %d: %d messages are committed when their brokers ask for them", batch, ended.left + left)


# --- being asked -----------------------------------------------------------------------------------------------------


class CheckBacks:
    """Answers brokers that ask what became of halves."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._topics: dict[str, DecisionTopic] = {}
        session.on(CheckTransaction, self._asked)

    async def join(self, group: str, topic: DecisionTopic) -> None:
        """Brokers that are known hear that this process answers for the group."""
        self._topics.setdefault(group, topic)
        self._session.producer_groups.add(group)
        await self._session.introduce()

    def _asked(self, request: CheckTransaction, peer: Peer) -> None:
        queue = MessageQueue(request.topic or "", request.broker_name or "", 0)
        (message,) = split_records(request.body, queue)
        topic = self._topics.get(message.get_property(names.PRODUCER_GROUP) or "")
        if topic is not None:
            self._session.spawn(self._answer(request, message, topic, peer))

    async def _answer(
        self, request: CheckTransaction, message: ReceivedMessage, topic: DecisionTopic, peer: Peer
    ) -> None:
        try:
            decision = await decided_end(topic, message.get_property(STAMP) or "")
        except (PyroMQError, ValueError, TimeoutError) as error:
            log.warning("a broker asked for a half, and nobody knows: %s", error)
            decision = End.UNKNOWN
        peer.tell(
            EndTransaction(
                topic=request.topic,
                producer_group=message.get_property(names.PRODUCER_GROUP) or "",
                half_offset=request.half_offset,
                half_position=request.half_position,
                decision=decision.value,
                from_check=True,
                message_id=message.message_id,
                transaction_id=request.transaction_id,
            )
        )


async def decided_end(topic: DecisionTopic, stamp_text: str) -> End:
    """Return the decided fate of the half with this stamp. Raises ValueError for an invalid stamp."""
    stamp = parse_stamp(stamp_text)
    try:
        view = await topic.view(stamp.query, stamp.batch)
    except TopicNotFound:
        return End.UNKNOWN
    return end_of(stamp, view.of(stamp.batch), is_past=view.is_past(stamp.batch))


_answering: WeakKeyDictionary[Session, CheckBacks] = WeakKeyDictionary()


def check_backs_of(session: Session) -> CheckBacks:
    """The one of a session."""
    if session not in _answering:
        _answering[session] = CheckBacks(session)
    return _answering[session]
