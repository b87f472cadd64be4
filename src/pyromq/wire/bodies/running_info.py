"""A consumer's answer to an admin tool: its queues, its subscriptions, its state.

These are maps with queues for keys, in fastjson's dialect; the fields are RocketMQ's, all of them, because its tools
read numbers without looking whether they are there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pyromq.model.json_form import JsonObject
from pyromq.wire import fastjson
from pyromq.wire.bodies.locks import MessageQueue


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueState:
    """RocketMQ's ProcessQueueInfo."""

    committed: int
    #: The fetched messages that are not handled yet: 0 and 0 if there are none.
    first: int = 0
    last: int = 0
    messages: int = 0
    size: int = 0
    is_locked: bool = False
    locked_ms: int = 0
    is_dropped: bool = False
    fetched_ms: int = 0
    handled_ms: int = 0

    def to_json(self) -> JsonObject:
        return {
            "cachedMsgCount": self.messages,
            "cachedMsgMaxOffset": self.last,
            "cachedMsgMinOffset": self.first,
            "cachedMsgSizeInMiB": self.size >> 20,
            "commitOffset": self.committed,
            "droped": self.is_dropped,
            "lastConsumeTimestamp": self.handled_ms,
            "lastLockTimestamp": self.locked_ms,
            "lastPullTimestamp": self.fetched_ms,
            "locked": self.is_locked,
            "transactionMsgCount": 0,
            "transactionMsgMaxOffset": 0,
            "transactionMsgMinOffset": 0,
            "tryUnlockTimes": 0,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRates:
    """RocketMQ's ConsumeStatus: of the last while, messages and milliseconds."""

    fetch_ms: float = 0.0
    fetched_per_second: float = 0.0
    handle_ms: float = 0.0
    handled_per_second: float = 0.0
    failed_per_second: float = 0.0
    failed: int = 0

    def to_json(self) -> JsonObject:
        return {
            "consumeFailedMsgs": self.failed,
            "consumeFailedTPS": self.failed_per_second,
            "consumeOKTPS": self.handled_per_second,
            "consumeRT": self.handle_ms,
            "pullRT": self.fetch_ms,
            "pullTPS": self.fetched_per_second,
        }


def encode_running_info(
    properties: Mapping[str, str],
    subscriptions: Sequence[JsonObject],
    queues: Iterable[tuple[MessageQueue, QueueState]],
    topics: Mapping[str, TopicRates],
    stacks: str | None = None,
) -> bytes:
    """RocketMQ's ConsumerRunningInfo."""
    form: JsonObject = {
        "mqPopTable": {},
        "mqTable": fastjson.ObjectKeyed(tuple((queue.to_json(), state.to_json()) for queue, state in queues)),
        "properties": dict(properties),
        "statusTable": {topic: rates.to_json() for topic, rates in topics.items()},
        "subscriptionSet": list(subscriptions),
        "userConsumerInfo": {},
    }
    if stacks is not None:
        form["jstack"] = stacks
    return fastjson.dumps(form)


def encode_consumed_directly(*, is_ordered: bool, result: str, remark: str | None, spent_ms: int) -> bytes:
    """RocketMQ's ConsumeMessageDirectlyResult."""
    form: JsonObject = {
        "autoCommit": True,
        "consumeResult": result,
        "order": is_ordered,
        "remark": remark,
        "spentTimeMills": spent_ms,
    }
    return fastjson.dumps(form)
