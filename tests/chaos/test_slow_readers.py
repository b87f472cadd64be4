"""Many peers that ask for much and never read: they cost a bounded amount of memory, which is given back."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from chaos.support.client import connected, pull, send
from chaos.support.server import Server
from chaos.test_broker_overload import eventually
from pyromq.wire.frames import encode_frame
from pyromq.wire.requests.client import PullMessage, encode_request

MIB = 1 << 20
PEERS = 300
UNSENT_MIB = 64
#: Beside the answers: a chunk in each transport, one answer that is being made, and what Python itself keeps.
MORE_MIB = 96
#: CPU time of the broker until a new client has its answer, with 400 connections that are accepted before it.
NEW_CLIENT_SECONDS = 0.5
SETTINGS = f"""
[limits]
max_unsent_bytes = {UNSENT_MIB * MIB}
max_unsent_bytes_per_connection = {16 * MIB}
"""


@contextmanager
def peak_of(server: Server) -> Iterator[list[int]]:
    """Look at the memory of a server all the while; the list has the most that was seen, in MiB."""
    peak, is_over = [0], threading.Event()

    def look() -> None:
        while not is_over.wait(0.01):
            peak[0] = max(peak[0], server.anonymous_kib() >> 10)

    looker = threading.Thread(target=look)
    looker.start()
    try:
        yield peak
    finally:
        is_over.set()
        looker.join()


def peers_that_never_read(server: Server, count: int = PEERS) -> list[socket.socket]:
    """All of them ask in one turn of the broker's loop: it is stopped while they do."""
    question: PullMessage = pull("large", 0, 0, most=1000)
    question.max_bytes = 16 * MIB
    asked = b"".join(encode_frame(encode_request(question, number)) for number in range(8))
    peers = []
    for _ in range(count):
        peer = socket.socket()
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        peer.connect(("127.0.0.1", server.port))
        peers.append(peer)
    os.kill(server.pid, signal.SIGSTOP)
    try:
        for peer in peers:
            peer.sendall(asked)
    finally:
        os.kill(server.pid, signal.SIGCONT)
    return peers


def test_peers_that_never_read_cost_no_more_than_the_limit_and_it_is_given_back(tmp_path: Path) -> None:
    async def story(server: Server) -> None:
        async with connected(server.port) as wire:
            for _ in range(12):
                assert (await wire.call(send("large", bytes(MIB)))).code == 0
            base = server.anonymous_kib() >> 10
            with peak_of(server) as peak:
                peers = await asyncio.to_thread(peers_that_never_read, server)
                for _ in range(5):
                    assert (await wire.call(pull("large", 0, 0, most=1))).code == 0
            print(f"{PEERS} peers that never read: {base} MiB before, {peak[0]} MiB at most")
            assert peak[0] - base < UNSENT_MIB + MORE_MIB
            for peer in peers:
                peer.close()

            async def is_small() -> bool:
                return (server.anonymous_kib() >> 10) - base < 48

            await eventually(is_small, 15)

    with Server(tmp_path, SETTINGS) as server:
        asyncio.run(story(server))


def test_a_new_client_is_served_before_the_answers_of_many_that_never_read(tmp_path: Path) -> None:
    """Measured in CPU time of the broker: 400 whole answers take seconds of it."""

    async def story(server: Server) -> None:
        async with connected(server.port) as wire:
            for _ in range(12):
                assert (await wire.call(send("large", bytes(MIB)))).code == 0
            assert (await wire.call(send("small", b"x"))).code == 0
            used = server.processor_seconds()
            peers = await asyncio.to_thread(peers_that_never_read, server, 400)
            async with connected(server.port) as newcomer:
                assert (await newcomer.call(pull("small", 0, 0))).code == 0
            used = server.processor_seconds() - used
            print(f"the first answer came after {used:.3f} s of CPU time")
            assert used < NEW_CLIENT_SECONDS
            for peer in peers:
                peer.close()

    with Server(tmp_path) as server:
        asyncio.run(story(server))
