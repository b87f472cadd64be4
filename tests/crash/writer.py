"""A program to be killed: appends as fast as it can and tells, a line each, what it was promised.

    python writer.py DIRECTORY sync|async SEED

Prints `ready`, then `topic queue offset hash` for each message that a broker would have acknowledged by then. Ends with
exit code 3 when the store is fenced; it runs until then, or until it is killed.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
import sys
from pathlib import Path

from pyromq.config import FlushConfig, StoreConfig
from pyromq.errors import StoreFenced
from pyromq.model.message import AppendedAt, Draft
from pyromq.store.message_store import MessageStore

QUEUES = [(b"orders", 0), (b"orders", 1), (b"pay", 0)]
FENCED = 3


def config(root: Path, *, sync: bool) -> StoreConfig:
    """Small files, so that a second rolls many of them."""
    return StoreConfig(
        root=root,
        segment_bytes=256 * 1024,
        queue_file_entries=1000,
        index_slots=500,
        index_entries=2000,
        max_body_bytes=16 * 1024,
        prefault_bytes=64 * 1024,
        flush=FlushConfig(sync=sync, interval_ms=20, recover_point_interval_ms=30),
    )


def promise(draft: Draft, receipt: AppendedAt) -> str:
    return f"{draft.topic.decode()} {draft.queue_id} {receipt.queue_offset} {hashlib.md5(draft.body).hexdigest()}\n"


async def write(root: Path, sync: bool, seed: int) -> None:
    rng = random.Random(seed)
    serial = 0
    async with MessageStore(config(root, sync=sync)).running() as store:
        print("ready", flush=True)
        while True:
            drafts = []
            for _ in range(rng.randrange(1, 20)):
                serial += 1
                topic, queue = rng.choice(QUEUES)
                body = b"%d:%d:" % (seed, serial) + rng.randbytes(rng.randrange(400))
                drafts.append(Draft(topic, queue, body, b"KEYS\x01%d-%d\x02TAGS\x01a\x02" % (seed, serial)))
            receipts = store.append(drafts)
            if sync:
                await store.wait_synced(receipts[-1])
            sys.stdout.write("".join(map(promise, drafts, receipts)))
            sys.stdout.flush()
            await asyncio.sleep(0)


def main() -> int:
    logging.disable(logging.CRITICAL)
    directory, mode, seed = sys.argv[1:]
    try:
        asyncio.run(write(Path(directory), mode == "sync", int(seed)))
    except StoreFenced as fenced:
        print(f"fenced: {fenced}", flush=True)
        return FENCED
    return 0


if __name__ == "__main__":
    sys.exit(main())
