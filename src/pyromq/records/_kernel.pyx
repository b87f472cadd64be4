# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Compiled twin of the hot parts of `record` and `scan`. The readable forms there are the definition.

Takes only what it knows: `encode_into` answers -1 for a draft that the readable form should look at.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.string cimport memchr, memcmp, memcpy
from libc.stdint cimport uint32_t, uint64_t, uintptr_t

from pyromq.records.layout cimport (
    BLANK_RESERVE, BODY_CRC_AT, BODY_SIZE_AT, BORN_HOST_AT, BORN_TIMESTAMP_AT, CRC_PROPERTY_SIZE, FLAG_BORN_HOST_V6,
    FLAG_STORE_HOST_V6, HOST_V4, HOST_V6, MAGIC_AT, MAGIC_BLANK, MAGIC_V1, MAGIC_V2, MAX_PROPERTIES, MAX_TOPIC,
    MAX_TOPIC_V1, POSITION_AT, PREPARED_POSITION_AT, PROPERTIES_LENGTH_SIZE, QUEUE_ID_AT, QUEUE_OFFSET_AT,
    RECONSUME_TIMES_AT, SMALLEST_RECORD, STORAGE_FLAGS_AT, STORE_TIMESTAMP_SIZE, TAIL_SIZE, TOTAL_SIZE_AT, USER_FLAG_AT,
)

cdef enum:
    CRC_LIKENESS = 16
    STOP_LIMIT = 0
    STOP_BLANK = 1
    STOP_EMPTY = 2
    STOP_BAD = 3

cdef const unsigned char* CRC_NAME = b"__CRC32#\x01"

# --- CRC-32 ----------------------------------------------------------------------------------------------------

ctypedef uint32_t (*crc_function)(uint32_t, const unsigned char*, uint64_t) noexcept nogil

cdef crc_function fast_crc = NULL
cdef uint32_t crc_tables[8][256]


cdef void make_tables() noexcept:
    """Eight tables, so that a step takes eight bytes: what serves where no fast library is installed."""
    cdef uint32_t i, value
    cdef int bit, k
    for i in range(256):
        value = i
        for bit in range(8):
            value = (value >> 1) ^ (0xEDB88320u if value & 1 else 0)
        crc_tables[0][i] = value
    for i in range(256):
        for k in range(1, 8):
            crc_tables[k][i] = (crc_tables[k - 1][i] >> 8) ^ crc_tables[0][crc_tables[k - 1][i] & 255]


make_tables()


def use_crc32(address: int) -> None:
    """Call the C function at this address for CRC-32 from now on; 0: the tables."""
    global fast_crc
    fast_crc = <crc_function><uintptr_t>address


cdef uint32_t table_crc(const unsigned char* data, size_t size) noexcept nogil:
    cdef uint32_t crc = 0xFFFFFFFFu
    while size >= 8:
        crc = crc ^ (data[0] | (<uint32_t>data[1] << 8) | (<uint32_t>data[2] << 16) | (<uint32_t>data[3] << 24))
        crc = (crc_tables[7][crc & 255] ^ crc_tables[6][(crc >> 8) & 255]
               ^ crc_tables[5][(crc >> 16) & 255] ^ crc_tables[4][crc >> 24]
               ^ crc_tables[3][data[4]] ^ crc_tables[2][data[5]] ^ crc_tables[1][data[6]] ^ crc_tables[0][data[7]])
        data += 8
        size -= 8
    while size:
        crc = (crc >> 8) ^ crc_tables[0][(crc ^ data[0]) & 255]
        data += 1
        size -= 1
    return crc ^ 0xFFFFFFFFu


cdef unsigned int crc32(const unsigned char* data, size_t size) noexcept nogil:
    """With the sign bit cleared, as records have it."""
    if fast_crc != NULL:
        return fast_crc(0, data, size) & 0x7FFFFFFFu
    return table_crc(data, size) & 0x7FFFFFFFu


def positive_crc32(const unsigned char[::1] data) -> int:
    """For the tests: the CRC that the kernel computes."""
    return crc32(&data[0] if data.shape[0] else NULL, data.shape[0])


# --- big-endian numbers ------------------------------------------------------------------------------------------

cdef unsigned int get32(const unsigned char* at) noexcept nogil:
    return (<unsigned int>at[0] << 24) | (<unsigned int>at[1] << 16) | (<unsigned int>at[2] << 8) | at[3]


