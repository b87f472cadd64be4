# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Usual sends, from the received bytes to the log and to the bytes of the answer, in one loop.

Takes only messages that need no decision: the topic is there, the queue is named, no delay, no transaction, no retry. It
stops before the first other message, which the request handler takes. It stores and answers what the handler would
store and answer, to the byte.
"""

cimport cython

from libc.string cimport memcmp, memcpy

from cpython.bytearray cimport PyByteArray_AS_STRING
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.dict cimport PyDict_GetItem
from cpython.object cimport PyObject

from pyromq.accel._append_batch cimport BatchWriter
from pyromq.accel._headers cimport SendHeader, read_send, unescape
from pyromq.accel._intake cimport Inlet, Shortcut
from pyromq.accel.answers cimport put_bytes, put_number
from pyromq.records._kernel cimport RawDraft, get32, put32
from pyromq.records.layout cimport FLAG_INNER_BATCH, FLAG_TRANSACTION_MASK, HOST_V4, MAX_PROPERTIES

cdef enum:
    ONE_WAY = 2
    MAX_UNIQUE_KEY = 256
    # More than everything in an answer but its texts.
    ANSWER_BYTES = 2048
    OUT_BYTES = 1 << 18

cdef const unsigned char* HEX = b"0123456789ABCDEF"


cdef class FastTopic:
    """A topic that may be written to without further questions, and what came for it."""

    cdef readonly bytes name
    cdef readonly int queues
    cdef readonly int flags
    cdef public long long messages
    cdef public long long body_bytes

    def __init__(self, bytes name, int queues, int flags):
        self.name = name
        self.queues = queues
        self.flags = flags
        self.messages = 0
        self.body_bytes = 0


cdef struct Seen:
    # The properties of a message that matter here.
    bint special
    const unsigned char* unique_key
    int unique_size


cdef bint named(const unsigned char* entry, Py_ssize_t size, const char* name, Py_ssize_t name_size) noexcept nogil:
    return size > name_size and entry[name_size] == 1 and memcmp(entry, name, name_size) == 0


cdef void look_at_properties(const unsigned char* properties, int size, Seen* seen) noexcept nogil:
    cdef const unsigned char* at = properties
    cdef const unsigned char* end = properties + size
    cdef const unsigned char* stop
    cdef Py_ssize_t length
    seen.special = False
    seen.unique_key = NULL
    seen.unique_size = 0
    while at < end:
        stop = at
        while stop < end and stop[0] != 2:
            stop += 1
        length = stop - at
        if length:
            if (named(at, length, "DELAY", 5) or named(at, length, "TRAN_MSG", 8) or named(at, length, "POP_CK", 6)
                    or named(at, length, "CLUSTER", 7) or named(at, length, "MSG_REGION", 10)
                    or named(at, length, "TRACE_ON", 8) or (length > 6 and memcmp(at, "TIMER_", 6) == 0)
                    or named(at, length, "PYROMQ_WRITER", 13) or named(at, length, "PYROMQ_SEQUENCE", 15)):
                seen.special = True
            elif named(at, length, "UNIQ_KEY", 8) and length > 9:
                seen.unique_key = at + 9
                seen.unique_size = <int>(length - 9)
        at = stop + 1


cdef bint is_plain(const unsigned char* text, int size) noexcept nogil:
    """Letters and digits: the same in JSON."""
    cdef int i
    for i in range(size):
        if not (48 <= text[i] <= 57 or 65 <= text[i] <= 90 or 97 <= text[i] <= 122):
            return False
    return True


@cython.trashcan(True)  # a long chain of them must not go all at once
cdef class Held:
    """Answers to the sends of one read."""

    cdef long long position
    cdef object connection
    cdef Inlet inlet
    cdef bytes answers
    cdef long long sends
    cdef Held following


cdef class HeldAnswers:
    """Answers that leave when the log has reached a position, in the order of their positions."""

    cdef Held first
    cdef Held last
    cdef readonly long long count
    cdef readonly long long last_position

    def __init__(self):
        self.count = self.last_position = 0

    def hold(self, long long position, connection, bytes answers, long long sends):
        self.put(position, connection, connection.inlet, answers, sends)

    cdef int put(self, long long position, connection, Inlet inlet, bytes answers, long long sends) except -1:
        cdef Held held = Held.__new__(Held)
        held.position = position
        held.connection = connection
        held.inlet = inlet
        held.answers = answers
        held.sends = sends
        if self.first is None:
            self.first = held
        else:
            self.last.following = held
        self.last = held
        self.count += sends
        self.last_position = position
        return 0

    cdef Held take(self, long long position):
        """The next one that the log has reached; None: there is none."""
        cdef Held held = self.first
        if held is None or held.position > position:
            return None
        self.first = held.following
        if self.first is None:
            self.last = None
        held.following = None  # one that goes does not take all the others along
        self.count -= held.sends
        return held

    def release(self, long long position):
        """The log has come this far. Each peer gets what it waits for in one write."""
        cdef Held held = self.take(position)
        cdef Inlet inlet
        cdef list inlets
        if held is not None and self.first is None and held.inlet is not None:  # the only one
            held.inlet.write(held.answers)
            return
        inlets = []
        while held is not None:
            if held.inlet is None:
                held.connection.put_bytes(held.answers)
            elif held.inlet.gather(held.answers):
                inlets.append(held.inlet)
            held = self.take(position)
        for inlet in inlets:
            inlet.write_gathered()

    def take_back(self, long long position):
        """Those that the log need not reach any more, in order."""
        cdef Held held = self.take(position)
        cdef list taken = []
        while held is not None:
            taken.append((held.connection, held.answers))
            held = self.take(position)
        return taken


cdef class SendLoop(Shortcut):
    """Takes sends from the bytes that one connection sent."""

    cdef BatchWriter writer
    cdef dict topics
    cdef bytes store_host
    cdef bytes stamp
    cdef tuple plain_answer
    cdef tuple keyed_answer
    cdef Py_ssize_t max_frame
    # Answers to requests of the intake that wait for the log.
    cdef HeldAnswers held
    cdef readonly bytes answers
    cdef readonly long long answer_count
    cdef bytes id_prefix
    cdef unsigned char properties[MAX_PROPERTIES + 1024]
    cdef bytearray buffer
    cdef Py_ssize_t out_size

    def __init__(self, BatchWriter writer, dict topics, bytes store_host, bytes stamp, plain_answer, keyed_answer,
                 Py_ssize_t max_frame, HeldAnswers held):
        """`plain_answer` are the pieces around message id, queue, offset and correlation id; `keyed_answer` the same
        for a message with a unique key, which comes behind the offset."""
        self.writer = writer
        self.topics = topics
        self.store_host = store_host
        self.stamp = stamp
        self.plain_answer = tuple(plain_answer)
        self.keyed_answer = tuple(keyed_answer)
        if (len(self.plain_answer) != 5 or len(self.keyed_answer) != 6 or len(store_host) != HOST_V4
                or len(stamp) > 1000 or sum(map(len, self.keyed_answer)) > ANSWER_BYTES - MAX_UNIQUE_KEY - 128):
            raise ValueError("not for the fast path")
        self.id_prefix = store_host.hex().upper().encode()
        self.max_frame = max_frame
        self.held = held
        self.buffer = bytearray(OUT_BYTES + ANSWER_BYTES)
        self.answers = b""
        self.answer_count = 0

    def is_send(self, const unsigned char[::1] data, Py_ssize_t at):
        """Does a send begin here? A quick look that may be wrong."""
        return data.shape[0] - at > 32 and (
            memcmp(&data[at] + 8, b'{"code":310,', 12) == 0 or memcmp(&data[at] + 8, b'{"code":10,', 11) == 0)

    def take(self, const unsigned char[::1] data, Py_ssize_t at, bytes born_host):
        """Store what can be stored without a question; where the first other frame begins. Answers are in `answers`."""
        at = self.fill(&data[0], at, data.shape[0], born_host)
        self.answers = PyBytes_FromStringAndSize(PyByteArray_AS_STRING(self.buffer), self.out_size)
        return at

    cdef Py_ssize_t take_bytes(self, const unsigned char* data, Py_ssize_t size, Inlet inlet) except -1:
        """The same for the server's intake, as long as the log is open; answers wait for it in `held`."""
        if not self.writer.is_open:
            return 0
        size = self.fill(data, 0, size, inlet.host)
        if self.out_size:
            self.held.put(self.writer.base + self.writer.offset, inlet.connection, inlet,
                          PyBytes_FromStringAndSize(PyByteArray_AS_STRING(self.buffer), self.out_size),
                          self.answer_count)
        return size

    cdef Py_ssize_t fill(self, const unsigned char* data, Py_ssize_t at, Py_ssize_t end, bytes born_host) except -1:
        cdef const unsigned char* frame
        cdef unsigned char* out = self.buffer
        cdef unsigned char* put = out
        cdef unsigned char* limit = out + OUT_BYTES
        cdef Py_ssize_t size, header_size
        cdef long long position, queue_offset = 0
        cdef SendHeader header
        cdef RawDraft raw
        cdef Seen seen
        self.out_size = 0
        self.answer_count = 0
        if len(born_host) != HOST_V4:
            return at
        raw.born_host = born_host
        raw.born_size = HOST_V4
        raw.store_host = self.store_host
        raw.store_size = HOST_V4
        raw.prepared_position = 0
        while end - at >= 8 and put < limit:
            frame = data + at
            size = get32(frame)
            header_size = get32(frame + 4)  # a JSON header: the high byte is 0
            if size > self.max_frame or end - at - 4 < size or header_size + 4 > size:
                break
            if not read_send(frame + 8, header_size, &header):
                break
            raw.body = frame + 8 + header_size
            raw.body_size = size - 4 - header_size
            position = self.store_one(&header, &raw, &seen, &queue_offset)
            if position < 0:
                break
            if not header.flags & ONE_WAY:
                put = self.answer(put, &header, &seen, position, queue_offset)
                self.answer_count += 1
            at += 4 + size
        self.out_size = put - out
        return at

    cdef long long store_one(self, SendHeader* header, RawDraft* raw, Seen* seen, long long* queue_offset):
        """The position of the message in the log, or -1: not for the fast path."""
        cdef PyObject* known
        cdef FastTopic topic
        cdef int size = 0
        cdef long long position
        if header.batch or header.flags & ~ONE_WAY or header.reconsume_times < 0:
            return -1
        if header.storage_flags < 0 or header.storage_flags & FLAG_INNER_BATCH:
            return -1
        if header.born_timestamp_ms < 0 or header.properties_size > MAX_PROPERTIES or header.topic_size < 2:
            return -1
        known = PyDict_GetItem(self.topics, <bytes>header.topic[:header.topic_size])
        if known == NULL:
            return -1
        topic = <FastTopic>known
        if not 0 <= header.queue_id < topic.queues:
            return -1
        if header.properties_size:
            size = unescape(header.properties, header.properties_size, self.properties)
            if size < 0:
                return -1
        look_at_properties(self.properties, size, seen)
        if seen.special or seen.unique_size > MAX_UNIQUE_KEY or not is_plain(seen.unique_key, seen.unique_size):
            return -1
        if size and self.properties[size - 1] != 2:
            self.properties[size] = 2
            size += 1
        memcpy(self.properties + size, <const unsigned char*>self.stamp, len(self.stamp))
        size += <int>len(self.stamp)
        raw.topic = header.topic
        raw.topic_size = header.topic_size
        raw.properties = self.properties
        raw.properties_size = size
        raw.queue_id = header.queue_id
        raw.flags = (header.storage_flags & ~FLAG_TRANSACTION_MASK) | topic.flags
        raw.user_flag = header.user_flag
        raw.reconsume_times = header.reconsume_times
        raw.born_timestamp_ms = header.born_timestamp_ms
        position = self.writer.append(raw, queue_offset)
        if position >= 0:
            topic.messages += 1
            topic.body_bytes += raw.body_size
        return position

    cdef unsigned char* answer(
            self, unsigned char* frame, SendHeader* header, Seen* seen, long long position, long long queue_offset):
        """One whole answer; behind it."""
        cdef unsigned char* at = frame + 8
        cdef bint keyed = seen.unique_key != NULL
        cdef tuple pieces = self.keyed_answer if keyed else self.plain_answer
        cdef int digit
        at = put_bytes(at, <bytes>pieces[0])
        at = put_bytes(at, self.id_prefix)
        for digit in range(16):
            at[digit] = HEX[(position >> (60 - 4 * digit)) & 15]
        at = put_bytes(at + 16, <bytes>pieces[1])
        at = put_number(at, header.queue_id)
        at = put_bytes(at, <bytes>pieces[2])
        at = put_number(at, queue_offset)
        at = put_bytes(at, <bytes>pieces[3])
        if keyed:
            memcpy(at, seen.unique_key, seen.unique_size)
            at = put_bytes(at + seen.unique_size, <bytes>pieces[4])
        at = put_number(at, header.correlation_id)
        at = put_bytes(at, <bytes>pieces[5 if keyed else 4])
        put32(frame, <unsigned int>(at - frame - 4))
        put32(frame + 4, <unsigned int>(at - frame - 8))
        return at
