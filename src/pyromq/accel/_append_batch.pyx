# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Appends messages to the log: the writer of the append batch, and drafts one after the other.

`queue_cursor` and `record` define what is written. A message that is not ordinary is handed back: the store appends it.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.dict cimport PyDict_GetItem
from cpython.long cimport PyLong_AsLongLongAndOverflow
from cpython.object cimport PyObject
from libc.string cimport memchr, memcpy

from pyromq.accel.entry cimport ENTRY, ENTRY_CODE_AT, ENTRY_SIZE_AT
from pyromq.records._kernel cimport RawDraft, encode_into, encode_raw, put32, put64
from pyromq.records.layout cimport FLAG_COMMITTED, FLAG_TRANSACTION_MASK

from pyromq.model.message import AppendedAt


cdef class QueueCursor:
    """Twin of `queue_cursor.ReadableQueueCursor`."""

    def __init__(self):
        self.next_append = 0
        self.next_dispatch = 0
        self.first = 0
        self.limit = 0
        self.buffer = memoryview(b"")

    def point_at(self, buffer, long long first, long long limit):
        if (limit - first) * ENTRY > len(buffer):
            raise IndexError("the limit lies outside of the buffer")
        self.buffer = buffer
        self.view = buffer
        self.first = first
        self.limit = limit

    def put(self, long long position, int size, long long tag_code):
        if not self.first <= self.next_dispatch < self.limit:
            raise AssertionError("no room for the entry")
        self.write(position, size, tag_code)

    cdef void write(self, long long position, int size, long long tag_code) noexcept:
        cdef unsigned char* at = &self.view[(self.next_dispatch - self.first) * ENTRY]
        put64(at, position)
        put32(at + ENTRY_SIZE_AT, size)
        put64(at + ENTRY_CODE_AT, tag_code)
        self.next_dispatch += 1
        if self.awaited is not None:
            (<list>self.awaited).append(self.name)
            self.awaited = None


cdef class BatchWriter:
    """Appends messages to an append batch, straight from the received bytes; see `append_batch`."""

    def __init__(self):
        self.view = None
        self.base = 0

    def open(self, unsigned char[::1] view, long long base, Py_ssize_t offset, long long now_ms, bint with_crc,
             int max_body, dict cursors):
        if not 0 <= offset <= view.shape[0]:
            raise IndexError("append outside of the buffer")
        self.view = view
        self.room = view.shape[0]
        self.base = base
        self.offset = offset
        self.with_crc = with_crc
        self.max_body = max_body
        self.cursors = cursors
        self.count = 0
        self.now_ms = now_ms
        self.is_awaited = False
        self.is_open = True

    def renew(self, long long now_ms):
        """Set the store time of the messages that follow."""
        self.now_ms = now_ms

    def go_on(self, long long room):
        """Begin again at the buffer's start: what was written is in the log, which has `room` bytes left."""
        self.base += self.offset
        self.offset = 0
        self.room = min(room, <long long>self.view.shape[0])

    def close(self):
        self.is_open = False
        self.view = None
        self.cursors = None

    def append_draft(self, draft):
        """For the tests: append one message; its position and queue offset, or None if the store must append it."""
        cdef RawDraft raw
        cdef long long queue_offset = 0, position
        cdef bytes topic = draft.topic, properties = draft.properties, body = draft.body
        cdef bytes born_host = draft.born_host, store_host = draft.store_host
        raw.topic, raw.topic_size = topic, len(topic)
        raw.properties, raw.properties_size = properties, len(properties)
        raw.body, raw.body_size = body, len(body)
        raw.born_host, raw.born_size = born_host, len(born_host)
        raw.store_host, raw.store_size = store_host, len(store_host)
        raw.queue_id, raw.flags, raw.user_flag = draft.queue_id, draft.storage_flags, draft.user_flag
        raw.reconsume_times, raw.prepared_position = draft.reconsume_times, draft.prepared_position
        raw.born_timestamp_ms = draft.born_timestamp_ms
        position = self.append(&raw, &queue_offset)
        return None if position < 0 else (position, queue_offset)

    cdef long long append(self, RawDraft* raw, long long* queue_offset):
        """Write one message: its position, or -1 when the ordinary way must take it."""
        cdef QueueCursor cursor = find_cursor(self.cursors, raw.topic, raw.topic_size, raw.queue_id)
        cdef long long position = self.base + self.offset
        cdef int size
        if cursor is None or raw.flags & FLAG_TRANSACTION_MASK:
            return -1
        size = encode_raw(&self.view[0] + self.offset, self.room - self.offset, raw, position,
                          cursor.next_append, self.now_ms, self.with_crc, self.max_body)
        if size <= 0:
            return -1
        queue_offset[0] = cursor.next_append
        cursor.next_append += 1
        self.offset += size
        self.count += 1
        if cursor.awaited is not None:
            self.is_awaited = True
        return position


