"""The state of a broker and its replicas, in the form that `mqadmin haStatus` reads."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import orjson

#: A slave's connection to its master. Readers expect the field of a master too.
_NO_SLAVE = {
    "activated": False,
    "lastReadTimestamp": 0,
    "lastWriteTimestamp": 0,
    "masterFlushOffset": 0,
    "maxOffset": 0,
    "transferredByteInSecond": 0,
}


@dataclass(frozen=True, slots=True)
class SlaveStatus:
    """One slave, as its master sees it."""

    address: str
    #: Everything below is in its log; everything below was sent.
    reported: int
    sent: int
    in_sync: bool


def encode_master(log_end: int, slaves: Iterable[SlaveStatus] = ()) -> bytes:
    """A master with a log up to there, and those who copy it."""
    told = [
        {
            "addr": one.address,
            "diff": log_end - one.reported,
            "inSync": one.in_sync,
            "slaveAckOffset": one.reported,
            "transferFromWhere": one.sent,
            "transferredByteInSecond": 0,
        }
        for one in slaves
    ]
    return _encoded(_NO_SLAVE, told, master=True, log_end=log_end)


def encode_slave(log_end: int, master: str | None, *, connected: bool) -> bytes:
    """Encode the state of a slave: the end of its log, and its master."""
    client = {**_NO_SLAVE, "activated": connected, "masterAddr": master or "", "maxOffset": log_end}
    return _encoded(client, [], master=False, log_end=0)


def _encoded(client: object, slaves: list[dict[str, object]], *, master: bool, log_end: int) -> bytes:
    return orjson.dumps(
        {
            "haClientRuntimeInfo": client,
            "haConnectionInfo": slaves,
            "inSyncSlaveNums": sum(bool(one["inSync"]) for one in slaves),
            "master": master,
            "masterCommitLogMaxOffset": log_end,
        }
    )
