"""The errors that PyroMQ raises. The type says which side is at fault and whether a retry helps.

    PyroMQError
    ├── ConfigError                  an invalid setting; names the setting
    ├── IllegalMessage               an invalid message: the sender's fault, a retry does not help
    │   ├── IllegalName              an invalid name of a topic or group
    │   ├── OutOfSequence            a numbered message whose predecessor is missing; has the expected number
    │   └── RepeatNotFound           a repeated numbered message whose original is no longer in the log
    ├── StoreError
    │   ├── StoreLocked              another process has the directory; names its pid
    │   ├── StoreClosed              used before it was opened or after it was closed
    │   ├── StoreFenced              a write or sync failed: nothing more is acknowledged, restart to recover
    │   ├── DiskFull                 appends are refused until there is free space; reads continue
    │   │   └── TooManyFiles         no new queue: the process is near its limit of open files
    │   ├── BadRecord                the bytes are no record, or a damaged one; has the position
    │   ├── CorruptFile              a config file and its previous copy are both unreadable
    │   ├── StoreGone                files of an open store were removed, renamed or replaced
    │   └── CorruptStore             damaged bytes on disk; names file and position
    │       ├── CorruptLog           a damaged record below the synced mark: never cut silently
    │       └── CorruptQueue         a consume-queue entry disagrees with the log (rebuildable)
    ├── BackupError                  a backup that cannot be made, continued or restored as asked
    │   └── CorruptBackup            damaged bytes in a backup; names file and position
    ├── ProtocolError
    │   ├── BadFrame                 bytes that are no frame, or a frame above a limit: no answer is possible
    │   └── BadRequest               a request with missing or invalid fields or an invalid body
    ├── ServiceError                 a valid request that is refused; the type says why
    │   ├── NotSupported             this server does not handle the request code
    │   ├── SystemBusy               the server is overloaded: try again, or another broker
    │   ├── NotNow                   this server cannot do that in its present state
    │   │   └── QueueRebuilding      a damaged consume queue is being derived from the log: try again soon
    │   ├── EpochTooOld              a promotion with an epoch that is already used: ask with a larger one
    │   ├── NotEnoughReplicas        too few replicas are in sync to accept a message
    │   ├── SlavesLate               stored on the master; slaves did not confirm it in time
    │   ├── NoPermission             the topic, the group or the broker does not allow it
    │   │   └── WriterNotIssued      a numbered message without a valid token for its producer id
    │   ├── TopicNotFound            the topic does not exist and is not created automatically
    │   ├── TopicExists              the topic exists already
    │   ├── GroupNotFound            the consumer group does not exist and is not created automatically
    │   ├── SubscriptionNotFound     the group does not subscribe to that topic on this broker
    │   ├── SubscriptionNotLatest    the broker has an older subscription: the client tries again
    │   ├── NotFound                 there is no such key or offset
    │   ├── ConsumerOffline          no such client is connected
    │   └── BrokerError              a response code without an error type of its own
    ├── CallFailed                   a request to another process got no answer
    │   ├── Unreachable              there is no connection, or it broke
    │   │   ├── NoMaster             no route names a master: it is failing over, restarting or gone
    │   │   └── TlsFailed            the server answers, but the TLS handshake failed
    │   └── CallTimeout              no answer in time: the request may have been executed or not
    ├── ClientError
    │   ├── SendError                a send without success; has the error of each attempt
    │   │   ├── SendFailed           the message is certainly not stored
    │   │   └── SendUnknown          the message may be stored or not: find out before sending it again
    │   ├── NoReply                  a request message got no reply in time
    │   ├── DataLoss                 messages to read have been removed
    │   ├── ClientClosed             used before it was started or after it was closed
    │   └── UnreadableBody           a compressed body that cannot be decompressed
    ├── LakeError                    the archive's table cannot be used
    │   └── LakeConflict             another job committed first: nothing was added, run again
    ├── OffsetNotFound               there is no message at the given position or id
    ├── IllegalOffset                an offset, queue or name that an offset table cannot hold
    ├── FilterSyntaxError            an invalid subscription expression: the consumer's fault; has the position
    ├── NotJson                      bytes that are no JSON, or nested too deep
    └── WrongShape                   JSON of an unexpected structure; says where

`code` is the response code of the remoting protocol. Error texts say what happened and what to do next.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path


class PyroMQError(Exception):
    """Base of every error that PyroMQ raises on purpose."""

    code = 1  # SYSTEM_ERROR


class ConfigError(PyroMQError):
    """An invalid setting. `setting` is its name; `None` if no single setting is at fault."""

    code = 29  # INVALID_PARAMETER

    def __init__(self, message: str, setting: str | None = None) -> None:
        super().__init__(message)
        self.setting = setting


class IllegalMessage(PyroMQError):
    """A message that breaks a rule of the format: sending it again does not help."""

    code = 13  # MESSAGE_ILLEGAL


class IllegalName(IllegalMessage):
    """An invalid name of a topic or group; names become directories."""

    code = 29  # INVALID_PARAMETER


class OutOfSequence(IllegalMessage):
    """A numbered message with a gap before it. `expected` is the next number: send again from it."""

    def __init__(self, message: str, expected: str) -> None:
        super().__init__(message)
        self.expected = expected


class RepeatNotFound(IllegalMessage):
    """A repeated numbered message whose original is not in the log: neither acknowledged nor stored."""


class StoreError(PyroMQError):
    """An error of the store or its disk."""


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
    """Files of an open store were removed: a restart would not find later writes."""

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
    """The disk is full. `receipts` has the messages of the same call that were appended before."""

    code = 14  # SERVICE_NOT_AVAILABLE

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.receipts: Sequence[object] = ()


class TooManyFiles(DiskFull):
    """Each queue needs open files, and the last descriptors are reserved for existing queues."""


class CorruptStore(StoreError):
    """Damaged bytes on disk."""

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
    """A backup that cannot be made, continued or restored as asked."""


class CorruptBackup(BackupError):
    """Damaged bytes in a backup. `position` is in the log, or the first byte of a small file."""

    def __init__(self, file: str, position: int, what: str) -> None:
        self.file = file
        self.position = position
        self.what = what
        super().__init__(
            f"{file}: {what} at position {position}; use another copy of the backup, or an older manifest that does "
            "without this file"
        )


class BadRecord(StoreError):
    """The bytes are no record, or a damaged one. `at` is the index in the given bytes."""

    def __init__(self, at: int, what: str) -> None:
        self.at = at
        self.what = what
        super().__init__(f"there is no whole record at byte {at}: {what}")


class OffsetNotFound(PyroMQError):
    """There is no message at the given position or id."""

    code = 22  # QUERY_NOT_FOUND


class IllegalOffset(PyroMQError):
    """An offset, queue or name that the table cannot hold: the caller's fault."""

    code = 29  # INVALID_PARAMETER