cdef long long get64(const unsigned char* at) noexcept nogil:
    return <long long>((<unsigned long long>get32(at) << 32) | get32(at + 4))


cdef void put32(unsigned char* at, unsigned int value) noexcept nogil:
    at[0] = value >> 24
    at[1] = (value >> 16) & 255
    at[2] = (value >> 8) & 255
    at[3] = value & 255


cdef void put64(unsigned char* at, long long value) noexcept nogil:
    put32(at, <unsigned int>(<unsigned long long>value >> 32))
    put32(at + 4, <unsigned int>(<unsigned long long>value & 0xFFFFFFFFu))


# --- reading a record ----------------------------------------------------------------------------------------------

cdef bint find_parts(const unsigned char* record, long long room, Parts* parts) noexcept nogil:
    """Follow the lengths; False when they do not add up within `room`."""
    cdef unsigned int magic
    cdef int length_size, tail
    cdef long long size, at
    if room < SMALLEST_RECORD:
        return False
    size = get32(record + TOTAL_SIZE_AT)
    magic = get32(record + MAGIC_AT)
    if (magic != MAGIC_V1 and magic != MAGIC_V2) or size < SMALLEST_RECORD or size > room or size > 0x7FFFFFFF:
        return False
    parts.size = <int>size
    parts.flags = <int>get32(record + STORAGE_FLAGS_AT)
    parts.stored_at = BORN_HOST_AT + (HOST_V6 if parts.flags & FLAG_BORN_HOST_V6 else HOST_V4)
    tail = parts.stored_at + STORE_TIMESTAMP_SIZE + (HOST_V6 if parts.flags & FLAG_STORE_HOST_V6 else HOST_V4)
    parts.body = tail + TAIL_SIZE
    length_size = 1 if magic == MAGIC_V1 else 2
    if parts.body + length_size + PROPERTIES_LENGTH_SIZE > size:
        return False
    parts.body_size = <int>get32(record + tail + BODY_SIZE_AT)
    at = <long long>parts.body + parts.body_size
    if parts.body_size < 0 or at + length_size + PROPERTIES_LENGTH_SIZE > size:
        return False
    parts.topic_size = record[at] if length_size == 1 else (record[at] << 8) | record[at + 1]
    parts.topic = <int>at + length_size
    at = <long long>parts.topic + parts.topic_size
    if parts.topic_size == 0 or at + PROPERTIES_LENGTH_SIZE > size:
        return False
    parts.properties_size = (record[at] << 8) | record[at + 1]
    parts.properties = <int>at + PROPERTIES_LENGTH_SIZE
    return <long long>parts.properties + parts.properties_size == size


cdef int crc_likeness(const unsigned char* tail, long long* crc) noexcept nogil:
    """How many of these 20 bytes are as a CRC property has them; all of them: `crc` is what it says."""
    cdef int i, alike = 0
    crc[0] = 0
    for i in range(9):
        alike += tail[i] == CRC_NAME[i]
    for i in range(18, 8, -1):
        alike += 48 <= tail[i] <= 57
        crc[0] = crc[0] * 10 + tail[i] - 48
    return alike + (tail[19] == 2)


cdef bint crc_is_torn(const unsigned char* tail) noexcept nogil:
    """One side of a CRC property is there and the other is zeroes, or all of it is."""
    cdef int i, first = 0, last = CRC_PROPERTY_SIZE
    while first < CRC_PROPERTY_SIZE and tail[first] == 0:
        first += 1
    while last > first and tail[last - 1] == 0:
        last -= 1
    if first == 0 and last == CRC_PROPERTY_SIZE:
        return False
    for i in range(first, last):
        if not (tail[i] == CRC_NAME[i] if i < 9 else 48 <= tail[i] <= 57 if i < 19 else tail[i] == 2):
            return False
    return first == 0 or last == CRC_PROPERTY_SIZE or first == last


cdef bint crc_is_right(const unsigned char* record, Parts* parts) noexcept nogil:
    """The record's own CRC where it carries one, else its body's."""
    cdef int alike
    cdef long long expected
    if parts.properties_size >= CRC_PROPERTY_SIZE:
        alike = crc_likeness(record + parts.size - CRC_PROPERTY_SIZE, &expected)
        if alike == CRC_PROPERTY_SIZE:
            return crc32(record, parts.size - CRC_PROPERTY_SIZE) == expected
        if alike >= CRC_LIKENESS:
            return False
        if crc_is_torn(record + parts.size - CRC_PROPERTY_SIZE):
            return False
    return crc32(record + parts.body, parts.body_size) == get32(record + BODY_CRC_AT)


