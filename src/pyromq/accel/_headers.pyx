# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Headers of sends and pulls, read where they were received: no JSON object, no text.

Takes only the shape that clients write: compact JSON, plain ASCII, the code before the fields, every value in its place.
Everything else is left to `header` and `requests`, which define what a header means; where this one takes a header, both
find the same in it.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.string cimport memcmp, memcpy

cdef extern from *:
    """
    #ifndef _GNU_SOURCE
    #define _GNU_SOURCE
    #endif
    #include <string.h>
    """
    void* memmem(const void*, size_t, const void*, size_t) nogil

cdef enum:
    SEND = 10
    SEND_V2 = 310
    SLOTS = 14
    # Slots have the order of the one-letter names, a to n.
    GROUP = 0
    TOPIC = 1
    DEFAULT_QUEUES = 3
    QUEUE = 4
    STORAGE_FLAGS = 5
    BORN = 6
    USER_FLAG = 7
    PROPERTIES = 8
    RECONSUMED = 9
    MAX_RECONSUMED = 11
    BATCH = 12
    NONE = -1

cdef struct Text:
    const unsigned char* at
    int size
    bint escaped

cdef const char** LONG_NAMES = [
    "producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums", "queueId", "sysFlag", "bornTimestamp", "flag",
    "properties", "reconsumeTimes", "unitMode", "maxReconsumeTimes", "batch", "",
]
cdef int* LONG_SIZES = [13, 5, 12, 21, 7, 7, 13, 4, 10, 14, 8, 17, 5, 0]


cdef const unsigned char* read_text(const unsigned char* at, const unsigned char* end, Text* text) noexcept nogil:
    """A JSON string of printable ASCII; behind its closing quote, or NULL."""
    if at >= end or at[0] != 34:
        return NULL
    at += 1
    text.at = at
    text.escaped = False
    while at < end and at[0] != 34:
        if at[0] < 32 or at[0] > 126:
            return NULL
        if at[0] == 92:
            text.escaped = True
            at += 1
        at += 1
    if at >= end:
        return NULL
    text.size = <int>(at - text.at)
    return at + 1


cdef const unsigned char* read_int(const unsigned char* at, const unsigned char* end, int* value) noexcept nogil:
    """A JSON number of 32 bits; behind it, or NULL."""
    cdef Text text
    cdef long long number = 0
    text.at = at
    if at < end and at[0] == 45:
        at += 1
    while at < end and 48 <= at[0] <= 57:
        at += 1
    text.size = <int>(at - text.at)
    if text.size > 1 and (text.at[0] == 48 or (text.at[0] == 45 and text.at[1] == 48)):
        return NULL
    if not whole_number(&text, 32, &number):
        return NULL
    value[0] = <int>number
    return at


cdef bint whole_number(Text* text, int bits, long long* value) noexcept nogil:
    """The number in a field; False when it is none, or too large, or longer than anybody writes it."""
    cdef int i = 0
    cdef long long number = 0
    cdef bint negative = text.size > 0 and text.at[0] == 45
    if negative:
        i = 1
    if text.size - i < 1 or text.size - i > 18:
        return False
    while i < text.size:
        if not 48 <= text.at[i] <= 57:
            return False
        number = number * 10 + text.at[i] - 48
        i += 1
    if negative:
        number = -number
    if bits == 32 and not -2147483648LL <= number <= 2147483647LL:
        return False
    value[0] = number
    return True


cdef int slot_of(Text* name, bint short_names) noexcept nogil:
    """Which field a name means; NONE for one that a send does not have."""
    cdef int slot
    if short_names:
        return name.at[0] - 97 if name.size == 1 and 97 <= name.at[0] < 97 + SLOTS - 1 else NONE
    for slot in range(SLOTS - 1):
        if name.size == LONG_SIZES[slot] and memcmp(name.at, LONG_NAMES[slot], name.size) == 0:
            return slot
    return NONE


cdef const unsigned char* read_fields(
        const unsigned char* at, const unsigned char* end, bint short_names, Text* fields) noexcept nogil:
    """The object of fields; behind it, or NULL."""
    cdef Text name, value
    cdef int slot
    if at >= end or at[0] != 123:
        return NULL
    at += 1
    while True:
        at = read_text(at, end, &name)
        if at == NULL or name.escaped or at >= end or at[0] != 58:
            return NULL
        at = read_text(at + 1, end, &value)
        if at == NULL or at >= end:
            return NULL
        slot = slot_of(&name, short_names)
        if value.escaped and slot != PROPERTIES:
            return NULL
        if slot != NONE:
            fields[slot] = value
        at += 1
        if at[-1] == 125:
            return at
        if at[-1] != 44:
            return NULL


