"""The replication port of a broker that leads: takes replicas in and sends each the log as it grows.

Bytes of a file go from the page cache to the socket inside the kernel; a thread first reads those that are not
resident. A replica that reads slowly is sent slowly: only its position is kept for it.

Followers with an identity (see `admission`) have places of their own, which no stranger takes. Connections that have
said nothing yet, observers (a backup) and followers without an identity are few at a time. A silent connection makes
room for the next one: the oldest first, and before it those from hosts that the settings do not name.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
from collections.abc import AsyncIterator, Callable

from pyromq.clock import Clock
from pyromq.errors import ConfigError, PyroMQError
from pyromq.net.address import shown_address
from pyromq.net.rate_limited_log import Complaints
from pyromq.replication.admission import Admission, Greeting
from pyromq.replication.followers import Followers
from pyromq.replication.frames import MAX_PUSH, PUSH, push_head
from pyromq.replication.identity import Refused
from pyromq.replication.log import ReadLog
from pyromq.replication.send_log import LogSender
from pyromq.replication.stream import Ahead, PrimaryStream, Span, StreamTimes

log = logging.getLogger("pyromq.replication")

#: Of one frame, and so of one turn for one replica.
BATCH_BYTES = 1 << 20
#: Without gathering: bytes written at least this long after the last send leave at once.
APART_SECONDS = 0.0001
#: Interval between two checks for silent replicas.
TICK_SECONDS = 0.5
RECEIVE_BYTES = 4096
#: Connections that have not said yet what they want.
MAX_SILENT = 64
#: Those who copy for themselves alone.
MAX_OBSERVERS = 8
#: Followers without an identity.
MAX_UNKNOWN = 8
#: Connections that wait to be accepted.
BACKLOG = 128

#: Called after a replica connected, disconnected or reported; not after a send.
Changed = Callable[[Followers], None]


class NoRoom(PyroMQError):
    """There are as many as may be already."""


class Primary:
    """Listens for replicas, and knows how far each is.

    If no send waits for replicas, new bytes may gather for `gather_s` before they leave: fewer and larger frames cost
    less. The first bytes after a pause leave at once.
    """

    def __init__(
        self,
        store: ReadLog,
        clock: Clock,
        changed: Changed,
        *,
        times: StreamTimes = StreamTimes(),  # noqa: B008  a value
        batch_bytes: int = BATCH_BYTES,
        whole_log: bool = True,
        max_replicas: int = 32,
        gather_s: float = 0.0,
        admits: Callable[[str], bool] = lambda host: True,
        admission: Admission | None = None,
    ) -> None:
        """Without an `admission` no follower has an identity."""
        self.store = store
        self._admission = admission or Admission(store, heartbeat_ms=times.heartbeat)
        self._clock = clock
        self._changed = changed
        self._times = times
        self._batch_bytes = min(batch_bytes, MAX_PUSH)
        self._whole_log = whole_log
        self._max_replicas = max_replicas
        self.gather_s = gather_s
        self._admits = admits
        #: By name, oldest first.
        self._lines: dict[str, _Line] = {}
        self._complaints = Complaints(clock)
        self._listener: socket.socket | None = None
        self.followers = Followers()

    @property
    def port(self) -> int:
        assert self._listener is not None
        port: int = self._listener.getsockname()[1]
        return port

    def log_grew(self) -> None:
        """For those that wait for bytes. Call it when there is more of the log to copy."""
        for line in self._lines.values():
            line.log_grew()

    @contextlib.asynccontextmanager
    async def serving(self, host: str, port: int, *, or_any: bool = False) -> AsyncIterator[Primary]:
        """Listen until the block ends. Raises ConfigError when the port cannot be had; `or_any`: then at a free one."""
        self._listener = _listen_or_any(host, port) if or_any else _listen(host, port)
        tasks: set[asyncio.Task[None]] = set()
        accepting = asyncio.get_running_loop().create_task(self._accept(self._listener, tasks))
        try:
            yield self
        finally:
            accepting.cancel()
            for task in tasks:
                task.cancel()
            await asyncio.gather(accepting, *tasks, return_exceptions=True)
            self._listener.close()

    async def _accept(self, listener: socket.socket, tasks: set[asyncio.Task[None]]) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, address = await loop.sock_accept(listener)
            except OSError as error:  # too many open files: those that are there go on
                log.error("no replica can be taken in: %s", error)
                await asyncio.sleep(TICK_SECONDS)
                continue
            line = self._take_in(connection, address[0], address[1])
            if line is not None:
                task = loop.create_task(self._serve(line))
                line.ends_by(task.cancel)
                tasks.add(task)
                task.add_done_callback(tasks.discard)
            await asyncio.sleep(0)  # a flood of connections does not keep those before it from being heard

    def _take_in(self, connection: socket.socket, host: str, port: int) -> _Line | None:
        name = shown_address(host, port)
        if not self._admits(host):
            log.error("the replica %s is not taken in: it is none of those that may copy this log", name)
            connection.close()
            return None
        silent = [line for line in self._lines.values() if line.stream.next_position is None]
        if len(silent) >= MAX_SILENT:
            min(silent, key=self._right_to_stay).close()  # the oldest of those with the least right
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        line = self._lines[name] = _Line(connection, self._new_stream(name, host), host, self)
        return line

    def _right_to_stay(self, line: _Line) -> tuple[bool, bool, bool]:
        """Connections that are closed already come last: they have made room."""
        greeting = line.stream.greeting
        is_known = self._admission.knows_host(line.host)
        return line.is_closing, is_known, greeting is not None and greeting.has_begun

    def check_room(self, stream: PrimaryStream) -> None:
        """For one that has just said what it wants. Raises NoRoom."""
        known = (line.stream for line in self._lines.values() if line.stream.next_position is not None)
        kind = _kind(stream)
        count = sum(_kind(one) == kind for one in known)
        most = {"observers": MAX_OBSERVERS, "followers without an identity": MAX_UNKNOWN}.get(kind, self._max_replicas)
        if count > most:
            stream.next_position = None  # nothing is sent to it
            raise NoRoom(f"it is not taken in, there are {most} {kind} already")

    def say_who_came(self, line: _Line) -> None:
        stream = line.stream
        if stream.identity is not None:
            log.info("the replica %s is the slave %s", stream.name, stream.identity)
        elif not stream.observes:
            self._complaints.say(
                line.host,
                f"the replica {stream.name} copies the log and does not count for acknowledgements: it did not prove "
                "the secret of this group, and replication.members names no broker on its host",
            )

    def close_displaced(self, followers: Followers) -> None:
        """End the connections whose followers have newer ones."""
        for line in self._lines.values():
            if line.stream.is_follower and line.stream.name not in followers.by_name and not line.is_closing:
                log.info("the replica %s has a newer connection: this one is closed", line.stream.name)
                line.close()

    def _new_stream(self, name: str, host: str) -> PrimaryStream:
        return PrimaryStream(
            name,
            self.store,
            batch_bytes=self._batch_bytes,
            whole_log=self._whole_log,
            times=self._times,
            now_ms=self.now_ms(),
            greeting=Greeting(self._admission, host),
        )

    async def _serve(self, line: _Line) -> None:
        name = line.stream.name
        try:
            await line.run()
        except Refused as error:
            with contextlib.suppress(OSError):
                line.answer()
            self._complaints.say(line.host, f"the replica {name} is refused: {error}", logging.ERROR)
        except Ahead as error:
            line.say_where_we_end()
            log.error("the replica %s is not served: %s", name, error)
        except (PyroMQError, OSError) as error:
            log.warning("the replica %s is gone: %s", name, error)
        except Exception as error:
            log.critical("the replica %s is no longer served", name, exc_info=error)
        finally:
            line.connection.close()
            del self._lines[name]
            self.know(self.followers.left(name))

    def know(self, followers: Followers) -> None:
        if followers is not self.followers:  # a value: what does not change stays the same one
            self.followers = followers
            self._changed(followers)

    def now(self) -> float:
        return self._clock.monotonic()

    def now_ms(self) -> int:
        return int(self._clock.monotonic() * 1000)


class _Line:
    """One connection with a replica. Reports are decoded as they arrive, and new bytes of the log are sent from the
    loop callback as long as the replica keeps up; one task sends all others, and one detects silence."""

    def __init__(self, connection: socket.socket, stream: PrimaryStream, host: str, primary: Primary) -> None:
        self.connection = connection
        self.host = host
        self.stream = stream
        self._primary = primary
        self._loop = asyncio.get_running_loop()
        #: The task has something to do.
        self._wanted = asyncio.Event()
        #: Set while the task rests: new bytes are sent without it.
        self._resting: LogSender | None = None
        #: Time in seconds of the last send, or of the last moment with nothing to send; and True if one is scheduled.
        self._left_at = 0.0
        self._is_leaving = False
        #: A span that was sent in part without the task, and the bytes sent; or the error of that send.
        self._begun: tuple[Span, int] | None = None
        self._failure: Exception | None = None
        self._end: Callable[[], object] = connection.close
        self.is_closing = False

    def close(self) -> None:
        if not self.is_closing:
            self.is_closing = True
            self._end()

    def ends_by(self, end: Callable[[], object]) -> None:
        """Set how to end what serves this connection."""
        self._end = end

    async def run(self) -> None:
        """Until the replica leaves. Raises what ended it otherwise."""
        loop = self._loop
        gone: asyncio.Future[None] = loop.create_future()
        loop.add_reader(self.connection, self._hear, gone)
        tasks = [loop.create_task(one) for one in (self._speak(), self._watch())]
        try:
            await asyncio.wait((gone, *tasks), return_when=asyncio.FIRST_COMPLETED)
        finally:
            loop.remove_reader(self.connection)
            for task in tasks:
                task.cancel()
            gone.cancel()
            ends = await asyncio.gather(gone, *tasks, return_exceptions=True)
        for end in ends:
            if isinstance(end, Exception):
                raise end

    def _hear(self, gone: asyncio.Future[None]) -> None:
        """Reports come as often as bytes go: none of them wakes a task."""
        if gone.done():
            return
        primary, stream = self._primary, self.stream
        waits, is_new = stream.waits_for_word, stream.next_position is None
        try:
            data = self.connection.recv(RECEIVE_BYTES)
            if not data:
                self._resting = None
                gone.set_result(None)
                return
            followers = stream.received(data, primary.followers, primary.now_ms())
            if is_new:
                self.answer()
                if stream.next_position is not None:
                    primary.check_room(stream)
                    primary.say_who_came(self)
                primary.close_displaced(followers)
            primary.know(followers)
        except BlockingIOError:
            return
        except Exception as error:  # noqa: BLE001  `run` raises it
            self._resting = None  # its last report may be half applied
            gone.set_exception(error)
        else:
            if waits:
                self._wanted.set()

    async def _watch(self) -> None:
        """Check for silence, also while a replica that does not read blocks the send."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self.stream.check_silence(self._primary.now_ms())
            if not self._is_leaving:
                self._wanted.set()  # a sign of life may be due

    async def _speak(self) -> None:
        primary = self._primary
        with contextlib.closing(LogSender(self.connection, primary.store)) as sender:
            while True:
                self._wanted.clear()
                span = self.stream.next_span(primary.now_ms())
                if span is not None:
                    # Recorded before the send: a report may arrive before the call that sent it returns.
                    primary.followers = self.stream.sent(span, primary.followers, primary.now_ms())
                    await sender.send(span)
                    self._left_at = primary.now()
                    if not self.stream.is_level:
                        # A socket that takes everything at once never makes us wait, and others have their turn too.
                        await asyncio.sleep(0)
                        continue
                await self._rest(sender)  # later bytes are sent from the loop callback

    async def _rest(self, sender: LogSender) -> None:
        """Wait for bytes that cannot be sent from the loop callback."""
        self._resting = sender
        try:
            await self._wanted.wait()
        finally:
            self._resting = None
        if self._failure is not None:
            raise self._failure
        if self._begun is not None:
            (span, sent), self._begun = self._begun, None
            await sender.send_rest(span, sent)

    def log_grew(self) -> None:
        """Send the first bytes after a pause in the same turn of the loop; send those right after them together, a
        turn or `gather_s` later: they may be many single messages."""
        if self._resting is None or self._is_leaving:  # the task looks at the log before it rests
            return
        gather_s = self._primary.gather_s
        early_s = self._left_at + (gather_s or APART_SECONDS) - self._primary.now()
        if early_s <= 0:
            self._leave()
            return
        self._is_leaving = True
        if gather_s:
            self._loop.call_later(early_s, self._leave)
        else:
            self._loop.call_soon(self._leave)

    def _leave(self) -> None:
        self._is_leaving = False
        if self._resting is not None:
            self._left_at = self._primary.now()
            if not self._leaves_now(self._resting):
                self._resting = None
                self._wanted.set()

    def _leaves_now(self, sender: LogSender) -> bool:
        """Send new bytes now. False: the task has to continue, or to raise the error; the appender does not see it."""
        primary, stream = self._primary, self.stream
        now_ms = primary.now_ms()
        try:
            while not stream.is_level:
                span = stream.next_span(now_ms)
                if span is None:  # it has not asked for it yet
                    return True
                if not sender.can_send_now(span):
                    return False
                primary.followers = stream.sent(span, primary.followers, now_ms)
                sent = sender.send_now(span)
                if sent < PUSH.size + span.length:
                    self._begun = span, sent
                    return False
        except Exception as error:  # noqa: BLE001  the task raises it
            self._failure = error
            return False
        return True

    def answer(self) -> None:
        """Send the frames of the handshake. Nothing else has been sent yet: they fit into the socket's buffer."""
        answer = self.stream.take_answer()
        if answer and self.connection.send(answer) < len(answer):
            raise ConnectionAbortedError("a follower does not read the handshake")

    def say_where_we_end(self) -> None:
        """Send a heartbeat with our log's end instead of the replica's, by which replicas detect the mismatch."""
        with contextlib.suppress(OSError):
            self.connection.send(push_head(self._primary.store.log_end, 0))


def _kind(stream: PrimaryStream) -> str:
    """Return the kind of place that a connection takes."""
    if stream.observes:
        return "observers"
    return "replicas" if stream.identity is not None else "followers without an identity"


def _listen_or_any(host: str, port: int) -> socket.socket:
    try:
        return _listen(host, port)
    except ConfigError as error:
        listener = _listen(host, 0)
        log.warning("%s; slaves that ask a name server are told %d", error, listener.getsockname()[1])
        return listener


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setblocking(False)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        why = "another program has it" if error.errno == errno.EADDRINUSE else os.strerror(error.errno or 0)
        raise ConfigError(
            f"the replication port {shown_address(host, port)} cannot be had: {why}; give another one",
            "replication.listen_port",
        ) from error
    return listener