def scan(const unsigned char[::1] buffer, Py_ssize_t start, Py_ssize_t limit, long long base, bint check_crc):
    """Twin of `scan.scan_readable`; lets other threads run."""
    cdef Py_ssize_t at = start
    cdef long long count = 0, timestamp = 0
    cdef int stop
    cdef Parts parts
    cdef const unsigned char* data
    if not 0 <= start <= limit <= buffer.shape[0]:
        raise IndexError("scan outside of the buffer")
    if buffer.shape[0] == 0:
        return 0, 0, 0, STOP_LIMIT
    data = &buffer[0]
    with nogil:
        while True:
            stop = before_record(data + at, limit - at)
            if stop >= 0:
                break
            if (not find_parts(data + at, limit - at, &parts) or get64(data + at + POSITION_AT) != base + at
                    or (check_crc and not crc_is_right(data + at, &parts))):
                stop = STOP_BAD
                break
            count += 1
            timestamp = get64(data + at + parts.stored_at)
            at += parts.size
    return at, count, timestamp, stop


cdef int before_record(const unsigned char* at, Py_ssize_t room) noexcept nogil:
    """Why a scan ends here; -1 when a record may begin."""
    cdef Py_ssize_t i
    cdef unsigned int magic
    if room == 0:
        return STOP_LIMIT
    if room < BLANK_RESERVE:
        for i in range(room):
            if at[i]:
                return STOP_BAD
        return STOP_EMPTY
    magic = get32(at + MAGIC_AT)
    if magic == MAGIC_BLANK:
        return STOP_BLANK
    return STOP_EMPTY if magic == 0 and get32(at) == 0 else -1


def last_nonzero(const unsigned char[::1] buffer, Py_ssize_t start, Py_ssize_t end) -> int:
    """Offset behind the last byte in `[start, end)` that is not zero; `start` when all are."""
    cdef Py_ssize_t at = end
    cdef const unsigned char* data
    cdef const uint64_t* words
    if not 0 <= start <= end <= buffer.shape[0]:
        raise IndexError("outside of the buffer")
    if start == end:
        return start
    data = &buffer[0]
    with nogil:
        while at - start >= 64:
            words = <const uint64_t*>(data + at - 64)
            if words[0] | words[1] | words[2] | words[3] | words[4] | words[5] | words[6] | words[7]:
                break
            at -= 64
        while at > start and data[at - 1] == 0:
            at -= 1
    return at


cdef const unsigned char* find_property(
        const unsigned char* properties, int size, const unsigned char* name, int name_size, int* value_size
) noexcept nogil:
    """The last entry with this name; NULL when there is none that counts."""
    cdef const unsigned char* at = properties
    cdef const unsigned char* end = properties + size
    cdef const unsigned char* stop
    cdef const unsigned char* found = NULL
    while at < end:
        stop = <const unsigned char*>memchr(at, 2, end - at)
        if stop == NULL:
            stop = end
        if stop - at > name_size + 1 and at[name_size] == 1 and memcmp(at, name, name_size) == 0:
            found = at + name_size + 1
            value_size[0] = <int>(stop - found)
        at = stop + 1
    return found


cdef bint ascii_hash(const unsigned char* text, int size, unsigned int* value) noexcept nogil:
    """Java's hash, continued from `value`; False when a character is not ASCII and Python must look."""
    cdef int i
    cdef unsigned int result = value[0]
    for i in range(size):
        if text[i] > 127:
            return False
        result = 31 * result + text[i]
    value[0] = result
    return True


# --- writing a record ------------------------------------------------------------------------------------------------

