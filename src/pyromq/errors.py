"""One tree for everything that can go wrong. The type says whose fault it is and what to do.

    PyroMQError
    ├── ConfigError                  a setting that cannot be used; names the setting
    ├── IllegalMessage               a message the store must not take: the sender's fault, retrying is no help
    │   ├── IllegalName              a topic or group that cannot be called so
    │   ├── OutOfSequence            a numbered message whose predecessor is missing; has the number that is expected
    │   └── RepeatNotFound           a numbered message that was stored once, and is not in the log any more
    ├── StoreError
    │   ├── StoreLocked              another process has the directory; names its pid
    │   ├── StoreClosed              used before it was opened or after it was closed
    │   ├── StoreFenced              a sync or our own code failed: nothing more is acknowledged, restart to recover
    │   ├── DiskFull                 appends are refused until there is room; reads go on
    │   │   └── TooManyFiles         no new queue: the process may not open many more files
    │   ├── BadRecord                bytes that must be a record are none, or a damaged one; says where among them
    │   ├── CorruptFile              a config file and its previous copy are both unreadable
    │   ├── StoreGone                its files were removed, renamed or replaced while it was open
    │   └── CorruptStore             bytes on disk are not what was written; names file and position
    │       ├── CorruptLog           a record below the synced mark is damaged: never cut silently
    │       └── CorruptQueue         a consume-queue entry disagrees with the log (rebuildable)
    ├── BackupError                  a backup that cannot be made, continued or restored as asked
    │   └── CorruptBackup            bytes in a backup are not what was saved; names file and position
    ├── ProtocolError
    │   ├── BadFrame                 bytes that are no frame, or one above a limit: nobody can be answered
    │   └── BadRequest               a request whose fields or body are not what its code needs
    ├── ServiceError                 a request that was understood and is not carried out; the type says why
    │   ├── NotSupported             nobody here knows this request
    │   ├── SystemBusy               too much to do right now: try again, or another broker
    │   ├── NotNow                   this server cannot do that in its present state
    │   │   └── QueueRebuilding      a damaged consume queue is being derived from the log: try again soon
    │   ├── EpochTooOld              a promotion with a number that has been: ask with a larger one
    │   ├── NotEnoughReplicas        too few copies are in sync for a message to be accepted
    │   ├── SlavesLate               stored here, and perhaps nowhere else: slaves did not report it in time
    │   ├── NoPermission             the topic, the group or the broker does not allow it
    │   │   └── WriterNotIssued      a numbered message without the proof of an identity that this broker issued
    │   ├── TopicNotFound            no such topic here, and none may be made
    │   ├── TopicExists              a topic of that name is there already
    │   ├── GroupNotFound            no such consumer group here, and none may be made
    │   ├── SubscriptionNotFound     the group does not subscribe to that topic here
    │   ├── SubscriptionNotLatest    the broker knows an older subscription: the client tries again
    │   ├── NotFound                 what was asked for (a key, an offset) is not there
    │   ├── ConsumerOffline          no such client is connected
    │   └── BrokerError              a broker's answer whose code has no type of its own here
    ├── CallFailed                   a request to another process got no answer
    │   ├── Unreachable              there is no connection, or it broke
    │   │   ├── NoMaster             no route names a master of it: it changes hands or starts again, or it is gone
    │   │   └── TlsFailed            somebody is there, but TLS with it did not come about
    │   └── CallTimeout              no answer in time: it may have been carried out or not
    ├── ClientError
    │   ├── SendError                a send that did not go well; has the error of each attempt
    │   │   ├── SendFailed           the message is certainly not stored
    │   │   └── SendUnknown          the message may be stored or not: find out before it is sent again
    │   ├── NoReply                  a request message was sent and nobody replied in time
    │   ├── DataLoss                 messages that were to be read are not there any more
    │   ├── ClientClosed             used before it was started or after it was stopped
    │   └── UnreadableBody           a body that says that it is compressed, and cannot be unpacked
    ├── LakeError                    the table that topics are archived in is not what it should be
    │   └── LakeConflict             somebody else committed to it first: nothing was added, run again
    ├── OffsetNotFound               the asked position or id holds no message
    ├── IllegalOffset                an offset, queue or name that an offset table cannot hold
    ├── FilterSyntaxError            a subscription that cannot be understood: the consumer's fault; says where
    ├── NotJson                      bytes that are no JSON, or nested too deep
    └── WrongShape                   JSON that is not what belongs there; says where

`code` is the response code that the remoting protocol has for the error; it is translated to the wire in one
place. Messages are for people: what happened, and what to do next.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path


class PyroMQError(Exception):
    """Base of every error that PyroMQ raises on purpose."""

    code = 1  # SYSTEM_ERROR


class ConfigError(PyroMQError):
    """A setting that cannot be used. `setting` is its name, where one setting is at fault."""

    code = 29  # INVALID_PARAMETER

    def __init__(self, message: str, setting: str | None = None) -> None:
        super().__init__(message)
        self.setting = setting


class IllegalMessage(PyroMQError):
    """A message that breaks a rule of the format: sending it again is no help."""

    code = 13  # MESSAGE_ILLEGAL


class IllegalName(IllegalMessage):
    """A topic or group that cannot be called so: its name becomes the name of a directory."""

    code = 29  # INVALID_PARAMETER


class OutOfSequence(IllegalMessage):
    """A numbered message that cannot follow what is stored. `expected` is the number that can: send again from it."""

    def __init__(self, message: str, expected: str) -> None:
        super().__init__(message)
        self.expected = expected


class RepeatNotFound(IllegalMessage):
    """A numbered message that was stored before and cannot be found in the log: neither acknowledged nor stored."""


class StoreError(PyroMQError):
    """Something about the store or the disk under it."""


class StoreLocked(StoreError):
    def __init__(self, root: Path, pid: int | None) -> None:
        self.root = root
        self.pid = pid
        holder = f"process {pid}" if pid else "another process"
        super().__init__(
            f"the store directory {root} is in use by {holder}; stop it first, or give this one a directory of its own"
        )


class StoreClosed(StoreError):
    code = 14  # SERVICE_NOT_AVAILABLE


class StoreFenced(StoreError):
    code = 14  # SERVICE_NOT_AVAILABLE

    def __init__(self, cause: BaseException) -> None:
        self.cause = cause
        what, remedy = _what_fenced(cause)
        super().__init__(
            f"{what}; what was waiting may or may not be stored and nothing more is accepted: {remedy}, and recovery "
            "starts from the log"
        )


class StoreGone(StoreError):
    """Files of a store were taken away while it was open: what is written to them is found by no start."""

    code = 14  # SERVICE_NOT_AVAILABLE

    def __init__(self, path: Path, how: str) -> None:
        self.path = path
        super().__init__(f"{path} was {how} while the store was open, so no start would find what is written now")


def _what_fenced(cause: BaseException) -> tuple[str, str]:
    if isinstance(cause, StoreGone):
        return str(cause), "put the store directory back, or restore it from a backup or a replica, then restart"
    if not isinstance(cause, OSError):
        return (
            f"the store found something wrong in its own work ({type(cause).__name__}: {cause})",
            "keep the lines of the log that tell where, and restart",
        )
    if cause.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
        return f"the system refused what the store needs ({cause})", "raise the limit, then restart"
    return f"the disk did not confirm a write ({cause})", "check the disk, then restart"


class DiskFull(StoreError):
    """No room. Of a call that appends several messages, `receipts` tells which were appended before."""

    code = 14  # SERVICE_NOT_AVAILABLE

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.receipts: Sequence[object] = ()


class TooManyFiles(DiskFull):
    """Each queue needs open files, and the last of them are kept for the queues that are there."""


class CorruptStore(StoreError):
    """Bytes on disk are not what was written there."""

    def __init__(self, file: Path, position: int, what: str, ways_out: str) -> None:
        self.file = file
        self.position = position
        self.what = what
        super().__init__(f"{file}: {what} at position {position}; {ways_out}")


class CorruptLog(CorruptStore):
    pass


class CorruptQueue(CorruptStore):
    pass


class CorruptFile(StoreError):
    """A small file and its previous copy are both unreadable."""


class BackupError(PyroMQError):
    """A backup that cannot be made, continued or restored as it was asked for."""


class CorruptBackup(BackupError):
    """Bytes in a backup are not what was saved there. `position` is of the log, or of a small file's first byte."""

    def __init__(self, file: str, position: int, what: str) -> None:
        self.file = file
        self.position = position
        self.what = what
        super().__init__(
            f"{file}: {what} at position {position}; use another copy of the backup, or an older manifest that does "
            "without this file"
        )


