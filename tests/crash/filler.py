"""A program on a disk that runs full: appends until it is refused, reads everything, and goes on when there is room.

    python filler.py DIRECTORY [rounds of new topics]

Reads a line before each try to go on; prints `refused N: sentence` and `accepted N`, where N counts the messages.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from pyromq.config import StoreConfig
from pyromq.errors import DiskFull
from pyromq.model.message import Draft
from pyromq.store.message_store import MessageStore, decode

BODY = bytes(range(256)) * 8


def config(root: Path) -> StoreConfig:
    return StoreConfig(
        root=root,
        segment_bytes=256 * 1024,
        queue_file_entries=1000,
        index_slots=100,
        index_entries=400,
        max_body_bytes=64 * 1024,
        prefault_bytes=0,
    )


class Filler:
    def __init__(self, root: Path, *, new_topics: bool) -> None:
        self.store = MessageStore(config(root))
        self.store.open()
        self.new_topics = new_topics
        self.acked: dict[tuple[str, int], bytes] = {}

    def append(self) -> None:
        serial = len(self.acked)
        topic = f"topic{serial}" if self.new_topics else "orders"
        body = b"%d" % serial + BODY
        (receipt,) = self.store.append([Draft(topic.encode(), 0, body, b"KEYS\x01%d\x02" % serial)])
        self.acked[topic, receipt.queue_offset] = body
        self.store.dispatch()

    def until_refused(self) -> str:
        while True:
            try:
                self.append()
            except DiskFull as full:
                return str(full)

    def check(self) -> None:
        """Everything that is in a queue already reads back; the rest follows when there is room."""
        for (topic, offset), body in self.acked.items():
            if offset < self.store.max_offset(topic, 0):
                assert decode(self.store.read(topic, 0, offset, max_messages=1).records[0]).body == body


def main() -> int:
    logging.disable(logging.CRITICAL)
    filler = Filler(Path(sys.argv[1]), new_topics=len(sys.argv) > 2)
    for _ in range(3):
        refusal = filler.until_refused()
        filler.check()
        filler.store.flush()
        print(f"refused {len(filler.acked)}: {refusal}", flush=True)
        sys.stdin.readline()
        before = len(filler.acked)
        filler.append()
        filler.check()
        assert all(offset < filler.store.max_offset(topic, 0) for topic, offset in filler.acked)
        print(f"accepted {len(filler.acked) - before}", flush=True)
    filler.store.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
