"""A broker and a name server on a thread of their own, whose loop is watched: how much CPU time its steps take."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from pyromq.broker.broker import Broker
from pyromq.config import BrokerConfig, NameServerConfig, StoreConfig
from pyromq.nameserver.assembly import NameServer
from pyromq.wire.command import Command
from pyromq.wire.frames import decode_frame, encode_frame
from pyromq.wire.requests.client import Request, encode_request

ANSWER_SECONDS = 60.0


class Asking:
    """A client that waits for each answer."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.settimeout(ANSWER_SECONDS)
        self._stream = self._socket.makefile("rb")
        self._last_id = 0

    def put(self, command: Command | Request) -> None:
        if isinstance(command, Request):
            command = encode_request(command, 0)
        self._last_id += 1
        command.correlation_id = self._last_id
        self._socket.sendall(encode_frame(command))

    def take(self) -> Command:
        size = self._stream.read(4)
        frame = memoryview(size + self._stream.read(int.from_bytes(size, "big")))
        return decode_frame(frame, 0, len(frame))

    def ask(self, command: Command | Request) -> Command:
        self.put(command)
        while (answer := self.take()).correlation_id != self._last_id:
            pass
        return answer

    def close(self) -> None:
        self._stream.close()
        self._socket.close()


class WatchedServers:
    """Both servers. `longest_s` is the CPU time of the longest step of their loop since it was set to 0."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._ports: Future[tuple[int, int]] = Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self.longest_s = 0.0
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    def _note(self, seconds: float) -> None:
        self.longest_s = max(self.longest_s, seconds)

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        try:
            names = NameServer(NameServerConfig(listen_host="127.0.0.1", listen_port=0))
            store = StoreConfig(root=self._home / "store", segment_bytes=64 << 20, prefault_bytes=0)
            config = BrokerConfig(
                listen_host="127.0.0.1", listen_port=0, store=store, auto_create_topics=True, auto_create_groups=True
            )
            await names.start()
            async with Broker(config).running() as broker:
                self._ports.set_result((broker.server.port, names.port))
                await self._stop.wait()
            await names.stop()
        except BaseException as error:
            if not self._ports.done():
                self._ports.set_exception(error)
            raise

    @contextlib.contextmanager
    def running(self) -> Iterator[tuple[int, int]]:
        """Yield the ports of the broker and of the name server."""
        watched, run = self, asyncio.Handle._run

        def run_watched(handle: Any) -> None:
            began = time.thread_time()
            run(handle)
            if handle._loop is watched._loop:
                watched._note(time.thread_time() - began)

        asyncio.Handle._run = run_watched  # type: ignore[method-assign]
        self._thread.start()
        try:
            yield self._ports.result(30)
        finally:
            if self._loop is not None and self._stop is not None:
                self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()
            asyncio.Handle._run = run  # type: ignore[method-assign]
