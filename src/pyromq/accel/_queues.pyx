# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Follows the log and reads queues: dispatch, index, collect. The reference implementations in `store` define them.

Each loop takes the ordinary records and stops before the first other one: the store handles that one and calls again.
"""

from cpython.memoryview cimport PyMemoryView_GET_BUFFER
from libc.string cimport memcmp, memcpy
from posix.uio cimport iovec

from pyromq.accel._append_batch cimport QueueCursor, find_cursor
from pyromq.accel.entry cimport ENTRY, ENTRY_CODE_AT, ENTRY_SIZE_AT
from pyromq.records._kernel cimport Parts, ascii_hash, crc_is_right, find_parts, find_property, get32, get64, put32, put64
from pyromq.records.layout cimport (
    FLAG_COMMITTED, FLAG_ROLLED_BACK, FLAG_TRANSACTION_MASK, POSITION_AT, QUEUE_ID_AT, QUEUE_OFFSET_AT,
)

from pyromq.records.java_hash import tag_code

cdef extern from *:
    void __builtin_prefetch(const void* at, int written, int near) nogil

cdef enum:
    # An index file: header, slots, entries of key hash, position, seconds, previous entry.
    INDEX_HEADER = 40
    INDEX_ENTRY = 20
    INDEX_SLOT = 4
    INDEX_POSITION_AT = 4
    INDEX_SECONDS_AT = 12
    INDEX_PREVIOUS_AT = 16

cdef const unsigned char* SCHEDULE_TOPIC = b"SCHEDULE_TOPIC_XXXX"


cdef object tag_code_of(const unsigned char* record, Parts* parts):
    """The tag code as a Python int, for tags that are not ASCII."""
    cdef int size = 0
    cdef const unsigned char* tag = find_property(
        record + parts.properties, parts.properties_size, b"TAGS", 4, &size)
    return tag_code(<bytes>tag[:size])


def dispatch(const unsigned char[::1] buffer, Py_ssize_t start, Py_ssize_t end, dict cursors):
    """Write queue entries for the records in `[start, end)`; stop before the first that is not ordinary."""
    cdef Py_ssize_t at = start
    cdef long long count = 0, timestamp = 0, code
    cdef unsigned int value
    cdef int size = 0, flags
    cdef Parts parts
    cdef QueueCursor cursor
    cdef const unsigned char* record
    cdef const unsigned char* tag
    if not 0 <= start <= end <= buffer.shape[0]:
        raise IndexError("dispatch outside of the buffer")
    while at < end:
        record = &buffer[at]
        if not find_parts(record, end - at, &parts):
            break
        flags = parts.flags & FLAG_TRANSACTION_MASK
        if flags == 0 or flags == FLAG_COMMITTED:
            if parts.topic_size == 19 and memcmp(record + parts.topic, SCHEDULE_TOPIC, 19) == 0:
                break
            cursor = find_cursor(cursors, record + parts.topic, parts.topic_size, <int>get32(record + QUEUE_ID_AT))
            if cursor is None or cursor.next_dispatch != get64(record + QUEUE_OFFSET_AT) or cursor.next_dispatch >= cursor.limit:
                break
            code = 0
            tag = find_property(record + parts.properties, parts.properties_size, b"TAGS", 4, &size)
            if tag != NULL:
                value = 0
                if ascii_hash(tag, size, &value):
                    code = <int>value
                else:
                    code = tag_code_of(record, &parts)
            cursor.write(get64(record + POSITION_AT), parts.size, code)
        count += 1
        timestamp = get64(record + parts.stored_at)
        at += parts.size
    return at, count, timestamp


cdef class IndexCursor:
    """Twin of `key_index.ReadableIndexCursor`: the writing end of one key-index file."""

    cdef readonly object buffer
    cdef readonly int slots
    cdef readonly int entries
    cdef public int count
    cdef public int used_slots
    cdef public int limit
    cdef public long long begin_ms
    cdef public long long end_ms
    cdef public long long begin_position
    cdef public long long end_position
    cdef unsigned char[::1] view

    def __init__(self, buffer, int slots, int entries):
        if INDEX_HEADER + INDEX_SLOT * slots + INDEX_ENTRY * entries > len(buffer):
            raise IndexError("the index file is too short")
        self.buffer = buffer
        self.view = buffer
        self.slots = slots
        self.entries = entries
        self.limit = entries
        self.count = 1
        self.used_slots = 0
        self.begin_ms = self.end_ms = self.begin_position = self.end_position = 0

    def put(self, int key_hash, long long position, long long timestamp_ms):
        if self.count >= self.limit:
            raise AssertionError("the index file is full")
        self.write(key_hash, position, timestamp_ms)

    cdef void write(self, int key_hash, long long position, long long timestamp_ms) noexcept:
        cdef unsigned char* slot = &self.view[INDEX_HEADER + INDEX_SLOT * (key_hash % self.slots)]
        cdef unsigned char* entry = &self.view[
            INDEX_HEADER + INDEX_SLOT * <long long>self.slots + INDEX_ENTRY * <long long>self.count]
        cdef int previous = <int>get32(slot)
        cdef long long seconds
        if previous <= 0 or previous > self.count:
            previous = 0
        if self.count <= 1:
            self.begin_position = position
            self.begin_ms = timestamp_ms
        seconds = (timestamp_ms - self.begin_ms) // 1000
        if seconds < 0 or self.begin_ms <= 0:
            seconds = 0
        elif seconds > 0x7FFFFFFF:
            seconds = 0x7FFFFFFF
        put32(entry, key_hash)
        put64(entry + INDEX_POSITION_AT, position)
        put32(entry + INDEX_SECONDS_AT, <unsigned int>seconds)
        put32(entry + INDEX_PREVIOUS_AT, previous)
        put32(slot, self.count)
        self.used_slots += previous == 0
        self.count += 1
        self.end_position = position
        self.end_ms = timestamp_ms


cdef bint put_key(IndexCursor index, const unsigned char* topic, int topic_size, const unsigned char* key,
                  int key_size, long long position, long long timestamp_ms):
    """Index `topic#key`; False when the key is not ASCII."""
    cdef unsigned int value = 0
    cdef int signed_value
    if not ascii_hash(topic, topic_size, &value):
        return False
    value = 31 * value + 35
    if not ascii_hash(key, key_size, &value):
        return False
    signed_value = <int>value
    if signed_value < 0:
        signed_value = -signed_value if signed_value != <int>0x80000000u else 0
    index.write(signed_value, position, timestamp_ms)
    return True


def index_keys(const unsigned char[::1] buffer, Py_ssize_t start, Py_ssize_t end, IndexCursor index):
    """Index the keys of the records in `[start, end)`; stop before the first that is not ordinary."""
    cdef Py_ssize_t at = start
    cdef long long position, timestamp
    cdef int size = 0, keys_size = 0, words, i, word
    cdef Parts parts
    cdef const unsigned char* record
    cdef const unsigned char* unique
    cdef const unsigned char* keys
    if not 0 <= start <= end <= buffer.shape[0]:
        raise IndexError("index outside of the buffer")
    while at < end:
        record = &buffer[at]
        if not find_parts(record, end - at, &parts):
            break
        if parts.flags & FLAG_TRANSACTION_MASK != FLAG_ROLLED_BACK:
            position = get64(record + POSITION_AT)
            timestamp = get64(record + parts.stored_at)
            unique = find_property(record + parts.properties, parts.properties_size, b"UNIQ_KEY", 8, &size)
            keys = find_property(record + parts.properties, parts.properties_size, b"KEYS", 4, &keys_size)
            words = unique != NULL
            if keys != NULL:
                words += 1
                for i in range(keys_size):
                    words += keys[i] == 32
            if index.count + words > index.limit or not is_ascii(record + parts.topic, parts.topic_size):
                break
            if (unique != NULL and not is_ascii(unique, size)) or (keys != NULL and not is_ascii(keys, keys_size)):
                break
            if unique != NULL:
                put_key(index, record + parts.topic, parts.topic_size, unique, size, position, timestamp)
            if keys != NULL:
                word = 0
                for i in range(keys_size + 1):
                    if i == keys_size or keys[i] == 32:
                        if i > word:
                            put_key(index, record + parts.topic, parts.topic_size, keys + word, i - word, position,
                                    timestamp)
                        word = i + 1
        at += parts.size
    return at


cdef bint is_ascii(const unsigned char* text, int size) noexcept nogil:
    cdef int i
    for i in range(size):
        if text[i] > 127:
            return False
    return True


cdef const unsigned char* record_of(
        const unsigned char* entry, QueueView* view, list buffers, int* size):
    """The record that an entry points to, when it may be shown as it is and is in memory; NULL otherwise."""
    cdef long long position = get64(entry), at
    cdef Py_ssize_t number
    size[0] = <int>get32(entry + ENTRY_SIZE_AT)
    if position < view.hot_from or position < view.first_base or size[0] <= 0 or size[0] > view.readable - position:
        return NULL
    number = (position - view.first_base) // view.segment_bytes
    at = (position - view.first_base) % view.segment_bytes
    if number >= len(buffers) or buffers[number] is None or at + size[0] > view.segment_bytes:
        return NULL
    return <const unsigned char*>PyMemoryView_GET_BUFFER(buffers[number]).buf + at


cdef bint is_wanted(const unsigned char* entry, tag_codes):
    return tag_codes is None or get64(entry + ENTRY_CODE_AT) in tag_codes


cdef bint measure(const unsigned char* entries, QueueView* view, list buffers, tag_codes):
    """How many entries one answer takes, and how many bytes their records have; False when an entry of them needs a
    closer look than this."""
    cdef int size = 0
    cdef const unsigned char* entry
    view.count = view.total = 0
    view.next = view.first
    while view.next < view.end and view.count < view.max_messages:
        entry = entries + view.next * ENTRY
        if is_wanted(entry, tag_codes):
            if record_of(entry, view, buffers, &size) == NULL:
                return False
            if view.count and view.total + size > view.max_bytes:
                return True
            view.count += 1
            view.total += size
        view.next += 1
    return True


cdef void gather(const unsigned char* entries, QueueView* view, list buffers, tag_codes, unsigned char* target):
    """Copy what `measure` counted."""
    cdef int size = 0
    cdef Py_ssize_t index
    cdef const unsigned char* record
    for index in range(view.first, view.next):
        if is_wanted(entries + index * ENTRY, tag_codes):
            record = record_of(entries + index * ENTRY, view, buffers, &size)
            memcpy(target, record, size)
            target += size


cdef void fetch(const unsigned char* record, int size) noexcept:
    """Have it brought near the processor, with all the others: one after the other each would be waited for."""
    cdef int at
    for at in range(0, size, 64):
        __builtin_prefetch(record + at, 0, 2)


cdef int spread(const unsigned char* entries, QueueView* view, list buffers, tag_codes, iovec* pieces, int most):
    """Where what `measure` counted lies: how many pieces; -1 when it is scattered over more."""
    cdef int size = 0, count = 0
    cdef Py_ssize_t index
    cdef const unsigned char* record
    cdef const unsigned char* end = NULL
    for index in range(view.first, view.next):
        if is_wanted(entries + index * ENTRY, tag_codes):
            record = record_of(entries + index * ENTRY, view, buffers, &size)
            if record != end:
                if count == most:
                    return -1
                pieces[count].iov_base = <void*>record
                pieces[count].iov_len = 0
                count += 1
            pieces[count - 1].iov_len += size
            end = record + size
            fetch(record, size)
    return count


def collect(const unsigned char[::1] entries, Py_ssize_t index, Py_ssize_t end, long long first_base,
            long long segment_bytes, list buffers, long long readable, long long checked_below, bytes topic,
            int queue_id, long long first_offset, tag_codes, Py_ssize_t max_messages, long long max_bytes, list views):
    """Twin of `queue_reader.collect_readable`."""
    cdef long long position, total = 0, at, code
    cdef int size
    cdef bint filtered = tag_codes is not None
    cdef const unsigned char* entry
    cdef const unsigned char[::1] segment
    cdef long long segment_index, current = -1
    cdef object buffer = None
    cdef Parts parts
    cdef const unsigned char* raw_topic = topic
    cdef Py_ssize_t topic_size = len(topic)
    if not 0 <= index <= end or end * ENTRY > entries.shape[0]:
        raise IndexError("collect outside of the buffer")
    while index < end and len(views) < max_messages:
        entry = &entries[index * ENTRY]
        position = get64(entry)
        size = <int>get32(entry + ENTRY_SIZE_AT)
        if position < first_base or size <= 0 or size > readable - position:
            break
        if filtered:
            code = get64(entry + ENTRY_CODE_AT)
            if code not in tag_codes:
                index += 1
                continue
        if views and total + size > max_bytes:
            break
        segment_index = (position - first_base) // segment_bytes
        if segment_index != current:
            if segment_index >= len(buffers):
                break
            buffer = buffers[segment_index]
            if buffer is None:
                break
            segment = buffer
            current = segment_index
        at = (position - first_base) % segment_bytes
        if at + size > segment.shape[0]:
            break
        if position < checked_below and not entry_is_right(
                &segment[at], size, position, raw_topic, topic_size, queue_id, first_offset + index,
                get64(entry + ENTRY_CODE_AT)):
            break
        views.append(buffer[at:at + size])
        total += size
        index += 1
    return index


cdef bint entry_is_right(const unsigned char* record, int size, long long position, const unsigned char* topic,
                         Py_ssize_t topic_size, int queue_id, long long queue_offset, long long code):
    """Does the record at an entry's position belong to that entry, and is it whole?"""
    cdef Parts parts
    cdef int tag_size = 0
    cdef unsigned int value = 0
    cdef const unsigned char* tag
    if (not find_parts(record, size, &parts) or parts.size != size or get64(record + POSITION_AT) != position
            or get64(record + QUEUE_OFFSET_AT) != queue_offset or <int>get32(record + QUEUE_ID_AT) != queue_id
            or parts.topic_size != topic_size or memcmp(record + parts.topic, topic, topic_size) != 0
            or not crc_is_right(record, &parts)):
        return False
    if topic_size == 19 and memcmp(topic, SCHEDULE_TOPIC, 19) == 0:
        return True  # the code is a due time
    tag = find_property(record + parts.properties, parts.properties_size, b"TAGS", 4, &tag_size)
    if tag == NULL:
        return code == 0
    if not ascii_hash(tag, tag_size, &value):
        return code == <long long>tag_code_of(record, &parts)
    return code == <int>value
