"""One connection: bytes in, commands to the handler, answers out. Server and client use the same.

All frames of one read are handled together, and their answers leave in one write. An answer that is not ready yet is
written when it is; answers that become ready in one turn of the loop share a write too.

Back-pressure goes both ways. A peer that does not read its answers, or that asks faster than it can be served, is not
read from until it has caught up; what had been read of it by then is looked at later. See `home` for the sums over
all connections.

Either asyncio reads, or the home's intake, which reads all connections together and hands over what it does not take
itself (`received`). The transport owns the socket in both cases.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable
from functools import partial
from typing import Any, cast

from pyromq.errors import BadFrame, BadRequest, CallTimeout, Unreachable
from pyromq.model.message import LOCALHOST, PackedHost
from pyromq.net.address import pack_address, shown_address
from pyromq.net.endpoint import Handle, Home, Inlet
from pyromq.net.outbox import CHUNK_BYTES, Outbox
from pyromq.net.service import NEXT_TURN, answer_for
from pyromq.net.slices import CALLER, MIN_ANSWER_BYTES, SLICE_SECONDS, slices_of
from pyromq.net.tcp_state import is_sent_in_vain
from pyromq.wire.command import FLAG_ANSWER, FLAG_ONE_WAY, Command
from pyromq.wire.frames import Reassembly, body_pieces, decode_frame, encode_frame, encode_head, frame_end
from pyromq.wire.header import Illegible
from pyromq.wire.requests.client import Request, encode_request
from pyromq.wire.responses import Response, answer_to, refusal

__all__ = ["Connection", "Handle", "Home"]

log = logging.getLogger("pyromq.net")

#: Write answers once they have this many bytes, before more requests of the same read are handled.
WRITE_BYTES = 1 << 20
#: The memory of a waiting request besides its own bytes.
WAITING_BYTES = 4 << 10
#: The interval of the check for overdue answers.
WATCH_SECONDS = 0.05
#: A call that waits this long makes a silent peer suspect.
SLOW_SECONDS = 1.0
#: A peer has this long to take its last answers and close, before the server closes.
LINGER_SECONDS = 1.0
#: The interval at which a closing connection checks for unsent bytes.
OUTBOX_SECONDS = 0.05
#: Correlation ids are 32-bit numbers, and not negative.
_ID_MASK = 0x7FFFFFFF

_NOTHING = memoryview(b"")


class Connection(asyncio.BufferedProtocol):
    """A `Peer`, and the protocol that asyncio drives."""

    __slots__ = (
        "_calls", "_due", "_flush_is_due", "_frames", "_had_turn", "_home", "_in_flight", "_in_flight_bytes",
        "_is_closed", "_is_halted", "_is_leaving", "_is_reading_paused", "_is_watching", "_last_id", "_last_tick",
        "_loop", "_lost", "_oldest", "_out", "_out_bytes", "_outbox", "_slices", "_slow_s", "_stalled_since", "_taken",
        "_transport", "_waits_for_turn", "_written", "address", "has_turn", "host", "inlet", "packed_address",
        "partial_bytes", "unsent_bytes",
    )  # fmt: skip

    def __init__(self, home: Home) -> None:
        self._home = home
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self.host = self.address = "?"
        self.packed_address: PackedHost = LOCALHOST
        self._last_tick = home.tick
        #: This connection's part of the intake, if the server has one.
        self.inlet: Inlet | None = None

        self._frames = Reassembly()
        self.partial_bytes = 0
        self._is_reading_paused = False
        #: No more frames may be handled now: closed, or too much is under way.
        self._is_halted = False
        #: The requests of this connection have used a slice of work: other connections go first.
        self._slices = slices_of(self._loop)
        self._waits_for_turn = False
        self.has_turn = False
        #: Had a turn since the last time that all its requests were handled.
        self._had_turn = False
        #: Requests whose answers are not ready, each with its flags; and what they cost.
        self._in_flight: dict[asyncio.Future[Any], int] = {}
        self._in_flight_bytes = 0

        self._out: list[bytes | memoryview] = []
        self._out_bytes = 0
        self._flush_is_due = False
        #: Bytes given to the transport in all, those of them that the peer had taken at the last look, and when.
        self._written = 0
        self._taken = 0
        self._stalled_since = 0
        #: Bytes that the peer has not taken, as they were counted last: the transport's and the outbox's.
        self.unsent_bytes = 0
        self._outbox = Outbox()

        #: Requests of our own that wait for an answer.
        self._calls: dict[int, asyncio.Future[Command]] = {}
        self._last_id = 0
        #: The deadline of calls without a timer of their own.
        self._due: dict[int, float] = {}
        self._is_watching = False
        #: The oldest call at the last check, the time since when it is watched, and the time after which
        #: it is slow.
        self._oldest: tuple[int, float] = (-1, 0.0)
        self._slow_s = SLOW_SECONDS

        #: Closes as soon as the ready answers are handed to the transport.
        self._is_closed = False
        #: Said everything, and waits for the peer to close.
        self._is_leaving = False
        self._lost: asyncio.Future[None] | None = None

    # --- what asyncio calls ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        # 0: `pause_writing` tells of the first byte that the peer has not taken, `resume_writing` of the last. A TLS
        # transport pauses at its limit, not above it: with 0 it would pause with an empty buffer, and never resume.
        is_tls = transport.get_extra_info("ssl_object") is not None
        self._transport.set_write_buffer_limits(high=1 if is_tls else 0)
        name = transport.get_extra_info("peername")
        if isinstance(name, tuple):
            self.host, port = name[:2]
            self.address = shown_address(self.host, port)
            self.packed_address = pack_address(self.host, port)
        self._slices.accepted()
        if not self._home.opened(self):
            self._shut()
        elif self._home.intake is not None:
            self._loop.call_soon(self._join_intake)  # after the transport has begun to read

    def connection_lost(self, error: Exception | None) -> None:
        self._leave_intake()
        self._transport = None
        self._forget()
        for call in self._calls.values():
            if not call.done():
                call.set_exception(Unreachable(f"the connection to {self.address} broke"))
                call.exception()  # retrieved, even if the waiting task is gone
        self._calls.clear()
        self._due.clear()
        for waiting, flags in tuple(self._in_flight.items()):
            if flags & FLAG_ONE_WAY:  # that is carried out even when its sender is gone
                self._home.orphans.add(waiting)
            else:
                waiting.cancel()
        if self._lost is not None and not self._lost.done():
            self._lost.set_result(None)
        self._home.closed(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._home.scratch

    def buffer_updated(self, count: int) -> None:
        self._last_tick = self._home.tick
        self.received(self._home.scratch[:count])

    def pause_writing(self) -> None:
        self._home.behind.add(self)
        self._stalled_since = self._home.tick
        self._tell_inlet()

    def resume_writing(self) -> None:
        self._home.behind.discard(self)
        self._write_on()

    # --- what the home's intake calls, where there is one ------------------------------------------------------------

    def _join_intake(self) -> None:
        """From now on the transport only writes, and closes; the intake reads, and writes what it can at once."""
        intake, transport = self._home.intake, self._transport
        if intake is None or transport is None or transport.is_closing():
            return
        descriptor = transport.get_extra_info("socket").fileno()
        self.inlet = intake.new_inlet(self, descriptor, self.packed_address)
        self._tell_inlet()
        if not self._is_reading_paused:
            self._read_on()

    def _leave_intake(self) -> None:
        """Before the descriptor is closed, and may be another one's."""
        if self.inlet is not None and self._home.intake is not None:
            self._last_tick = self.last_tick
            self._home.intake.remove(self.inlet)
            self.inlet.is_plain, self.inlet = False, None

    def _tell_inlet(self) -> None:
        """Tell the intake whether it may take and answer usual requests by itself."""
        if self.inlet is not None:
            self.inlet.is_plain = not (
                self._is_halted or self._is_leaving or self.partial_bytes or self in self._home.behind
            )

    def received(self, chunk: memoryview) -> None:
        """These bytes came; they are borrowed."""
        if self._is_leaving:
            return
        at, fast_path = 0, self._home.fast_path
        if fast_path is not None and not self.partial_bytes and not self._is_halted:
            # The usual case first: whole frames, all of them for the fast path.
            self._flush_is_due = True  # at the end of this
            at = fast_path.take(chunk, 0, self)
        if at == len(chunk):
            self._flush()
        else:
            self._look_at(chunk[at:])

    def write_rest(self, data: bytes) -> None:
        """Answers that the peer did not take at once, or the end of one that it has begun to take: nothing may come
        between."""
        self._out.insert(0, data)
        self._out_bytes += len(data)
        self._write_out()

    def nothing_to_read(self) -> None:
        """The peer's end, or an error: the transport finds out which, and tells us as it always does."""
        self._leave_intake()
        if self._transport is not None:
            self._transport.resume_reading()

    def fail(self, error: Exception) -> None:
        """A fault of ours; this connection ends, the others do not."""
        log.error("the connection of %s is cut off: its bytes could not be handled", self.address, exc_info=error)
        self._shut()

    # --- reading -----------------------------------------------------------------------------------------------------

    @property
    def last_tick(self) -> int:
        """The tick of the last received bytes."""
        return self._last_tick if self.inlet is None else max(self._last_tick, self.inlet.last_tick)

    def _look_at(self, chunk: memoryview) -> None:
        self._flush_is_due = True  # at the end of this
        data = self._frames.receive(chunk)
        at = 0
        if self._slices.is_spent and not self._is_halted:
            self._wait_for_turn(is_heavy=False)
        try:
            at = self._handle_frames(data)
        except BadFrame as bad:
            self.close(str(bad))
        finally:
            self._frames.keep(data, len(data) if self._is_closed else at)
        self._had_turn = self._had_turn and len(self._frames) > 0
        self._count_partial(moved_on=at > 0)
        self._tell_inlet()
        self._flush()

    def _handle_frames(self, data: memoryview) -> int:
        """Handle the whole frames, as long as there is room for more; where the rest begins."""
        at = 0
        home, limits = self._home, self._home.frame_limits
        cpu_time = self._slices.cpu_time
        began, answered = cpu_time(), 0
        while not self._is_halted:
            if home.fast_path is not None:
                at = home.fast_path.take(data, at, self)
                if not self._has_room():
                    break
            end = frame_end(data, at, limits)
            if end is None or end > len(data):
                break
            try:
                command = decode_frame(data, at, end, limits.fields)
            except Illegible as bad:
                if not self._refuse(bad):
                    raise
            else:
                if command.flags & FLAG_ANSWER:
                    self._take_answer(command)
                else:
                    before = self._out_bytes
                    if not self._take_request(command, end - at):
                        self.ask_for_turn()
                        break
                    answered += self._out_bytes - before
                    if cpu_time() - began > SLICE_SECONDS or self.is_enough(answered):
                        self.wait_for_turn()
            at = end
            if self._out_bytes > WRITE_BYTES:
                self._write_out()
        self._slices.spend(cpu_time() - began)
        return at

    def _refuse(self, bad: Illegible) -> bool:
        """Refuse a malformed request; the frames after it are valid. False for a malformed answer: its caller
        must not wait any longer."""
        request = bad.request
        if request.flags & FLAG_ANSWER:
            return False
        self._home.complaints.say(self.host, f"a request of {self.address} is refused: {bad}")
        if not request.flags & FLAG_ONE_WAY:
            self._put_answer(request, refusal(BadRequest(str(bad))))
        return True

    def _has_room(self) -> bool:
        """Return whether one more request may be handled; many ready bytes are sent first."""
        if self._out_bytes > WRITE_BYTES:
            self._write_out()
        return not self._is_halted

    def _count_partial(self, *, moved_on: bool) -> None:
        size = len(self._frames)
        if size == self.partial_bytes == 0:
            return
        home = self._home
        more, self.partial_bytes = size - self.partial_bytes, size
        if moved_on or size == 0:
            home.partial.pop(self, None)
        if size:
            home.partial.setdefault(self, home.tick)
        home.count_partial(more)

    def _take_answer(self, command: Command) -> None:
        call = self._calls.pop(command.correlation_id, None)
        self._due.pop(command.correlation_id, None)
        if call is not None and not call.done():
            call.set_result(command)

    def _take_request(self, command: Command, size: int) -> bool:
        """Handle a request; False if that needs a turn of its own."""
        try:
            answer = self._home.handle(command, self)
            if answer is not None and not isinstance(answer, Response):
                self._answer_later(command, answer, size)
                return True
            if answer is NEXT_TURN:
                return False
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  the client gets an answer
            answer = answer_for(error, command, self)
        if answer is not None and not command.flags & FLAG_ONE_WAY:
            self._put_answer(command, answer)
        self.has_turn = False
        return True

    # --- back-pressure -----------------------------------------------------------------------------------------------

    def _weigh(self) -> None:
        """Decide again whether more may be handled, and read only if so."""
        self._is_halted = (
            self._is_closed
            or self._waits_for_turn
            or self._in_flight_bytes > self._home.limits.max_in_flight_bytes_per_connection
            or self.unsent_bytes > self._home.unsent_room
        )
        self._tell_inlet()
        if self._is_halted == self._is_reading_paused or self._transport is None or self._transport.is_closing():
            return
        self._is_reading_paused = self._is_halted
        if self._is_halted:
            self._read_no_more()
        else:
            self._read_on()
            self._loop.call_soon(self._look_again)

    @property
    def answer_room(self) -> int:
        return self._home.answer_room(self._slices.waiting)

    def is_enough(self, answered: int) -> bool:
        """Return whether this many bytes of answers use up the connection's share of this turn."""
        return 2 * answered > MIN_ANSWER_BYTES and 2 * answered > self.answer_room

    def ask_for_turn(self) -> None:
        """The next answer is larger than the share of this turn."""
        self._wait_for_turn(is_heavy=True, is_new=not self._had_turn)

    def wait_for_turn(self) -> None:
        """The share of this turn is used up: other connections go first."""
        self._wait_for_turn(is_heavy=True)

    def _wait_for_turn(self, *, is_heavy: bool, is_new: bool = False) -> None:
        """Handle nothing more, and read nothing, until the other connections had their turn."""
        if not self._waits_for_turn:
            self._waits_for_turn = True
            self._slices.later(partial(self._take_turn, is_heavy=is_heavy), is_heavy=is_heavy, is_new=is_new)
            self._weigh()

    def _take_turn(self, *, is_heavy: bool) -> None:
        self._waits_for_turn = False
        self.has_turn = self._had_turn = is_heavy
        self._weigh()
        self._look_again()
        self.has_turn = False

    def _read_on(self) -> None:
        assert self._transport is not None
        if self.inlet is not None and self._home.intake is not None:
            try:
                self._home.intake.add(self.inlet)
            except OSError as error:
                log.info("%s is read by its transport: %s", self.address, error)
                self._leave_intake()
            else:
                self._transport.pause_reading()
                return
        self._transport.resume_reading()

    def _read_no_more(self) -> None:
        assert self._transport is not None
        if self.inlet is not None and self._home.intake is not None:
            self._home.intake.remove(self.inlet)
        else:
            self._transport.pause_reading()

    def _look_again(self) -> None:
        """Handle the frames that waited for room."""
        if not self._is_halted and not self._is_leaving and len(self._frames) and self.is_open:
            self._look_at(_NOTHING)

    def _count_unsent(self, size: int) -> None:
        more, self.unsent_bytes = size - self.unsent_bytes, size
        self._home.count_unsent(more)
        self._weigh()

    def check_stalled(self, ticks_allowed: int) -> bool:
        """Return whether the peer has taken nothing for too long, although bytes wait for it."""
        if self._transport is None:
            return False
        size = self._transport.get_write_buffer_size()
        taken = self._written - size
        if taken != self._taken:
            self._taken, self._stalled_since = taken, self._home.tick
            self._count_unsent(size + self._outbox.size)
        return self._home.tick - self._stalled_since > ticks_allowed

    # --- answers -----------------------------------------------------------------------------------------------------

    def _answer_later(self, command: Command, answer: Awaitable[Response | None], size: int) -> None:
        before = CALLER.set(self)
        waiting = asyncio.ensure_future(answer, loop=self._loop)
        CALLER.reset(before)
        size += WAITING_BYTES
        self._in_flight[waiting] = command.flags
        self._in_flight_bytes += size
        waiting.add_done_callback(partial(self._settle, command, size))
        if self._in_flight_bytes > self._home.limits.max_in_flight_bytes_per_connection:
            self._weigh()

    def _settle(self, command: Command, size: int, done: asyncio.Future[Response | None]) -> None:
        self._in_flight.pop(done, None)
        self._in_flight_bytes -= size
        self._home.orphans.discard(done)
        response = self._outcome(command, done)
        if response is not None and self._transport is not None and not command.flags & FLAG_ONE_WAY:
            self._put_answer(command, response)
            self._flush_soon()
        if self._is_halted:
            self._weigh()

    def _outcome(self, command: Command, done: asyncio.Future[Response | None]) -> Response | None:
        if done.cancelled():  # because the peer went, or by the handler
            return None if self._transport is None else answer_for(asyncio.CancelledError(), command, self)
        error = done.exception()
        return done.result() if error is None else answer_for(error, command, self)

    def _put_answer(self, command: Command, response: Response) -> None:
        try:
            pieces = body_pieces(response.body)
            size = sum(map(len, pieces))
            head = encode_head(answer_to(command, response), size)
        except Exception as error:  # noqa: BLE001  an answer that cannot be written is a fault of the handler
            return self._put_answer(command, answer_for(error, command, self))
        self._out.append(head)
        self._out += pieces
        self._out_bytes += len(head) + size
        return None

    def put_bytes(self, frames: bytes) -> bool:
        """Hand over whole frames; they leave with everything else. False when no more requests should be handled."""
        self._out.append(frames)
        self._out_bytes += len(frames)
        self._flush_soon()
        return self._has_room()

    def _flush_soon(self) -> None:
        if not self._flush_is_due:
            self._flush_is_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_is_due = False
        if self._out:
            self._write_out()
        self._close_if_done()

    def _close_if_done(self) -> None:
        if self._is_closed and self._transport is not None and not self._outbox.size:
            self._leave_intake()
            self._transport.close()

    def _write_out(self) -> None:
        out, self._out, self._out_bytes = self._out, [], 0
        if self._transport is None or self._transport.is_closing() or self._is_leaving:
            return
        data = out[0] if len(out) == 1 else b"".join(out)
        if self.inlet is not None and (sent := self.inlet.send(data)):
            if sent == len(data):
                return
            data = memoryview(data)[sent:]
            if len(data) <= CHUNK_BYTES:
                data = bytes(data)  # a transport may keep a view, and with it all of the answer
        if self._outbox.size or len(data) > CHUNK_BYTES:
            self._outbox.put(data)
            del out, data  # the outbox has its own copy
            self._write_on()
        else:
            self._written += len(data)
            self._transport.write(data)
            self._count_if_behind()

    def _write_on(self) -> None:
        """Give the transport the waiting bytes, as long as the peer takes them."""
        transport = self._transport
        while self._outbox.size and self not in self._home.behind:
            if transport is None or transport.is_closing():
                return
            chunk = self._outbox.next_chunk()
            self._written += len(chunk)
            transport.write(chunk)
        self._count_if_behind()
        self._tell_inlet()
        self._close_if_done()

    def _count_if_behind(self) -> None:
        if self._transport is not None and (self.unsent_bytes or self in self._home.behind):
            self._count_unsent(self._transport.get_write_buffer_size() + self._outbox.size)

    # --- asking the other end ----------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._is_closed and not self._transport.is_closing()

    @property
    def is_sent_in_vain(self) -> bool:
        """Does the system send again and again, and the other machine says nothing?"""
        transport = self._transport
        return transport is not None and is_sent_in_vain(transport.get_extra_info("socket").fileno())

    @property
    def is_reading(self) -> bool:
        """False while the peer is not listened to: what it sends now, it cannot be blamed for not sending."""
        return not self._is_reading_paused

    def tell(self, request: Request) -> None:
        if self.is_open:
            self.put_bytes(self.request_frame(request, self.next_id(), one_way=True))

    @property
    def backlog(self) -> int:
        """Bytes that wait to leave."""
        written = 0 if self._transport is None else self._transport.get_write_buffer_size()
        return self._out_bytes + self._outbox.size + written

    async def call(self, request: Request, timeout_s: float) -> Command:
        if not self.is_open:
            raise Unreachable(f"the connection to {self.address} is closed")
        correlation_id = self.next_id()
        frame = self.request_frame(request, correlation_id)
        answer = self._expect(correlation_id)
        self.put_bytes(frame)
        try:
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError:
            raise CallTimeout(f"{self.address} gave no answer to {request.CODE.name} within {timeout_s:g} s") from None
        finally:
            self._calls.pop(correlation_id, None)

    def call_nowait(
        self, correlation_id: int, frame: bytes, due: float, slow_s: float = SLOW_SECONDS
    ) -> asyncio.Future[Command]:
        """Send a frame that was made elsewhere, with an id of `next_id`; the answer, or CallTimeout soon after `due`.

        `due` is in the loop's time. There is no timer for each call: one check at intervals covers all of them, and
        reports a connection on which a call has waited for its `slow_s`.
        """
        answer = self._expect(correlation_id)
        if not self.is_open:
            del self._calls[correlation_id]
            answer.set_exception(Unreachable(f"the connection to {self.address} is closed"))
            return answer
        self._due[correlation_id] = due
        self.put_bytes(frame)
        if not self._is_watching:
            self._is_watching, self._slow_s = True, slow_s
            self._loop.call_later(WATCH_SECONDS, self._look_for_late_answers)
        elif slow_s < self._slow_s:
            self._slow_s = slow_s
        return answer

    def _look_for_late_answers(self) -> None:
        now = self._loop.time()
        for correlation_id in [one for one, due in self._due.items() if due <= now]:
            del self._due[correlation_id]
            answer = self._calls.pop(correlation_id, None)
            if answer is not None and not answer.done():
                answer.set_exception(CallTimeout(f"{self.address} gave no answer in time"))
        self._is_watching = bool(self._due)
        if self._is_watching:
            self._loop.call_later(WATCH_SECONDS, self._look_for_late_answers)
            self._look_at_oldest(now)

    def _look_at_oldest(self, now: float) -> None:
        oldest = next(iter(self._due))
        if oldest != self._oldest[0]:
            self._oldest = (oldest, now)
        elif now >= self._oldest[1] + self._slow_s and self._home.on_slow is not None:
            self._home.on_slow(self)

    def _expect(self, correlation_id: int) -> asyncio.Future[Command]:
        answer: asyncio.Future[Command] = self._loop.create_future()
        self._calls[correlation_id] = answer
        return answer

    def request_frame(self, request: Request, correlation_id: int, *, one_way: bool = False) -> bytes:
        """Signed, where requests are."""
        command = encode_request(request, correlation_id, one_way=one_way)
        if self._home.sign is not None:
            self._home.sign(command)
        return encode_frame(command)

    def next_id(self) -> int:
        self._last_id = self._last_id + 1 & _ID_MASK
        while self._last_id in self._calls:  # the counter wrapped around while a call waits
            self._last_id = self._last_id + 1 & _ID_MASK
        return self._last_id

    # --- the end -----------------------------------------------------------------------------------------------------

    def close(self, why: str) -> None:
        """Read nothing more, write the ready answers, and close. A warning names the peer and the reason."""
        self._close(why, logging.WARNING)

    def close_idle(self, why: str) -> None:
        """The same without a warning: no side is at fault."""
        self._close(why, logging.INFO)

    def _close(self, why: str, level: int) -> None:
        if self.is_open:
            self._home.complain(self, why, level)
            self._is_closed = self._is_halted = True
            self._tell_inlet()
            self._flush_soon()

    def abort(self, why: str | None = None) -> None:
        """Close now; unsent bytes are lost."""
        if why is not None:
            self._home.complain(self, why)
        self._shut()

    def _shut(self) -> None:
        self._leave_intake()
        self._is_closed = self._is_halted = True
        self._forget()
        if self._transport is not None:
            self._transport.abort()

    def _forget(self) -> None:
        """Release its memory and its counts."""
        self._is_closed = self._is_halted = True
        self._out.clear()
        self._out_bytes = 0
        self._outbox.clear()
        self._frames = Reassembly()
        self._count_partial(moved_on=True)
        self._home.behind.discard(self)
        more, self.unsent_bytes = -self.unsent_bytes, 0
        self._home.count_unsent(more)

    async def finish(self) -> None:
        """Answer the requests that were taken, say that this was all, and close when the peer has heard it."""
        while self._in_flight:
            await asyncio.wait(tuple(self._in_flight))
        if self._transport is None:
            return
        self._lost = self._loop.create_future()
        self._flush()
        while self._outbox.size:
            await asyncio.wait((self._lost,), timeout=OUTBOX_SECONDS)
        if self.is_open and self._transport.can_write_eof():
            # Closing while the peer still sends would make its system throw away answers that it has not read.
            self._is_leaving = True
            self._tell_inlet()
            with contextlib.suppress(OSError):  # the peer is gone, and we are about to hear of it
                self._transport.write_eof()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LINGER_SECONDS):
                    await asyncio.shield(self._lost)
        if self._transport is not None:
            self._leave_intake()
            self._transport.close()
        await self._lost