cdef QueueCursor find_cursor(dict cursors, const unsigned char* topic, Py_ssize_t topic_size, int queue_id):
    cdef bytes key = PyBytes_FromStringAndSize(NULL, topic_size + 4)
    cdef unsigned char* raw = <unsigned char*>PyBytes_AS_STRING(key)
    cdef PyObject* found
    memcpy(raw, topic, topic_size)
    put32(raw + topic_size, queue_id)
    found = PyDict_GetItem(cursors, key)
    return None if found == NULL else <QueueCursor>found


def first_unusual(list drafts, Py_ssize_t start, int max_body) -> int:
    """Index of the first draft that `record.check_draft` should look at; their number when there is none."""
    cdef Py_ssize_t i
    for i in range(start, len(drafts)):
        draft = drafts[i]
        if not (has_plain_bytes(draft.topic, draft.body, draft.properties, draft.born_host, draft.store_host, max_body)
                and fits(draft.queue_id, 31, False) and fits(draft.user_flag, 31, True)
                and fits(draft.storage_flags, 31, False) and fits(draft.reconsume_times, 31, False)
                and fits(draft.born_timestamp_ms, 62, False) and fits(draft.prepared_position, 62, False)):
            return i
    return len(drafts)


cdef bint has_plain_bytes(topic, body, properties, born_host, store_host, int max_body):
    """Exactly bytes, of ordinary lengths, and a topic that can be the name of a directory."""
    cdef Py_ssize_t size
    cdef const unsigned char* raw
    if not (type(topic) is bytes and type(body) is bytes and type(properties) is bytes
            and type(born_host) is bytes and type(store_host) is bytes):
        return False
    size = len(<bytes>topic)
    raw = <bytes>topic
    return (1 < size <= 255 and raw[0] != 46 and memchr(raw, 0, size) == NULL and memchr(raw, 47, size) == NULL
            and len(<bytes>body) <= max_body and len(<bytes>properties) <= 32746
            and len(<bytes>born_host) == 8 and len(<bytes>store_host) == 8)


cdef bint fits(value, int bits, bint signed):
    """Exactly an int, of so many bits."""
    cdef int overflow = 0
    cdef long long number
    if type(value) is not int:
        return False
    number = PyLong_AsLongLongAndOverflow(value, &overflow)
    return overflow == 0 and number < (<long long>1 << bits) and number >= (-(<long long>1 << bits) if signed else 0)


def append_drafts(unsigned char[::1] buffer, Py_ssize_t offset, long long base, list drafts, Py_ssize_t start,
                  dict cursors, long long now_ms, bint with_crc, int max_body, list receipts):
    """Twin of `queue_cursor.append_drafts_readable`; also stops at a draft that the kernel does not know."""
    cdef Py_ssize_t index, room = buffer.shape[0]
    cdef int size, flags
    cdef long long queue_offset
    cdef bint counted
    cdef QueueCursor cursor
    cdef bytes topic
    cdef unsigned char* target = &buffer[0]
    if not 0 <= offset <= room:
        raise IndexError("append outside of the buffer")
    for index in range(start, len(drafts)):
        draft = drafts[index]
        topic = draft.topic
        cursor = find_cursor(cursors, topic, len(topic), draft.queue_id)
        if cursor is None:
            return index, offset, False
        flags = draft.storage_flags & FLAG_TRANSACTION_MASK
        counted = flags == 0 or flags == FLAG_COMMITTED
        queue_offset = cursor.next_append if counted else 0
        size = encode_into(target + offset, room - offset, draft, base + offset, queue_offset, now_ms, with_crc,
                           max_body)
        if size <= 0:
            return index, offset, size == 0
        receipts.append(tuple.__new__(AppendedAt, (base + offset, size, queue_offset)))
        cursor.next_append += counted
        offset += size
    return len(drafts), offset, False
