"""Sends a script of requests to a broker of its own, and prints the answers and the files that they left as JSON.

    python script_of_requests.py DIRECTORY PORT sync|async

The wall clock stands still, and every client has the same address: what is left depends on the requests alone.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from broker.support.lone_client import PULL, SEND, Client, frame
from pyromq.broker.broker import Broker
from pyromq.clock import SystemClock
from pyromq.config import BrokerConfig, FlushConfig, StoreConfig
from pyromq.model.group import GroupConfig
from pyromq.model.topic import TopicConfig
from pyromq.net import connection
from pyromq.records.batch import encode_batch
from pyromq.wire.command import Command
from pyromq.wire.frames import encode_frame
from pyromq.wire.requests.client import EndTransaction, encode_request

COMMIT, ROLL_BACK = 8, 12
NOW_MS = 1_700_000_000_000
KEYED = "UNIQ_KEY\x01C0A80001{:08X}\x02TAGS\x01{}\x02KEYS\x01k{} all\x02"


class StillClock(SystemClock):
    """The wall clock stands still, so that store times are the same in every run; time-outs pass."""

    def now_ms(self) -> int:
        return NOW_MS


def sends(client: Client) -> list[Command]:
    """Single ones with all kinds of properties, then many in one write, to every queue."""
    answers = [client.ask(frame(310, {**SEND, "e": str(queue)}, queue, b"the first")) for queue in range(4)]
    for number, properties in enumerate(
        ["", "TAGS\x01red", "KEYS\x01a b\x02", KEYED.format(1, "red", 1), 'quote\x01"\\/\x02', "name\x01\u00fc\x02"]
    ):
        answers.append(client.ask(frame(310, {**SEND, "i": properties}, 10 + number, b"%d" % number)))
    many = [
        frame(
            310, {**SEND, "e": str(number % 4), "i": KEYED.format(number, "blue", number)}, 100 + number, b"x" * number
        )
        for number in range(200)
    ]
    client.sock.sendall(b"".join(many))
    return [*answers, *in_order(client, len(many))]


def in_order(client: Client, count: int) -> list[Command]:
    """Answers to requests of one write may come in any order: each names its request."""
    return sorted((client.answer() for _ in range(count)), key=lambda answer: answer.correlation_id)


def unusual_sends(client: Client) -> list[Command]:
    batch = encode_batch([(0, b"%d" % number, b"TAGS\x01red\x02") for number in range(5)])
    answers = [
        client.ask(frame(310, {**SEND, "m": "true"}, 300, batch)),
        client.ask(frame(310, {**SEND, "i": "DELAY\x013\x02"}, 301, b"later")),
        client.ask(frame(310, {**SEND, "i": "CLUSTER\x01other\x02"}, 302, b"with a name of the broker's own")),
        client.ask(frame(310, {**SEND, "j": "2", "h": "-5", "f": "1"}, 303, b"flags")),
    ]
    for number, decision in enumerate((COMMIT, ROLL_BACK)):
        half = client.ask(
            frame(310, {**SEND, "i": f"TRAN_MSG\x01true\x02PGROUP\x01shop\x02UNIQ_KEY\x01T{number}\x02"}, 310, b"t")
        )
        end = EndTransaction(
            topic="orders", producer_group="shop", half_offset=int(half.fields["queueOffset"]),
            half_position=int(half.fields["msgId"][-16:], 16), decision=decision, message_id=f"T{number}",
            transaction_id=f"T{number}",
        )  # fmt: skip
        answers += [half, client.ask(encode_frame(encode_request(end, 320 + number)))]
    return answers


def refused(client: Client) -> list[Command]:
    changes: list[dict[str, str]] = [
        {"b": "nowhere"}, {"b": "closed"}, {"e": "9"}, {"e": "one"}, {"i": "x" * 33_000}, {"b": ""},
        {"i": "__CRC32#\x010123456789\x02"}, {"g": "x"},
    ]  # fmt: skip
    return [client.ask(frame(310, {**SEND, **change}, 400 + number, b"no")) for number, change in enumerate(changes)]


def pulls(client: Client) -> list[Command]:
    changes: list[dict[str, str]] = [
        {"queueOffset": "0"}, {"queueOffset": "3"}, {"queueOffset": "0", "maxMsgNums": "1"},
        {"queueOffset": "0", "subscription": "red"}, {"queueId": "1", "queueOffset": "10"}, {"queueOffset": "3"},
        {"queueOffset": "100000", "sysFlag": "0"}, {"consumerGroup": "nobody"}, {"topic": "nowhere"},
        {"queueId": "77"},
    ]  # fmt: skip
    # A read window does not ask for the messages of the open append batch: its `maxOffset` may lag by 20 ms.
    caught_up = client.ask(frame(30, {"topic": "orders", "queueId": "0"}, 499))
    return [caught_up, *(client.ask(frame(11, {**PULL, **one}, 500 + number)) for number, one in enumerate(changes))]


async def told(root: Path, port: int, *, sync: bool) -> dict[str, Any]:
    clock = StillClock()
    store = StoreConfig(root=root, segment_bytes=1 << 20, prefault_bytes=0, flush=FlushConfig(sync=sync))
    config = BrokerConfig(listen_port=port, store=store, auto_create_topics=False)
    answers: list[Command] = []
    async with asyncio.timeout(60), Broker(config, clock=clock).running() as broker:
        parts = broker.parts
        assert parts is not None
        parts.topics.make(TopicConfig("orders", 4, 4))
        parts.topics.make(TopicConfig("closed", 4, 4, 4))
        parts.groups.make(GroupConfig("shop"))
        await parts._tables.save()

        def story() -> None:
            client = Client(port)
            steps: list[Callable[[Client], list[Command]]] = [sends, unusual_sends, refused, pulls, sends, pulls]
            for step in steps:
                answers.extend(step(client))
            client.close()

        await asyncio.to_thread(story)
        counted: Any = parts.accelerator
        taken = [] if counted is None else [
            sum(topic.messages for topic in counted.sends.topics.values()),
            sum(plan.pulls for plan in counted.pulls._plans.values()),
        ]  # fmt: skip
    files = {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for folder in ("commitlog", "consumequeue", "index")
        for path in sorted((root / folder).rglob("*"))
        if path.is_file()
    }
    return {"answers": [encode_frame(one).hex() for one in answers], "files": files, "taken": taken}


if __name__ == "__main__":
    connection.pack_address = lambda *_: b"\x7f\0\0\1\0\0\x2a\x9f"  # type: ignore[assignment]
    print(json.dumps(asyncio.run(told(Path(sys.argv[1]), int(sys.argv[2]), sync=sys.argv[3] == "sync"))))
