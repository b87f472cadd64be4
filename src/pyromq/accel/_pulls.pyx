# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Answers pulls whose messages are in memory, in one piece and without a copy of large messages.

What is more than "here are your messages" is left to the request handler; where this answers, both give the same bytes.
"""

from libc.string cimport memcpy

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.dict cimport PyDict_GetItem
from cpython.object cimport PyObject

from posix.uio cimport iovec

from pyromq.accel._append_batch cimport QueueCursor
from pyromq.accel._headers cimport PullHeader, read_pull
from pyromq.accel._intake cimport Inlet, Shortcut, nanoseconds
from pyromq.accel._queues cimport QueueView, gather, measure, spread
from pyromq.accel.answers cimport put_bytes, put_number
from pyromq.accel.entry cimport ENTRY
from pyromq.records._kernel cimport put32

cdef enum:
    # An answer leaves from the mapped log if its messages are in at most this many places and this large on average: to
    # copy small ones costs less than to name each.
    MAX_PIECES = 64
    WORTH_BYTES = 256
    # Entries that one answer looks at, at most; see `queue_reader`.
    MAX_LOOKED_AT = 16_000
    # A cached read window stays valid this long.
    WINDOW_NS = 50_000_000


cdef class PullPlan:
    """What every pull of one consumer from one queue has in common, and what they got.

    And a window: what was found out about the messages from some offset on, which holds for the next pulls as well,
    for a moment. It is a picture of the store's files that fits together (where the queue ends is looked up each time):
    what was removed meanwhile is given out once more, and nothing else can happen.
    """

    cdef readonly object queue
    cdef readonly str group
    cdef readonly str topic
    cdef readonly int queue_id
    cdef readonly bint commits
    cdef QueueCursor cursor
    cdef object tag_codes
    cdef Py_ssize_t max_messages
    cdef long long max_bytes
    cdef tuple pieces
    cdef Py_ssize_t pieces_size
    cdef public long long pulls
    cdef public long long messages
    cdef public long long bytes_out
    cdef public bint is_too_large
    # The window: entries of one file, which begins with `first_offset`; those of the messages from `offset` to `end`.
    cdef const unsigned char[::1] entries
    cdef long long first_offset
    cdef long long offset
    cdef long long end
    cdef long long min_offset
    cdef list buffers
    cdef long long first_base
    cdef long long segment_bytes
    cdef long long readable
    cdef long long hot_from
    cdef long long good_until

    def __init__(self, queue, str group, str topic, int queue_id, bint commits, tag_codes, Py_ssize_t max_messages,
                 long long max_bytes, pieces):
        """`pieces` are the pieces of the answer's header around the next, the least and the last offset and the
        correlation id."""
        self.queue = queue
        self.group = group
        self.topic = topic
        self.queue_id = queue_id
        self.commits = commits
        self.tag_codes = tag_codes
        self.max_messages = max_messages
        self.max_bytes = max_bytes
        self.pieces = tuple(pieces)
        self.pieces_size = sum(map(len, self.pieces))
        if len(self.pieces) != 5:
            raise ValueError("not for the fast path")
        self.pulls = self.messages = self.bytes_out = 0
        self.is_too_large = False
        self.close_window()

    def open_window(self, const unsigned char[::1] entries, long long first_offset, long long offset, long long end,
                    long long min_offset, long long first_base, long long segment_bytes, list buffers,
                    long long readable, long long hot_from):
        """What may be given out: the entries of one file from `offset` to `end`, and the log's files as they are now,
        of which the part from `hot_from` to `readable` is in memory."""
        self.close_window()  # an answer through none is none
        if first_offset <= offset < end <= first_offset + entries.shape[0] // ENTRY and self.pieces_size <= 800:
            self.cursor = self.queue.cursor
            self.entries = entries
            self.first_offset = first_offset
            self.offset = offset
            self.end = end
            self.min_offset = min_offset
            self.first_base = first_base
            self.segment_bytes = segment_bytes
            self.buffers = buffers
            self.readable = readable
            self.hot_from = hot_from
            self.good_until = nanoseconds() + WINDOW_NS

    def close_window(self):
        """Files that are removed are gone when nobody holds them."""
        self.entries = None
        self.buffers = None
        self.good_until = 0

    def answer(self, long long offset, int correlation_id, Inlet inlet=None, long long room=1 << 62,
               bint has_turn=False):
        """What is left to be written of the answer to a pull through the window: all of it, or nothing if it has left
        through the inlet, from where the messages lie. None: the ordinary way must take a closer look."""
        return self.answer_through(inlet, offset, correlation_id, True, room, has_turn)

    cdef bytes answer_through(self, Inlet inlet, long long offset, int correlation_id, bint is_caught_up,
                              long long room, bint has_turn):
        """A queue that may not have all its messages yet gives no answer that could have more.

        An answer has at most `room` bytes; a single message that is larger is given only if the peer has its turn.
        """
        cdef QueueView view
        cdef unsigned char head[1024]
        cdef unsigned char* at = head + 8
        cdef long long max_offset, end = min(self.end, offset + MAX_LOOKED_AT)
        if self.buffers is None or not self.offset <= offset < end:
            return None
        max_offset = self.cursor.next_dispatch
        view.first = offset - self.first_offset
        view.end = end - self.first_offset
        view.max_messages = self.max_messages
        view.max_bytes = min(self.max_bytes, room)
        view.first_base = self.first_base
        view.segment_bytes = self.segment_bytes
        view.readable = self.readable
        view.hot_from = self.hot_from
        if not measure(&self.entries[0], &view, self.buffers, self.tag_codes) or view.count == 0:
            return None
        self.is_too_large = view.total > room and not has_turn
        if self.is_too_large:
            return None
        if view.next == view.end and view.count < self.max_messages and (end < max_offset or not is_caught_up):
            return None  # the messages continue, perhaps in the next file
        at = put_bytes(at, <bytes>self.pieces[0])
        at = put_number(at, self.first_offset + view.next)
        at = put_bytes(at, <bytes>self.pieces[1])
        at = put_number(at, self.min_offset)
        at = put_bytes(at, <bytes>self.pieces[2])
        at = put_number(at, max_offset)
        at = put_bytes(at, <bytes>self.pieces[3])
        at = put_number(at, correlation_id)
        at = put_bytes(at, <bytes>self.pieces[4])
        put32(head, <unsigned int>(at - head - 4 + view.total))
        put32(head + 4, <unsigned int>(at - head - 8))
        self.pulls += 1
        self.messages += view.count
        self.bytes_out += view.total
        return self.give(inlet, head, at - head, &view)

    cdef bytes give(self, Inlet inlet, unsigned char* head, Py_ssize_t head_size, QueueView* view):
        """Write an answer to the peer at once if it can be; else the whole of it."""
        cdef iovec pieces[MAX_PIECES + 1]
        cdef int count = 0
        cdef Py_ssize_t size = head_size + view.total, sent = 0
        cdef bytes frame
        cdef unsigned char* target
        if inlet is not None and view.total >= view.count * WORTH_BYTES:
            count = spread(&self.entries[0], view, self.buffers, self.tag_codes, pieces + 1, MAX_PIECES)
        if count > 0:
            pieces[0].iov_base = head
            pieces[0].iov_len = head_size
            sent = inlet.send_pieces(pieces, count + 1)
            if sent == size:
                return b""
        frame = PyBytes_FromStringAndSize(NULL, size)
        target = <unsigned char*>PyBytes_AS_STRING(frame)
        memcpy(target, head, head_size)
        gather(&self.entries[0], view, self.buffers, self.tag_codes, target + head_size)
        if sent:  # the rest of a partly sent frame precedes everything else
            inlet.connection.write_rest(frame[sent:])
            return b""
        return frame


cdef class PullLoop(Shortcut):
    """Takes pulls through windows that are open, from the bytes that one connection sent. `fast_pulls` opens them."""

    cdef dict plans
    cdef object consumers
    cdef dict resets
    cdef object commit
    # The state of the consumers for which there are plans.
    cdef public long long planned_at

    def __init__(self, dict plans, consumers, dict resets, commit):
        """`commit(plan, offset, connection)` keeps what a consumer tells of its progress."""
        self.plans = plans
        self.consumers = consumers
        self.resets = resets
        self.commit = commit
        self.planned_at = -1

    cdef Py_ssize_t take_bytes(self, const unsigned char* data, Py_ssize_t size, Inlet inlet) except -1:
        cdef PullHeader header
        cdef Py_ssize_t at = 0
        cdef PyObject* found
        cdef PullPlan plan
        cdef bytes key, answer
        cdef long long before, answered = 0
        if self.planned_at != <long long>self.consumers.changes:
            return 0
        while at < size and inlet.is_plain:
            key = read_pull(data + at, size - at, &header)
            found = PyDict_GetItem(self.plans, key) if key is not None else NULL
            if found == NULL:
                break
            plan = <PullPlan>found
            if nanoseconds() > plan.good_until:
                break
            if self.resets and (plan.group, plan.topic, plan.queue_id) in self.resets:
                break
            before = plan.bytes_out
            plan.is_too_large = False
            answer = plan.answer_through(inlet, header.offset, header.correlation_id, False, self.answer_room, False)
            if answer is None:
                if plan.is_too_large:
                    inlet.connection.ask_for_turn()
                break
            if answer:
                inlet.write(answer)
            at += header.size
            if plan.commits and header.committed >= 0:
                self.commit(plan, header.committed, inlet.connection)
            answered += plan.bytes_out - before
            if 2 * answered > self.answer_room:
                inlet.connection.wait_for_turn()
                break
        return at


cdef class ShortcutsInTurn(Shortcut):
    """Sends first, then pulls; either may be missing."""

    cdef public Shortcut sends
    cdef readonly PullLoop pulls

    def __init__(self, PullLoop pulls):
        self.pulls = pulls

    cdef Py_ssize_t take_bytes(self, const unsigned char* data, Py_ssize_t size, Inlet inlet) except -1:
        cdef Py_ssize_t at = 0
        if self.sends is not None:
            at = self.sends.take_bytes(data, size, inlet)
        if at < size and self.pulls is not None:
            self.pulls.answer_room = self.answer_room
            at += self.pulls.take_bytes(data + at, size - at, inlet)
        return at