cdef bint is_name(Text* name, const char* expected, int size) noexcept nogil:
    return name.size == size and memcmp(name.at, expected, size) == 0


cdef bint read_send(const unsigned char* header, Py_ssize_t size, SendHeader* found) noexcept nogil:
    """Read the header of a send; False when it is not one of the usual shape."""
    cdef const unsigned char* at = header
    cdef const unsigned char* end = header + size
    cdef Text name, skipped
    cdef Text fields[SLOTS]
    cdef int slot, version = 0
    cdef bint has_fields = False, has_id = False
    for slot in range(SLOTS):
        fields[slot].at = NULL
    found.flags = 0
    # The code first: it says what the fields are called.
    if size < 20 or memcmp(at, b'{"code":', 8) != 0:
        return False
    at = read_int(at + 8, end, &found.code)
    if at == NULL or (found.code != SEND and found.code != SEND_V2):
        return False
    while at < end and at[0] == 44:
        at = read_text(at + 1, end, &name)
        if at == NULL or name.escaped or at >= end or at[0] != 58:
            return False
        at += 1
        if is_name(&name, "extFields", 9):
            if has_fields:
                return False
            has_fields = True
            at = read_fields(at, end, found.code == SEND_V2, fields)
        elif is_name(&name, "opaque", 6):
            has_id = True
            at = read_int(at, end, &found.correlation_id)
        elif is_name(&name, "flag", 4):
            at = read_int(at, end, &found.flags)
        elif is_name(&name, "version", 7):
            at = read_int(at, end, &version)
        elif is_name(&name, "language", 8) or is_name(&name, "serializeTypeCurrentRPC", 23):
            at = read_text(at, end, &skipped)
            if at != NULL and skipped.escaped:
                return False
        else:
            return False
        if at == NULL:
            return False
    if at != end - 1 or at[0] != 125 or not has_fields or not has_id:
        return False
    return fill(fields, found)


cdef bint number_in(Text* field, int bits, long long default, long long* value) noexcept nogil:
    value[0] = default
    return field.at == NULL or whole_number(field, bits, value)


cdef bint fill(Text* fields, SendHeader* found) noexcept nogil:
    """From texts to numbers; False when one is missing or is none."""
    cdef long long queue, flags, user, reconsumed, unused
    if fields[GROUP].at == NULL or fields[TOPIC].at == NULL or fields[QUEUE].at == NULL:
        return False
    if not (number_in(&fields[QUEUE], 32, 0, &queue) and number_in(&fields[STORAGE_FLAGS], 32, 0, &flags)
            and number_in(&fields[USER_FLAG], 32, 0, &user) and number_in(&fields[RECONSUMED], 32, 0, &reconsumed)
            and number_in(&fields[BORN], 64, 0, &found.born_timestamp_ms)
            and number_in(&fields[DEFAULT_QUEUES], 32, 0, &unused)
            and number_in(&fields[MAX_RECONSUMED], 32, 0, &unused)):
        return False
    found.queue_id = <int>queue
    found.storage_flags = <int>flags
    found.user_flag = <int>user
    found.reconsume_times = <int>reconsumed
    found.topic = fields[TOPIC].at
    found.topic_size = fields[TOPIC].size
    found.properties = fields[PROPERTIES].at
    found.properties_size = fields[PROPERTIES].size if fields[PROPERTIES].at != NULL else 0
    found.batch = fields[BATCH].at != NULL and not (
        fields[BATCH].size == 5 and memcmp(fields[BATCH].at, b"false", 5) == 0)
    return True


cdef int hex_digit(unsigned char digit) noexcept nogil:
    if 48 <= digit <= 57:
        return digit - 48
    digit |= 32
    return digit - 87 if 97 <= digit <= 102 else -1


cdef int unescape(const unsigned char* text, int size, unsigned char* target) noexcept nogil:
    """What a JSON string means, for escapes of ASCII characters; its size, or -1."""
    cdef int i = 0, length = 0, high, low
    cdef unsigned char letter
    while i < size:
        letter = text[i]
        i += 1
        if letter == 92:
            if i >= size:
                return -1
            letter = text[i]
            i += 1
            if letter == 117:
                if i + 4 > size or text[i] != 48 or text[i + 1] != 48:
                    return -1
                high = hex_digit(text[i + 2])
                low = hex_digit(text[i + 3])
                if high < 0 or high > 7 or low < 0 or high + low == 0:
                    return -1
                letter = 16 * high + low
                i += 4
            elif letter == 110:
                letter = 10
            elif letter == 116:
                letter = 9
            elif letter == 114:
                letter = 13
            elif letter != 34 and letter != 92 and letter != 47:
                return -1
        target[length] = letter
        length += 1
    return length


