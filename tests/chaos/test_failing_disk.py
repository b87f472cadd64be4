"""A disk that fails or crawls under a broker with sync flush, and one that runs full."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import quantiles

import pytest

from chaos.support.client import Gone, Wire, commit, connected, progress_of, pull, read_queue, send
from chaos.support.recorder import Recorder
from chaos.support.server import SETTINGS, Server
from late import before
from pyromq.wire.codes import ResponseCode
from pyromq.wire.command import Command
from pyromq.wire.requests.admin import GetTopic, UpdateTopic

#: What a send is told whose sync fails, and one that comes after it.
WHY_NOT = ("the disk did not confirm a write", "this server is stopping")
SYNC = "[store.flush]\nsync = true\n"


def has_strace() -> bool:
    if shutil.which("strace") is None:
        return False
    tried = subprocess.run(
        ["strace", "-f", "-o", "/dev/null", "-e", "trace=none", "true"], capture_output=True, check=False
    )
    return tried.returncode == 0


needs_strace = pytest.mark.skipif(not has_strace(), reason="strace is not installed or may not trace here")


def strace(fault: str) -> list[str]:
    return ["strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=fdatasync", "-e", f"inject=fdatasync:{fault}"]


async def send_many(record: Recorder, wire: Wire, name: str, rounds: int) -> list[Command]:
    """Many at once, again and again, until the connection ends; every answer that came."""
    answers: list[Command] = []
    for number in range(rounds):
        bodies = [f"{name}-{number}-{each}".encode() for each in range(8)]
        for body in bodies:
            record.attempt("orders", 0, body)
        calls = [wire.put(send("orders", body, binary=each % 4 == 0)) for each, body in enumerate(bodies)]
        done = await asyncio.gather(*calls, return_exceptions=True)
        for answer, body in zip(done, bodies, strict=True):
            if isinstance(answer, Command):
                answers.append(answer)
                if answer.code == ResponseCode.SUCCESS:
                    record.ack("orders", 0, int(answer.fields["queueOffset"]), body)
        if any(isinstance(answer, Gone) for answer in done):
            break
    return answers


@needs_strace
def test_a_sync_that_fails_is_an_error_for_whoever_waits(tmp_path: Path) -> None:
    """Nobody is told that all is well; the broker ends with a sentence, and what it acknowledged before is there."""

    async def story() -> None:
        record = Recorder()
        broken = Server(tmp_path, SYNC, before=strace("error=EIO:when=80+"))
        with broken:
            wires = [await Wire.open(broken.port) for _ in range(4)]
            work = (send_many(record, wire, f"p{number}", 2000) for number, wire in enumerate(wires))
            answers = [answer for some in await asyncio.gather(*work) for answer in some]
            assert broken.wait() not in (0, None)
        refused = [answer for answer in answers if answer.code != ResponseCode.SUCCESS]
        assert refused, "those who waited heard nothing"
        assert {answer.code for answer in refused} == {ResponseCode.SERVICE_NOT_AVAILABLE}
        reasons = {answer.reason or "" for answer in refused}
        assert any("the disk did not confirm a write" in reason for reason in reasons), "to those who waited for it"
        assert all(any(known in reason for known in WHY_NOT) for reason in reasons), reasons
        assert "the disk did not confirm a write" in broken.tail()
        assert "Traceback" not in broken.tail()
        assert record.acks
        again = Server(tmp_path, SYNC)
        with again:
            async with connected(again.port) as wire:
                await record.read_all(wire)
                record.check()
                assert (await wire.call(send("orders", b"goes on"))).code == ResponseCode.SUCCESS

    asyncio.run(story())


@needs_strace
def test_more_sends_than_a_slow_disk_can_serve(tmp_path: Path) -> None:
    """So many wait for the disk and no more: the others hear at once that the broker is busy, and why."""

    async def story() -> None:
        limits = f"{SYNC}[overload]\nwaiting_sends = 100\n"
        with Server(tmp_path, limits, before=strace("delay_enter=250000")) as server:
            async with connected(server.port) as wire:
                assert (await wire.call(send("orders", b"first"))).code == ResponseCode.SUCCESS
            wires = [await Wire.open(server.port) for _ in range(10)]
            took: list[float] = []
            answers: list[Command] = []

            async def one(wire: Wire, binary: bool) -> None:
                began = time.monotonic()
                answer = await wire.call(send("orders", b"more", binary=binary))
                answers.append(answer)
                if answer.code == ResponseCode.SYSTEM_BUSY:
                    took.append(time.monotonic() - began)

            for _ in range(3):
                await asyncio.gather(*(one(wire, number % 2 == 0) for wire in wires for number in range(20)))
            busy = [answer for answer in answers if answer.code == ResponseCode.SYSTEM_BUSY]
            stored = [answer for answer in answers if answer.code == ResponseCode.SUCCESS]
            assert len(busy) + len(stored) == len(answers)
            assert len(stored) >= 100
            assert busy
            assert "sends wait for the disk (limit 100)" in (busy[0].reason or "")
            usual = quantiles(took, n=10)[-1]
            assert usual < 0.2, f"one in ten refusals took {usual:.3f} s or more"
            async with connected(server.port) as wire:
                assert (await wire.call(send("orders", b"later"))).code == ResponseCode.SUCCESS
                assert len(await read_queue(wire, "orders", 0)) == len(stored) + 2

    asyncio.run(story())


@needs_strace
@pytest.mark.parametrize("nth", [9, 10])
def test_a_kill_while_settings_are_written(tmp_path: Path, nth: int) -> None:
    """Between any two steps of a save: the broker starts again, and knows every topic that it acknowledged."""
    syscalls = "rename,renameat,renameat2"
    fault = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={syscalls}"]
    fault += ["-e", f"inject={syscalls}:signal=KILL:when={nth}"]

    async def story() -> None:
        made: list[str] = []
        with Server(tmp_path, before=fault) as doomed:
            async with connected(doomed.port) as wire:
                with contextlib.suppress(Gone):
                    for number in range(50):
                        topic = UpdateTopic(topic=f"made-{number}", read_queues=1, write_queues=1, permission=6)
                        assert (await wire.call(topic)).code == ResponseCode.SUCCESS
                        made.append(topic.topic)
            doomed.wait()
        assert len(made) < 50, "nothing was killed"
        with Server(tmp_path) as server:
            async with connected(server.port) as wire:
                for name in made:
                    assert (await wire.call(GetTopic(topic=name))).code == ResponseCode.SUCCESS, name

    asyncio.run(story())


# --- a full disk -----------------------------------------------------------------------------------------------------

FULL = SETTINGS.replace("segment_bytes = 16777216", "segment_bytes = 4194304")
MARKS = ("refuse_at = 1.0\nresume_below = 0.99\n", "refuse_at = 0.9\nresume_below = 0.85\ninterval_ms = 300\n")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system in memory that is soon full."""
    directory = tmp_path / "disk"
    directory.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", str(directory)]
    try:
        tried = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount command")
    if tried.returncode:
        pytest.skip(f"a tmpfs cannot be mounted here: {tried.stderr.strip()}")
    yield directory
    subprocess.run(["umount", "-l", str(directory)], check=False)


