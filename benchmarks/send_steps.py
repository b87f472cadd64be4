"""Where the time of a send goes: each step of the broker's way, in processor time for one message of 1 KiB.

The steps of the fast way are taken without a network: a read of so many frames, what the loop makes of it, then queues
and index. The network's own cost is what the whole broker takes less these.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

from common import BODY, SCALE, show, work_directory

from pyromq import accelerated
from pyromq.broker.broker import Broker
from pyromq.config import BrokerConfig, StoreConfig
from pyromq.model.topic import TopicConfig
from pyromq.net.connection import Connection
from pyromq.wire.frames import decode_frame
from pyromq.wire.requests.client import decode_request

ACCELERATED = accelerated.load("accelerator")

READS = int(2000 * SCALE)
IN_A_READ = (1, 8, 32)


class Nowhere:
    """A connection that takes its answers and forgets them."""

    address = "127.0.0.1:1"
    inlet = None
    packed_address = b"\x7f\x00\x00\x01\x00\x00\x00\x01"

    def put_bytes(self, frames: bytes) -> bool:
        return True


def frame(number: int) -> bytes:
    properties = f"UNIQ_KEY\x017F0000010A2F18B4AAC2{number:012X}\x02WAIT\x01true\x02TAGS\x01tagA\x02"
    fields = {"a": "bench_group", "b": "bench", "c": "TBW102", "d": "4", "e": str(number % 4), "f": "0",
              "g": "1700000000000", "h": "0", "i": properties, "j": "0", "k": "false", "m": "false"}  # fmt: skip
    head = {"code": 310, "extFields": fields, "flag": 0, "language": "JAVA", "opaque": number, "version": 453}
    header = json.dumps(head, separators=(",", ":")).encode()
    return (4 + len(header) + len(BODY)).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header + BODY


def microseconds(work: Callable[[], object], rounds: int, messages: int) -> float:
    started = time.process_time()
    for _ in range(rounds):
        work()
    return (time.process_time() - started) / (rounds * messages) * 1e6


async def measure(root: Path, count: int) -> tuple[str, ...]:
    config = BrokerConfig(store=StoreConfig(root=root), listen_port=0)
    async with Broker(config).running() as broker:
        assert broker.parts is not None
        broker.parts.topics.make(TopicConfig("bench", 4, 4))
        await broker.parts._tables.save()
        for number in range(4):  # the first message of a queue goes the ordinary way
            data = frame(number)
            broker.server.handle(decode_frame(memoryview(data), 0, len(data)), cast(Connection, Nowhere()))
        read = memoryview(b"".join(map(frame, range(count))))
        path, nowhere, store = broker.server.fast_path, cast(Connection, Nowhere()), broker.store
        assert path is not None
        assert path.take(read, 0, nowhere) == len(read)
        store.close_batch()
        store.dispatch()
        rounds = max(READS * 8 // count, 20)
        taken = dispatched = indexed = 0.0
        for _ in range(10):
            taken += microseconds(lambda: path.take(read, 0, nowhere), rounds // 10, count)
            store.close_batch()
            behind = rounds // 10 * count
            dispatched += microseconds(store.dispatcher.dispatch, 1, behind)
            indexed += microseconds(store.dispatcher.index, 1, behind)
            await asyncio.sleep(0)
        one = bytes(read[: len(read) // count])
        decoded = microseconds(
            lambda: decode_request(decode_frame(memoryview(one), 0, len(one))), max(rounds // 4, 50), 1
        )
    steps = [taken / 10, dispatched / 10, indexed / 10]
    return (str(count), *(f"{step:.2f}" for step in steps), f"{sum(steps):.2f}", f"{decoded:.1f}")


def main() -> None:
    if ACCELERATED is None:
        raise SystemExit("the accelerated modules are not compiled: there are no steps to measure")
    with work_directory() as directory:
        rows = [asyncio.run(measure(directory / str(count), count)) for count in IN_A_READ]
    show(
        "Send, µs of processor time a message",
        rows,
        ("frames in a read", "bytes to log and answer", "queue entry", "key index", "together",
         "a typed request alone"),
    )  # fmt: skip


if __name__ == "__main__":
    main()