class FilterSyntaxError(PyroMQError):
    """A subscription expression that is invalid or too large; `position` counts from 0."""

    code = 23  # SUBSCRIPTION_PARSE_FAILED

    def __init__(self, position: int, problem: str) -> None:
        self.position = position
        self.problem = problem
        super().__init__(f"the filter expression is wrong at character {position + 1}: {problem}")


class NotJson(PyroMQError):
    """Bytes that are no JSON, or JSON nested too deep."""


class WrongShape(PyroMQError):
    """JSON of an unexpected structure. The text says where, and which value was found."""


class ProtocolError(PyroMQError):
    """Bytes from the network that break the protocol: the sender's fault."""


class BadFrame(ProtocolError):
    """Bytes that are no frame, or a frame above a limit. The connection is closed, unless the frame can be answered."""


class BadRequest(ProtocolError):
    """A request with missing or invalid fields or an invalid body."""

    code = 29  # INVALID_PARAMETER


class ServiceError(PyroMQError):
    """A valid request that is refused."""


class NotSupported(ServiceError):
    code = 3  # REQUEST_CODE_NOT_SUPPORTED


class SystemBusy(ServiceError):
    code = 2  # SYSTEM_BUSY


class NotNow(ServiceError):
    code = 14  # SERVICE_NOT_AVAILABLE


class QueueRebuilding(NotNow):
    """A damaged consume queue is being derived from the log: the same read succeeds soon."""


class EpochTooOld(ServiceError):
    """A promotion with an epoch that is already used: another broker may lead with it."""

    code = 2000  # CONTROLLER_FENCED_MASTER_EPOCH


class NotEnoughReplicas(ServiceError):
    """Too few replicas are in sync. RocketMQ answers with SYSTEM_ERROR, too, so that clients try again."""


class SlavesLate(ServiceError):
    """Stored on the master only. `code` is FLUSH_SLAVE_TIMEOUT for a slow slave, SLAVE_NOT_AVAILABLE for none."""

    def __init__(self, code: int) -> None:
        self.code = code
        super().__init__(SLAVES_LATE)


#: Text of a `SlavesLate` answer.
SLAVES_LATE = "the message is stored here, and no slave has confirmed it in time: it may be lost with this machine"


class NoPermission(ServiceError):
    code = 16  # NO_PERMISSION


class WriterNotIssued(NoPermission):
    """A numbered message without a valid token for its producer id. `may_renew`: a new token would be valid."""

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
    """There is no connection, or it broke before the answer."""


class NoMaster(Unreachable):
    """No route names a master: it is failing over, restarting or gone."""


class TlsFailed(Unreachable):
    """The server answers, but its certificate is not trusted, or one side does not use TLS."""


class CallTimeout(CallFailed):
    """No answer in time: the request may have been executed or not."""


class BrokerError(ServiceError):
    """A response code without an error type of its own."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class ClientError(PyroMQError):
    """An error of the client or of a call's arguments."""


class SendError(ClientError):
    """A send without success. `attempts` has the error of each attempt, in order."""

    def __init__(self, message: str, attempts: Sequence[PyroMQError] = ()) -> None:
        super().__init__(message)
        self.attempts = tuple(attempts)


class SendFailed(SendError):
    """The message is certainly not stored."""


class SendUnknown(SendError):
    """The message may be stored or not. `receipt` is the broker's answer, or `None` without one."""

    def __init__(self, message: str, attempts: Sequence[PyroMQError] = (), receipt: object = None) -> None:
        super().__init__(message, attempts)
        self.receipt = receipt


class NoReply(ClientError):
    """A request message got no reply in time. A consumer may still handle it."""


class DataLoss(ClientError):
    """Messages to read have been removed: by retention, or with their topic."""


class ClientClosed(ClientError):
    """Used before it was started or after it was closed."""


class UnreadableBody(ClientError):
    """A compressed body that cannot be decompressed."""


class LakeError(PyroMQError):
    """The archive's table cannot be used."""


class LakeConflict(LakeError):
    """Another job committed first: nothing was added, and the next run continues from its commit."""