cdef int encode_into(
        unsigned char* target, long long room, object draft, long long position, long long queue_offset,
        long long store_timestamp_ms, bint with_crc, int max_body) except -2:
    """Twin of `record.encode`, straight into the log. The size; 0 when it does not fit; -1: not for the kernel."""
    cdef bytes topic = draft.topic
    cdef bytes properties = draft.properties
    cdef bytes born_host = draft.born_host
    cdef bytes store_host = draft.store_host
    cdef const unsigned char[::1] body = draft.body
    cdef RawDraft raw
    raw.topic = topic
    raw.topic_size = len(topic)
    raw.properties = properties
    raw.properties_size = len(properties)
    raw.body = &body[0] if body.shape[0] else NULL
    raw.body_size = body.shape[0]
    raw.born_host = born_host
    raw.born_size = len(born_host)
    raw.store_host = store_host
    raw.store_size = len(store_host)
    raw.queue_id = draft.queue_id
    raw.flags = draft.storage_flags
    raw.user_flag = draft.user_flag
    raw.reconsume_times = draft.reconsume_times
    raw.born_timestamp_ms = draft.born_timestamp_ms
    raw.prepared_position = draft.prepared_position
    return encode_raw(target, room, &raw, position, queue_offset, store_timestamp_ms, with_crc, max_body)


cdef int encode_raw(
        unsigned char* target, long long room, RawDraft* raw, long long position, long long queue_offset,
        long long store_timestamp_ms, bint with_crc, int max_body) noexcept nogil:
    """The same for a draft whose parts are somewhere in memory. Nothing is written unless all of it is."""
    cdef bint add_separator = with_crc and raw.properties_size > 0 and raw.properties[raw.properties_size - 1] != 2
    cdef Py_ssize_t properties_total = raw.properties_size + add_separator + (CRC_PROPERTY_SIZE if with_crc else 0)
    cdef bint long_topic = raw.topic_size > MAX_TOPIC_V1
    cdef int flags = raw.flags
    cdef long long size, unused
    cdef unsigned char* at
    cdef unsigned int crc
    cdef int i
    if (raw.topic_size == 0 or raw.topic_size > MAX_TOPIC or raw.body_size > max_body or raw.queue_id < 0
            or raw.properties_size > MAX_PROPERTIES - CRC_PROPERTY_SIZE - 1
            or (raw.born_size != HOST_V4 and raw.born_size != HOST_V6)
            or (raw.store_size != HOST_V4 and raw.store_size != HOST_V6)
            or has_crc_property(raw.properties, raw.properties_size)
            or (not with_crc and raw.properties_size >= CRC_PROPERTY_SIZE
                and (crc_likeness(raw.properties + raw.properties_size - CRC_PROPERTY_SIZE, &unused) >= CRC_LIKENESS
                     or crc_is_torn(raw.properties + raw.properties_size - CRC_PROPERTY_SIZE)))):
        return -1
    size = (BORN_HOST_AT + raw.born_size + STORE_TIMESTAMP_SIZE + raw.store_size + TAIL_SIZE + raw.body_size
            + 1 + long_topic + raw.topic_size + PROPERTIES_LENGTH_SIZE + properties_total)
    if size + BLANK_RESERVE > room:
        return 0
    flags = flags & ~(FLAG_BORN_HOST_V6 | FLAG_STORE_HOST_V6)
    if raw.born_size == HOST_V6:
        flags |= FLAG_BORN_HOST_V6
    if raw.store_size == HOST_V6:
        flags |= FLAG_STORE_HOST_V6
    put32(target + MAGIC_AT, MAGIC_V2 if long_topic else MAGIC_V1)
    put32(target + QUEUE_ID_AT, raw.queue_id)
    put32(target + USER_FLAG_AT, raw.user_flag)
    put64(target + QUEUE_OFFSET_AT, queue_offset)
    put64(target + POSITION_AT, position)
    put32(target + STORAGE_FLAGS_AT, flags)
    put64(target + BORN_TIMESTAMP_AT, raw.born_timestamp_ms)
    at = target + BORN_HOST_AT
    memcpy(at, raw.born_host, raw.born_size)
    at += raw.born_size
    put64(at, store_timestamp_ms)
    at += STORE_TIMESTAMP_SIZE
    memcpy(at, raw.store_host, raw.store_size)
    at += raw.store_size
    put32(at + RECONSUME_TIMES_AT, raw.reconsume_times)
    put64(at + PREPARED_POSITION_AT, raw.prepared_position)
    put32(at + BODY_SIZE_AT, <unsigned int>raw.body_size)
    at += TAIL_SIZE
    if raw.body_size:
        memcpy(at, raw.body, raw.body_size)
    put32(target + BODY_CRC_AT, crc32(at, raw.body_size))
    at += raw.body_size
    if long_topic:
        at[0] = (raw.topic_size >> 8) & 255
        at += 1
    at[0] = raw.topic_size & 255
    memcpy(at + 1, raw.topic, raw.topic_size)
    at += 1 + raw.topic_size
    at[0] = (properties_total >> 8) & 255
    at[1] = properties_total & 255
    at += 2
    if raw.properties_size:
        memcpy(at, raw.properties, raw.properties_size)
    at += raw.properties_size
    if add_separator:
        at[0] = 2
        at += 1
    put32(target + TOTAL_SIZE_AT, <unsigned int>size)
    if with_crc:
        crc = crc32(target, at - target)
        memcpy(at, CRC_NAME, 9)
        at += 9
        for i in range(10):
            at[i] = 48 + crc % 10
            crc //= 10
        at[10] = 2
    return <int>size