async def fill(record: Recorder, wire: Wire, name: str) -> Command:
    """Send until a message is refused; the refusal."""
    for number in range(10_000):
        body = f"{name}-{number}-".encode() + bytes(16_000)
        record.attempt("orders", 0, body)
        answer = await wire.call(send("orders", body, binary=number % 2 == 0))
        if answer.code != ResponseCode.SUCCESS:
            return answer
        record.ack("orders", 0, int(answer.fields["queueOffset"]), body)
        await asyncio.sleep(0.0005)  # the disk is looked at now and then
    raise AssertionError("the disk did not run full")


async def until_accepted(record: Recorder, wire: Wire, name: str, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    for number in range(1000):
        body = f"{name}-again-{number}".encode()
        record.attempt("orders", 0, body)
        answer = await wire.call(send("orders", body))
        if answer.code == ResponseCode.SUCCESS:
            record.ack("orders", 0, int(answer.fields["queueOffset"]), body)
            return
        before(deadline, f"still refused {seconds} s after there was room: {answer.reason}")
        await asyncio.sleep(0.1)


@pytest.mark.parametrize("marks", MARKS, ids=["to the last byte", "to the mark"])
def test_a_disk_that_runs_full(tmp_path: Path, small_disk: Path, marks: str) -> None:
    """Sends are refused and told why; reading and progress go on; sending resumes by itself; nothing is lost."""
    settings = FULL.replace("refuse_at = 1.0\nresume_below = 0.99\n", marks)

    async def story() -> None:
        record = Recorder()
        ballast = small_disk / "ballast"
        ballast.write_bytes(bytes(20 << 20))
        with Server(tmp_path, settings=settings, store=small_disk / "store") as server:
            async with connected(server.port) as wire:
                refusal = await fill(record, wire, "first")
                assert refusal.code == ResponseCode.SERVICE_NOT_AVAILABLE, refusal.reason
                assert "disk" in (refusal.reason or "")
                await record.read_all(wire)
                record.check()
                assert record.acks > 500
                assert (await wire.call(pull("orders", 0, 0, group="readers"))).code == ResponseCode.SUCCESS
                assert (await commit(wire, "readers", "orders", 0, 100)).code == ResponseCode.SUCCESS
                assert await progress_of(wire, "readers", "orders", 0) == 100
                ballast.unlink()
                await until_accepted(record, wire, "first")
                ballast.write_bytes(bytes(4 << 20))
                await fill(record, wire, "second")
            server.kill()
            server.start()  # on the full disk
            async with connected(server.port) as wire:
                await record.read_all(wire)
                record.check()
                assert await progress_of(wire, "readers", "orders", 0) == 100
                ballast.unlink()
                await until_accepted(record, wire, "second")
            assert "Traceback" not in server.tail()

    asyncio.run(story())
