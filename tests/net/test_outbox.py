"""Answers that wait for a slow reader: what they keep in memory."""

from __future__ import annotations

import tracemalloc

import pytest

from pyromq.net.outbox import CHUNK_BYTES, Outbox


@pytest.mark.parametrize("size", [1, CHUNK_BYTES, CHUNK_BYTES + 1, 5 * CHUNK_BYTES + 7])
def test_chunks_are_the_bytes_in_their_order(size: int) -> None:
    outbox = Outbox()
    data = bytes(range(256)) * (size // 256 + 1)
    outbox.put(data[:size])
    outbox.put(memoryview(data)[:3])
    assert outbox.size == size + 3
    taken = []
    while outbox.size:
        taken.append(outbox.next_chunk())
    assert b"".join(taken) == data[:size] + data[:3]
    assert max(map(len, taken)) <= CHUNK_BYTES


def test_the_rest_of_an_answer_keeps_only_itself_in_memory() -> None:
    outbox = Outbox()
    tracemalloc.start()
    try:
        outbox.put(bytes(128 * CHUNK_BYTES))
        while outbox.size > CHUNK_BYTES:
            outbox.next_chunk()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 2 * CHUNK_BYTES
