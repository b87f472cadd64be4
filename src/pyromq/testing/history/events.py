"""The events between clients and brokers of which a history consists.

Times are seconds of one clock, the same for all events of a history. A request is recorded before it is
sent, and its outcome after it is known: only then does "before" in a history mean before. A `message_id` is
whatever names a message where it is sent and where it is received: its unique id, or a word in its body. `digest` is
of the body; it is compared where both ends give one.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

from pyromq.model.queue import MessageQueue

# --- sending ---------------------------------------------------------------------------------------------------------


class SendCalled(NamedTuple):
    """A client is about to send. `op` is the number of the operation in its outcome."""

    at: float
    client: str
    op: int
    topic: str
    message_id: str
    digest: str = ""
    #: Messages of one client and key are in order where each was acknowledged before the next was sent …
    key: str = ""
    #: … and this is their order. Below 0: not told.
    sequence: int = -1
    #: A delayed message must not be seen before this time.
    due: float | None = None
    #: A half message: it must not be seen before it is committed.
    transaction: bool = False
    #: The queue, if the client chose one itself.
    queue: MessageQueue | None = None


class SendOk(NamedTuple):
    """It was acknowledged: a promise. Of a delayed or half message the place is not the one where it will be read."""

    at: float
    op: int
    queue: MessageQueue
    offset: int


class SendFailed(NamedTuple):
    """The client says that it is certainly not stored."""

    at: float
    op: int
    why: str = ""


class SendUnknown(NamedTuple):
    """The outcome is unknown: it may be stored, now or later, or not."""

    at: float
    op: int
    why: str = ""


class Decided(NamedTuple):
    """The end of a half message is about to be told to the broker. Told twice, it is written down twice."""

    at: float
    op: int
    commit: bool


# --- reading the log -------------------------------------------------------------------------------------------------


class Read(NamedTuple):
    """A reader reads a queue from front to back without gaps. Another pass is another `client`."""

    at: float
    client: str
    queue: MessageQueue
    offset: int
    message_id: str
    digest: str = ""
    #: The position in the commit log. Below 0: unknown.
    position: int = -1
    #: The broker's store time. Absent: `at` counts.
    stored_at: float | None = None


class QueueEnd(NamedTuple):
    """A broker was asked at this time, and said that the queue ends here: no message has this offset or a higher."""

    at: float
    client: str
    queue: MessageQueue
    end: int


# --- consuming -------------------------------------------------------------------------------------------------------


class Subscribed(NamedTuple):
    """A group wants every message of a topic. A broadcasting one is written down as one group for each client."""

    at: float
    group: str
    topic: str
    #: Each queue is handled one message after the other.
    ordered: bool = False
    #: Those too that were sent before.
    from_first: bool = True


class Delivered(NamedTuple):
    """A handler is about to be called. A message that comes again may come from a queue of the retry topic."""

    at: float
    client: str
    group: str
    queue: MessageQueue
    offset: int
    message_id: str
    attempt: int = 1
    digest: str = ""


class Handled(NamedTuple):
    """The handler has returned, or has asked for the message again."""

    at: float
    client: str
    group: str
    queue: MessageQueue
    offset: int
    message_id: str
    again: bool = False


class DeadLettered(NamedTuple):
    """The group gave the message up, and it was put aside."""

    at: float
    group: str
    message_id: str


class Committed(NamedTuple):
    """The group's progress was told to the broker: everything before `offset` is done."""

    at: float
    client: str
    group: str
    queue: MessageQueue
    offset: int


class Reset(NamedTuple):
    """The group's offset was set on purpose."""

    at: float
    group: str
    queue: MessageQueue
    offset: int


# --- the world -------------------------------------------------------------------------------------------------------


class Fault(NamedTuple):
    """Something was broken on purpose; also a consumer that joins or leaves. Without any, nothing may come twice."""

    at: float
    what: str
    #: Progress that was told shortly before may be forgotten, as by a broker that was killed.
    forgets_progress: bool = False


Event: TypeAlias = (
    SendCalled
    | SendOk
    | SendFailed
    | SendUnknown
    | Decided
    | Read
    | QueueEnd
    | Subscribed
    | Delivered
    | Handled
    | DeadLettered
    | Committed
    | Reset
    | Fault
)
KINDS: dict[str, type[Any]] = {
    kind.__name__: kind
    for kind in (
        SendCalled, SendOk, SendFailed, SendUnknown, Decided, Read, QueueEnd, Subscribed, Delivered, Handled,
        DeadLettered, Committed, Reset, Fault,
    )
}  # fmt: skip


def to_json(event: Event) -> dict[str, Any]:
    """`{"event": "SendOk", "at": 1.5, …}`, with a queue as a list."""
    told: dict[str, Any] = {"event": type(event).__name__, **event._asdict()}
    if told.get("queue") is not None:
        told["queue"] = list(told["queue"])
    return told


def from_json(told: dict[str, Any]) -> Event:
    """Raise KeyError or TypeError for an invalid event."""
    fields = dict(told)
    kind = KINDS[fields.pop("event")]
    if fields.get("queue") is not None:
        fields["queue"] = MessageQueue(*fields["queue"])
    event: Event = kind(**fields)
    return event