class BadRecord(StoreError):
    """Among bytes that must be records. `at` counts from the first of the bytes that were given."""

    def __init__(self, at: int, what: str) -> None:
        self.at = at
        self.what = what
        super().__init__(f"there is no whole record at byte {at}: {what}")


class OffsetNotFound(PyroMQError):
    """No message is stored at the position or id that was asked for."""

    code = 22  # QUERY_NOT_FOUND


class IllegalOffset(PyroMQError):
    """An offset, queue or name that the table cannot hold: the caller's fault."""

    code = 29  # INVALID_PARAMETER


class FilterSyntaxError(PyroMQError):
    """A subscription's expression that cannot be understood or is too large; `position` counts from 0."""

    code = 23  # SUBSCRIPTION_PARSE_FAILED

    def __init__(self, position: int, problem: str) -> None:
        self.position = position
        self.problem = problem
        super().__init__(f"the filter expression is wrong at character {position + 1}: {problem}")


class NotJson(PyroMQError):
    """Bytes that are no JSON, or JSON nested too deep. Says what is wrong with them."""


class WrongShape(PyroMQError):
    """JSON that parses but is not what belongs there. Says where and what was found."""


class ProtocolError(PyroMQError):
    """Bytes from the network that break the protocol: the sender's fault."""


class BadFrame(ProtocolError):
    """Bytes that are no frame, or a frame above a limit. What follows makes no sense: the connection is closed, unless
    it says whom to answer."""


