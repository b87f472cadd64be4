"""How a broker and its copies are doing, in the form that `mqadmin haStatus` reads."""

from __future__ import annotations

import orjson

#: What a slave says of its connection to the master. Readers expect it of a master too.
_NO_SLAVE = {
    "activated": False,
    "lastReadTimestamp": 0,
    "lastWriteTimestamp": 0,
    "masterFlushOffset": 0,
    "maxOffset": 0,
    "transferredByteInSecond": 0,
}


def encode_lone_master(log_end: int) -> bytes:
    """A master that nobody copies, with a log up to there."""
    return orjson.dumps(
        {
            "haClientRuntimeInfo": _NO_SLAVE,
            "haConnectionInfo": [],
            "inSyncSlaveNums": 0,
            "master": True,
            "masterCommitLogMaxOffset": log_end,
        }
    )