def send_header(bytes header):
    """For the tests: what `read_send` finds, or None."""
    cdef SendHeader found
    cdef bytearray properties
    cdef int size = 0
    if not read_send(header, len(header), &found):
        return None
    properties = bytearray(found.properties_size + 1)
    if found.properties_size:
        size = unescape(found.properties, found.properties_size, properties)
        if size < 0:
            return None
    return {
        "code": found.code, "correlation_id": found.correlation_id, "flags": found.flags,
        "topic": (<bytes>found.topic[:found.topic_size]).decode(), "properties": bytes(properties[:size]).decode(),
        "queue_id": found.queue_id, "storage_flags": found.storage_flags, "user_flag": found.user_flag,
        "reconsume_times": found.reconsume_times, "born_timestamp_ms": found.born_timestamp_ms, "batch": found.batch,
    }


# --- pulls -------------------------------------------------------------------------------------------------------------

cdef struct Span:
    # A number in the header: where its digits are, and what they say.
    Py_ssize_t start
    Py_ssize_t end
    long long value


cdef bint find_number(
        const unsigned char* header, Py_ssize_t size, const char* before, Py_ssize_t before_size, Span* found) noexcept nogil:
    """The number behind a name that stands in the header once. `found.start` is -1 when the name is not there."""
    cdef const unsigned char* at = header
    cdef const unsigned char* end = header + size
    cdef Text digits
    found.start = -1
    while True:
        at = <const unsigned char*>memmem(at, end - at, before, before_size)
        if at == NULL:
            return True
        if found.start >= 0:
            return False
        at += before_size
        digits.at = at
        while at < end and 48 <= at[0] <= 57:
            at += 1
        digits.size = <int>(at - digits.at)
        found.start = digits.at - header
        found.end = at - header
        if not whole_number(&digits, 64, &found.value) or at >= end or (digits.size > 1 and digits.at[0] == 48):
            return False


cdef bytes read_pull(const unsigned char* frame, Py_ssize_t room, PullHeader* found):
    """The pull that begins here, and its header without the numbers that differ from pull to pull. None: no whole pull
    of the usual shape does.

    Quotes inside of a JSON text are escaped, so a name between quotes and a colon can only be a name.
    """
    cdef Py_ssize_t size, header_size, used = 0, start = 0
    cdef const unsigned char* header = frame + 8
    cdef Span spans[3]
    cdef Span swap
    cdef int i, j
    cdef bytes key
    cdef unsigned char* target
    if room < 64 or (memcmp(header, b'{"code":11,', 11) != 0 and memcmp(header, b'{"code":361,', 12) != 0):
        return None
    size = get_length(frame)
    header_size = get_length(frame + 4)
    if room - 4 < size or header_size + 4 != size or header_size > 65536:
        return None
    if not (find_number(header, header_size, b'"queueOffset":"', 15, &spans[0])
            and find_number(header, header_size, b'"opaque":', 9, &spans[1])
            and find_number(header, header_size, b'"commitOffset":"', 16, &spans[2])):
        return None
    if spans[0].start < 0 or spans[1].start < 0 or spans[1].value > 0x7FFFFFFF:
        return None
    found.size = 4 + size
    found.offset = spans[0].value
    found.correlation_id = <int>spans[1].value
    found.committed = spans[2].value if spans[2].start >= 0 else -1
    if spans[2].start < 0:
        spans[2].start = spans[2].end = header_size
    for i in range(2):
        for j in range(2 - i):
            if spans[j].start > spans[j + 1].start:
                swap = spans[j]
                spans[j] = spans[j + 1]
                spans[j + 1] = swap
    key = PyBytes_FromStringAndSize(
        NULL, header_size - digits_in(&spans[0]) - digits_in(&spans[1]) - digits_in(&spans[2]))
    target = <unsigned char*>PyBytes_AS_STRING(key)
    for i in range(3):
        memcpy(target + used, header + start, spans[i].start - start)
        used += spans[i].start - start
        start = spans[i].end
    memcpy(target + used, header + start, header_size - start)
    return key


cdef Py_ssize_t digits_in(Span* span) noexcept nogil:
    return span.end - span.start


def split_pull(const unsigned char[::1] data, Py_ssize_t at):
    """The pull in the frame at `at`: where the frame ends, its header without the numbers that differ from pull to pull,
    the offset, the offset that is committed along with it (or -1), and the correlation id; None: see `read_pull`."""
    cdef PullHeader found
    cdef bytes key = read_pull(&data[0] + at, data.shape[0] - at, &found)
    return None if key is None else (at + found.size, key, found.offset, found.committed, found.correlation_id)


cdef Py_ssize_t get_length(const unsigned char* at) noexcept nogil:
    return (<Py_ssize_t>at[0] << 24) | (<Py_ssize_t>at[1] << 16) | (<Py_ssize_t>at[2] << 8) | at[3]
