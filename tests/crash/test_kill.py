"""A real process, really killed: what it was promised is there afterwards.

A killed process leaves its bytes in the page cache, so nothing acknowledged may be missing in either flush mode.
`PYROMQ_KILLS` sets the number of rounds; they all go on in one directory.
"""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from crash.writer import FENCED, config
from late import before
from pyromq.store.message_store import MessageStore, decode

WRITER = Path(__file__).with_name("writer.py")
KILLS = int(os.environ.get("PYROMQ_KILLS", "50"))
Acked = dict[tuple[str, int, int], str]


class Writer:
    """The program, with what it said in a file, so that it never waits for a reader."""

    def __init__(self, root: Path, mode: str, seed: int, *before: str) -> None:
        self.said = root.with_name(f"said-{seed}")
        with self.said.open("wb") as output:
            command = [*before, sys.executable, str(WRITER), str(root), mode, str(seed)]
            self.process = subprocess.Popen(command, stdout=output)

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + 30
        while not self.said.read_bytes().startswith(b"ready\n"):
            assert self.process.poll() is None, "the writer ended before it was ready"
            before(deadline, "the writer is not ready after 30 s")
            time.sleep(0.005)

    def kill(self) -> str:
        self.process.send_signal(signal.SIGKILL)
        return self.wait()

    def wait(self) -> str:
        try:
            self.process.wait(30)
        finally:
            self.process.kill()
            self.process.wait()
        return self.said.read_text()


def take(lines: str, acked: Acked) -> int:
    """Whole lines only: the last one may have been cut by the kill."""
    count = 0
    for line in lines.splitlines(keepends=True):
        words = line.split()
        if not line.endswith("\n") or len(words) != 4:
            continue
        key = (words[0], int(words[1]), int(words[2]))
        assert key not in acked, f"{key} was acknowledged twice"
        acked[key] = words[3]
        count += 1
    return count


def stored(store: MessageStore, first: dict[tuple[str, int], int]) -> Acked:
    """Everything from given offsets on, with the offsets held to account."""
    found: Acked = {}
    for queue in store.queues:
        topic, number = queue.id.topic, queue.id.number
        offset = first.get((topic, number), queue.min_offset)
        position = -1
        while offset < queue.max_offset:
            result = store.read(topic, number, offset, max_messages=1000, max_bytes=1 << 24)
            assert result.records, f"{topic}/{number} has nothing at {offset}"
            for view in result.records:
                message = decode(view)
                assert (message.topic, message.queue_id, message.queue_offset) == (topic, number, offset)
                assert message.position > position
                position, offset = message.position, offset + 1
                found[topic, number, message.queue_offset] = hashlib.md5(message.body).hexdigest()
    return found


def check(root: Path, acked: Acked, first: dict[tuple[str, int], int]) -> dict[tuple[str, int], int]:
    """Open, find the acknowledged messages since `first`; return the end of every queue."""
    store = MessageStore(config(root, sync=False))
    store.open()
    try:
        found = stored(store, first)
        new = {key: value for key, value in acked.items() if key[2] >= first.get(key[:2], 0)}
        missing = [key for key in new if key not in found]
        assert not missing, f"{len(missing)} acknowledged messages are gone, such as {missing[:3]}"
        assert all(found[key] == value for key, value in new.items())
        return {(queue.id.topic, queue.id.number): queue.max_offset for queue in store.queues}
    finally:
        # Not closed: the next round recovers from a crash again, as this one did.
        store._close_files()


def test_fifty_kills_in_one_directory(tmp_path: Path) -> None:
    root, rng = tmp_path / "store", random.Random(11)
    acked: Acked = {}
    ends: dict[tuple[str, int], int] = {}
    for round_number in range(KILLS):
        writer = Writer(root, "sync" if round_number % 2 else "async", round_number)
        writer.wait_until_ready()
        time.sleep(rng.uniform(0.0, 0.12))
        lines = writer.kill()
        take(lines, acked)
        ends = check(root, acked, ends)
    assert len(acked) > KILLS * 10
    check(root, acked, {})
    store = MessageStore(config(root, sync=False))
    with store:
        assert store.log.files.segments[-1].base > 0, "no segment was rolled"
        store.dispatch()
        assert stored(store, {}).keys() >= acked.keys()
        for topic, queue, offset in rng.sample(sorted(acked), 100):
            message = decode(store.read(topic, queue, offset, max_messages=1).records[0])
            assert message in [decode(hit) for hit in store.query(topic, message.keys[0])]


# --- a disk that fails at the Nth sync -----------------------------------------------------------------------------


def has_strace() -> bool:
    if shutil.which("strace") is None:
        return False
    tried = subprocess.run(
        ["strace", "-f", "-o", "/dev/null", "-e", "trace=none", "true"], capture_output=True, check=False
    )
    return tried.returncode == 0


needs_strace = pytest.mark.skipif(not has_strace(), reason="strace is not installed or may not trace here")


def strace(log: Path, fault: str) -> list[str]:
    return ["strace", "-f", "-qq", "-o", str(log), "-e", "trace=fdatasync", "-e", f"inject=fdatasync:{fault}"]


@needs_strace
@pytest.mark.parametrize("nth", [3, 5, 9])
def test_a_sync_that_fails_fences_the_store(tmp_path: Path, nth: int) -> None:
    """Waiting sends get an error, nothing later is acknowledged, and the process ends by itself."""
    root = tmp_path / "store"
    writer = Writer(root, "sync", nth, *strace(tmp_path / "strace", f"error=EIO:when={nth}"))
    lines = writer.wait()
    assert writer.process.returncode == FENCED, lines[-300:]
    assert lines.splitlines()[-1].startswith("fenced:")
    acked: Acked = {}
    take(lines, acked)
    check(root, acked, {})


@needs_strace
@pytest.mark.parametrize("nth", [1, 2, 4, 7, 12])
def test_a_kill_at_the_nth_sync(tmp_path: Path, nth: int) -> None:
    root = tmp_path / "store"
    writer = Writer(root, "sync", nth, *strace(tmp_path / "strace", f"signal=KILL:when={nth}"))
    lines = writer.wait()
    assert writer.process.returncode != 0
    acked: Acked = {}
    take(lines, acked)
    check(root, acked, {})