class BadRequest(ProtocolError):
    """A request that has a form but not the fields or the body that its code needs."""

    code = 29  # INVALID_PARAMETER


class ServiceError(PyroMQError):
    """A request that was understood and is not carried out."""


class NotSupported(ServiceError):
    code = 3  # REQUEST_CODE_NOT_SUPPORTED


class SystemBusy(ServiceError):
    code = 2  # SYSTEM_BUSY


class NotNow(ServiceError):
    code = 14  # SERVICE_NOT_AVAILABLE


class QueueRebuilding(NotNow):
    """A consume queue was damaged and is being derived from the log: the same read succeeds soon."""


class EpochTooOld(ServiceError):
    """Somebody is to lead with a number that has been: another one may lead with it."""

    code = 2000  # CONTROLLER_FENCED_MASTER_EPOCH


class NotEnoughReplicas(ServiceError):
    """RocketMQ answers so (IN_SYNC_REPLICAS_NOT_ENOUGH) with the code for a fault of the system: clients try again."""


class SlavesLate(ServiceError):
    """`code` says whether a slave is slow (FLUSH_SLAVE_TIMEOUT) or there is none (SLAVE_NOT_AVAILABLE)."""

    def __init__(self, code: int) -> None:
        self.code = code
        super().__init__(SLAVES_LATE)


#: What the client is told with it.
SLAVES_LATE = "the message is stored here, and no slave has confirmed it in time: it may be lost with this machine"


class NoPermission(ServiceError):
    code = 16  # NO_PERMISSION


class WriterNotIssued(NoPermission):
    """A numbered message whose writer is not proved. `may_renew`: a new token of this broker would prove it."""

    def __init__(self, message: str, *, may_renew: bool) -> None:
        super().__init__(message)
        self.may_renew = may_renew


class TopicNotFound(ServiceError):
    code = 17  # TOPIC_NOT_EXIST


class TopicExists(ServiceError):
    code = 18  # TOPIC_EXIST_ALREADY


class GroupNotFound(ServiceError):
    code = 26  # SUBSCRIPTION_GROUP_NOT_EXIST


class SubscriptionNotFound(ServiceError):
    code = 24  # SUBSCRIPTION_NOT_EXIST


class SubscriptionNotLatest(ServiceError):
    code = 25  # SUBSCRIPTION_NOT_LATEST


class NotFound(ServiceError):
    code = 22  # QUERY_NOT_FOUND


class ConsumerOffline(ServiceError):
    code = 206  # CONSUMER_NOT_ONLINE


class CallFailed(PyroMQError):
    """A request to another process got no answer."""


class Unreachable(CallFailed):
    """There is no connection to it, or the connection broke before an answer came."""


class NoMaster(Unreachable):
    """No route names a master of it: it changes hands or starts again, or it is gone."""


class TlsFailed(Unreachable):
    """Somebody is there, but this client does not trust its certificate, or one of the two does not speak TLS."""


class CallTimeout(CallFailed):
    """No answer in time: it may have been carried out or not."""


class BrokerError(ServiceError):
    """A broker's answer whose code has no type of its own here."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class ClientError(PyroMQError):
    """Something about the client itself, or about what it was asked to do."""


class SendError(ClientError):
    """A send that did not go well. `attempts` has the error of each try, in order."""

    def __init__(self, message: str, attempts: Sequence[PyroMQError] = ()) -> None:
        super().__init__(message)
        self.attempts = tuple(attempts)


class SendFailed(SendError):
    """The message is certainly not stored."""


class SendUnknown(SendError):
    """The message may be stored or not. `receipt` is what the broker said of it, if it said something."""

    def __init__(self, message: str, attempts: Sequence[PyroMQError] = (), receipt: object = None) -> None:
        super().__init__(message, attempts)
        self.receipt = receipt


class NoReply(ClientError):
    """A request message was sent, and nobody replied in time: whoever handles it may do so yet."""


class DataLoss(ClientError):
    """Messages that were to be read are not there any more: retention removed them, or their topic was deleted."""


class ClientClosed(ClientError):
    """Used before it was started or after it was stopped."""


class UnreadableBody(ClientError):
    """A body that says that it is compressed, and cannot be unpacked."""


class LakeError(PyroMQError):
    """The table that topics are archived in is not what it should be."""


class LakeConflict(LakeError):
    """Somebody else committed to the lake first: nothing of ours is in it, and running again goes on from there."""