cdef bint has_crc_property(const unsigned char* properties, Py_ssize_t size) noexcept nogil:
    """True when the client's own properties contain the name of the record CRC."""
    cdef const unsigned char* at = properties
    cdef const unsigned char* end = properties + size
    while end - at >= 8:
        at = <const unsigned char*>memchr(at, 35, end - at)  # '#', the last letter of the name, is rare
        if at == NULL:
            return False
        if at - properties >= 7 and memcmp(at - 7, CRC_NAME, 8) == 0:
            return True
        at += 1
    return False


def encode(draft, long long position, long long queue_offset, long long store_timestamp_ms, bint with_crc,
           Py_ssize_t room, int max_body):
    """For the tests: the bytes that the kernel would put into the log, None when it hands the draft back."""
    cdef bytearray target = bytearray(room)
    cdef int size = encode_into(<unsigned char*>target, room, draft, position, queue_offset, store_timestamp_ms,
                                with_crc, max_body)
    return None if size <= 0 else bytes(target[:size])

# --- batches and ids -------------------------------------------------------------------------------------------

cdef const char* HEX = b"0123456789ABCDEF"


def split_batch(template, Py_ssize_t at_most, type kind):
    """Twin of `batch.split_batch_readable`; None for bytes that do not add up: the readable form says what is wrong."""
    cdef bytes data = bytes(template.body)
    cdef const unsigned char* raw = data
    cdef Py_ssize_t size = len(data), at = 0, body, body_size, properties, end
    cdef list drafts = []
    topic, queue_id, flags, born_ms = template.topic, template.queue_id, template.storage_flags, template.born_timestamp_ms
    born_host, store_host = template.born_host, template.store_host
    reconsume_times, prepared_position = template.reconsume_times, template.prepared_position
    while at < size and len(drafts) < at_most:
        if at + 22 > size:
            return None
        end = at + <Py_ssize_t>get32(raw + at)
        body, body_size = at + 20, <Py_ssize_t>get32(raw + at + 16)
        properties = body + body_size + 2
        if end > size or properties > end or properties + (raw[properties - 2] << 8 | raw[properties - 1]) != end:
            return None
        drafts.append(kind(
            topic, queue_id, PyBytes_FromStringAndSize(<char*>raw + body, body_size),
            PyBytes_FromStringAndSize(<char*>raw + properties, end - properties), <int>get32(raw + at + 12),
            flags, born_ms, born_host, store_host, reconsume_times, prepared_position,
        ))
        at = end
    return drafts


def encode_message_ids(bytes store_host, list positions) -> str:
    """Twin of `message_id.encode_message_ids_readable`."""
    cdef Py_ssize_t host_size = len(store_host), each = 2 * host_size + 17, count = len(positions), index, at
    cdef const unsigned char* host = store_host
    cdef bytes written
    cdef char* out
    cdef uint64_t position
    cdef int digit
    if not count:
        return ""
    written = PyBytes_FromStringAndSize(NULL, count * each - 1)
    out = <char*>written
    for index in range(count):
        position = positions[index]
        for at in range(host_size):
            out[2 * at] = HEX[host[at] >> 4]
            out[2 * at + 1] = HEX[host[at] & 15]
        out += 2 * host_size
        for digit in range(16):
            out[digit] = HEX[(position >> (60 - 4 * digit)) & 15]
        if index + 1 < count:
            out[16] = 44
        out += 17
    return written.decode("ascii")


from pyromq.records.checksum import native_crc32_address

use_crc32(native_crc32_address())
