"""A broker killed under load, again and again, in one directory: what it acknowledged is there afterwards.

A killed process leaves its bytes in the page cache, so this holds in either flush mode. `PYROMQ_CHAOS_KILLS` sets the
number of kills of each.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
from pathlib import Path

import pytest

from broker.support.lone_client import Client, messages, pull, send
from chaos.support.client import Wire, connected, progress_of
from chaos.support.producers import COMMIT, DELAY_MS, GROUP, TOPIC, Half, Load
from chaos.support.recorder import Recorder
from chaos.support.server import Server
from net.fakes import until
from pyromq.testing import Report
from pyromq.testing.history.events import SendOk
from pyromq.wire.codes import ResponseCode
from pyromq.wire.requests.admin import DeleteTopic, GetGroup, GetTopic, UpdateGroup, UpdateTopic

KILLS = int(os.environ.get("PYROMQ_CHAOS_KILLS", "5"))
#: Progress is flushed every 200 ms in these tests: one life is long enough for some of it.
FLUSHED_AFTER = 1.0
SYNC = "[store.flush]\nsync = true\n"


class Killed:
    """All lives of one broker."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.record = Recorder()
        self.committed_at_least = 0
        self.delayed = 0

    async def life(self, number: int, seconds: float) -> None:
        load = Load(self.record, number, self.server.port)
        load.commits = [self.committed_at_least] if self.committed_at_least else []
        flushed = 0

        def kill() -> None:
            nonlocal flushed
            flushed = self._progress_on_disk()
            self.server.kill()

        await load.run(seconds, kill)
        self.record.killed()  # now that the last answers, which were on their way, are in the history
        self.delayed += load.delayed
        if number % 3 == 2:
            self.server.kill_while_it_starts(0.25 + 0.5 * seconds)
        self.server.start()
        await self._check(load, max(flushed, self.committed_at_least))

    def _progress_on_disk(self) -> int:
        file = self.server.store / "config" / "consumerOffset.json"
        table = json.loads(file.read_bytes())["offsetTable"] if file.exists() else {}
        return int(table.get(f"{TOPIC}@{GROUP}", {}).get("0", 0))

    async def _check(self, load: Load, flushed: int) -> None:
        async with connected(self.server.port) as wire:
            found = await progress_of(wire, GROUP, TOPIC, 0)
            last = load.commits[-1] if load.commits else 0
            assert flushed <= (found or 0) <= last, f"progress is {found}: {flushed} was flushed, {last} the last"
            self.committed_at_least = found or 0
            for half in load.halves:
                await self._end(wire, half)
            await self.record.read_all(wire)
        self.record.check(drained=False)  # what is delayed may be late

    async def _end(self, wire: Wire, half: Half) -> None:
        """Nobody knows whether the end was heard: say it again. Twice is possible then, lost is not."""
        self.record.decided(half.body, commit=half.request.decision == COMMIT)
        answer = await wire.call(half.request)
        assert answer.code == ResponseCode.SUCCESS, answer.reason

    async def everything_is_there(self) -> Report:
        await asyncio.sleep(DELAY_MS / 1000 + 0.5)
        async with connected(self.server.port) as wire:
            await self.record.read_all(wire)
        return self.record.check()


@pytest.mark.parametrize("settings", ["", SYNC], ids=["async flush", "sync flush"])
def test_kills_under_load(tmp_path: Path, settings: str) -> None:
    async def story() -> None:
        rng = random.Random(7)
        with Server(tmp_path, settings) as server:
            killed = Killed(server)
            for number in range(KILLS):
                await killed.life(number, rng.uniform(0.15, 0.8) + (FLUSHED_AFTER if number == 1 else 0))
            report = await killed.everything_is_there()
            assert report.counts.acknowledged > 50 * KILLS
            assert killed.record.decisions(commit=True)
            assert killed.record.decisions(commit=False)
            assert killed.delayed
            assert killed.committed_at_least > 0
            acks = [event for event in killed.record.history if isinstance(event, SendOk)]
            assert any(ack.queue.topic.startswith("new-") for ack in acks)
            print(f"{KILLS} lives: {report}")

    asyncio.run(story())


def test_a_kill_right_behind_the_answer_undoes_nothing(tmp_path: Path) -> None:
    """What an administrator was told has happened has happened."""

    async def story() -> None:
        with Server(tmp_path) as server:
            for number in range(2):
                async with connected(server.port) as wire:
                    made = UpdateTopic(topic=f"made-{number}", read_queues=3, write_queues=3, permission=6)
                    assert (await wire.call(made)).code == ResponseCode.SUCCESS
                    group = b'{"groupName":"group-%d","retryMaxTimes":7}' % number
                    assert (await wire.call(UpdateGroup(body=group))).code == ResponseCode.SUCCESS
                    if number:
                        assert (await wire.call(DeleteTopic(topic="made-0"))).code == ResponseCode.SUCCESS
                    server.kill()
                server.start()
                async with connected(server.port) as wire:
                    topic = await wire.call(GetTopic(topic=f"made-{number}"))
                    assert b'"readQueueNums":3' in topic.body.replace(b" ", b""), topic.reason
                    known = await wire.call(GetGroup(group=f"group-{number}"))
                    assert b'"retryMaxTimes":7' in known.body.replace(b" ", b""), known.reason
            async with connected(server.port) as wire:
                assert (await wire.call(GetTopic(topic="made-0"))).code == ResponseCode.TOPIC_NOT_EXIST

    asyncio.run(story())


@pytest.mark.parametrize("settings", ["", SYNC], ids=["async flush", "sync flush"])
def test_a_kill_under_one_quick_sender_takes_nothing_that_was_acknowledged(tmp_path: Path, settings: str) -> None:
    """It is answered without a turn of the broker's loop."""
    acknowledged: list[int] = []

    def send_on(port: int) -> None:
        client = Client(port)
        with contextlib.suppress(OSError):
            while client.ask(send(len(acknowledged), b"%d" % len(acknowledged))).code == 0:
                acknowledged.append(len(acknowledged))
        client.close()

    def found(port: int) -> list[int]:
        client, bodies = Client(port), []
        while (answer := client.ask(pull(0, len(bodies)))).code == ResponseCode.SUCCESS:
            bodies += [int(body) for body in messages(answer)]
            if len(bodies) == int(answer.fields["maxOffset"]):
                break
        client.close()
        return bodies

    async def story() -> None:
        with Server(tmp_path, settings) as server:
            async with connected(server.port) as wire:
                made = UpdateTopic(topic="orders", read_queues=4, write_queues=4, permission=6)
                assert (await wire.call(made)).code == ResponseCode.SUCCESS
                assert (await wire.call(UpdateGroup(body=b'{"groupName":"shop"}'))).code == ResponseCode.SUCCESS
            for life in range(1, 4):
                sending = asyncio.create_task(asyncio.to_thread(send_on, server.port))
                goal = len(acknowledged) + 300 * life
                await until(lambda goal=goal: len(acknowledged) >= goal)
                server.kill()
                await sending
                server.start()
                stored = await asyncio.to_thread(found, server.port)
                assert set(acknowledged) <= set(stored)
                assert len(stored) <= len(acknowledged) + life, "one a life was stored and not answered"

    asyncio.run(asyncio.wait_for(story(), 50))
