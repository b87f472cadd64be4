# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Compiled twins of the store's hot loops: append, dispatch, index, collect. The readable forms are the definition.

Each loop takes the ordinary cases and stops before the first one that is not: the caller handles that one in
Python and calls again.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.dict cimport PyDict_GetItem
from cpython.long cimport PyLong_AsLongLongAndOverflow
from cpython.memoryview cimport PyMemoryView_GET_BUFFER
from cpython.object cimport PyObject
from libc.errno cimport EINTR, errno
from libc.stdint cimport uint64_t
from libc.string cimport memchr, memcmp, memcpy
from posix.uio cimport iovec
from posix.unistd cimport read, write

from pyromq.records._kernel cimport (
    Parts, RawDraft, ascii_hash, crc_is_right, encode_into, encode_raw, find_parts, find_property, get32, get64, put32,
    put64,
)

from pyromq.records.layout cimport (
    FLAG_COMMITTED, FLAG_ROLLED_BACK, FLAG_TRANSACTION_MASK, POSITION_AT, QUEUE_ID_AT, QUEUE_OFFSET_AT,
)

from pyromq.model.message import AppendedAt
from pyromq.records.java_hash import tag_code

cdef extern from "<unistd.h>" nogil:
    int fdatasync(int)
    void __builtin_prefetch(const void* at, int written, int near)

cdef enum:
    # A consume-queue entry: position, size of the record, tag code.
    ENTRY = 20
    ENTRY_SIZE_AT = 8
    ENTRY_CODE_AT = 12
    # An index file: header, slots, entries of key hash, position, seconds, previous entry.
    INDEX_HEADER = 40
    INDEX_ENTRY = 20
    INDEX_SLOT = 4
    INDEX_POSITION_AT = 4
    INDEX_SECONDS_AT = 12
    INDEX_PREVIOUS_AT = 16

cdef const unsigned char* SCHEDULE_TOPIC = b"SCHEDULE_TOPIC_XXXX"


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


cdef int sync_file(int descriptor) noexcept nogil:
    """0, or the number of the error."""
    while fdatasync(descriptor) != 0:
        if errno != EINTR:
            return errno
    return 0


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


# --- syncing beside the loop ---------------------------------------------------------------------------------------------


def sync_loop(int requests, int answers, int[::1] shared):
    """The body of a thread that syncs files, and never asks for the interpreter's lock while it does.

    `requests` and `answers` are event descriptors. For each request the files in `shared[2:2 + shared[0]]` are synced in
    this order; `shared[1]` is then 0, or the error of the first that failed. A negative count ends the thread.
    """
    cdef int* files = &shared[0]
    cdef int i
    cdef uint64_t word
    with nogil:
        while True:
            if read(requests, &word, 8) == 8:
                files[1] = 0
            elif errno == EINTR:
                continue
            else:
                files[1] = errno  # whoever waits must hear that nothing is synced any more
                files[0] = 0
            if files[0] < 0:
                break
            for i in range(files[0]):
                files[1] = sync_file(files[2 + i])
                if files[1]:
                    break
            word = 1
            write(answers, &word, 8)
            if files[0] == 0:
                break
