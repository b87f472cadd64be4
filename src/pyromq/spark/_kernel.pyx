# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Compiled twin of `decode_readable`: from records to the buffers that Arrow's arrays are made of.

Columns of text and bytes are made in two steps: a piece for each row, which points into the record, and then the copy.
What a piece cannot simply point to (broken UTF-8, properties of one name, a compressed body, an IPv6 address) is made
by the functions of `decode_rules`, and the piece points to what they return. Other threads run in between.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memchr, memcmp, memcpy, memset

from pyromq.records._kernel cimport Parts, before_record, crc_is_right, find_parts, get32, get64
from pyromq.records.layout cimport (
    BORN_HOST_AT, FLAG_BORN_HOST_V6, FLAG_COMPRESSED, HOST_V6, POSITION_AT, STORE_TIMESTAMP_SIZE, TAIL_SIZE,
)

from pyromq.records.java_hash import java_text
from pyromq.spark.decode.rules import FIRST_MS, LAST_MS, normal_properties, shown_host, unpacked

cdef enum:
    STOP_LIMIT = 0
    STOP_BLANK = 1
    STOP_EMPTY = 2
    STOP_BAD = 3
    STOP_ENOUGH = 4
    # Above this many properties a dictionary is used.
    MANY = 64
    RECENT = 8
    SHOWN_V4 = 26
    LONGEST_ID = 56

# Offsets of numbers from the record's first byte; negative if they depend on the length of the hosts.
cdef enum:
    STORED_AT = -1
    RECONSUMED = -2

cdef const char* HEX = b"0123456789ABCDEF"
cdef int64_t FIRST = FIRST_MS
cdef int64_t LAST = LAST_MS
cdef int64_t MOST_BYTES = 0x7FFFFFFF

cdef struct Piece:
    const unsigned char* data
    Py_ssize_t size  # -1: there is none


# --- finding records -------------------------------------------------------------------------------------------------

def find(const unsigned char[::1] buffer, Py_ssize_t start, Py_ssize_t limit, long long base, bint check_position,
         long long[::1] out):
    """Twin of `decode_readable.find`: fills `out`; how many, where it ended, and why."""
    cdef Py_ssize_t at = start, count = 0, most = out.shape[0]
    cdef int stop = STOP_LIMIT
    cdef Parts parts
    cdef const unsigned char* data
    if not 0 <= start <= limit <= buffer.shape[0]:
        raise IndexError("outside of the buffer")
    if start == limit:
        return 0, start, STOP_LIMIT
    data = &buffer[0]
    with nogil:
        while True:
            stop = before_record(data + at, limit - at)
            if stop >= 0:
                break
            if not find_parts(data + at, limit - at, &parts) or (
                    check_position and get64(data + at + POSITION_AT) != base + at):
                stop = STOP_BAD
                break
            if count == most:
                stop = STOP_ENOUGH
                break
            out[count] = at
            count += 1
            at += parts.size
    return count, at, stop


# --- text ------------------------------------------------------------------------------------------------------------

cdef bint is_utf8(const unsigned char* text, Py_ssize_t size) noexcept nogil:
    """As strict as Python: no surrogates, nothing longer than it must be, nothing above U+10FFFF."""
    cdef Py_ssize_t at = 0
    cdef uint64_t word
    cdef unsigned char first, second
    cdef int more
    while at < size:
        if size - at >= 8:
            memcpy(&word, text + at, 8)
            if not word & 0x8080808080808080u:
                at += 8
                continue
        first = text[at]
        if first < 0x80:
            at += 1
            continue
        more = 1 if first < 0xE0 else 2 if first < 0xF0 else 3
        if first < 0xC2 or first > 0xF4 or at + more >= size:
            return False
        second = text[at + 1]
        if second & 0xC0 != 0x80 or (more > 1 and text[at + 2] & 0xC0 != 0x80) or (
                more > 2 and text[at + 3] & 0xC0 != 0x80):
            return False
        if (first == 0xE0 and second < 0xA0) or (first == 0xED and second > 0x9F) or (
                first == 0xF0 and second < 0x90) or (first == 0xF4 and second > 0x8F):
            return False
        at += more + 1
    return True


cdef int shown_v4(const unsigned char* host, unsigned char* out) noexcept nogil:
    """`10.0.0.1:8080`; how many characters."""
    cdef int i, at = 0
    for i in range(4):
        at += put_number(host[i], out + at)
        out[at] = 46 if i < 3 else 58
        at += 1
    return at + put_number(get32(host + 4), out + at)


cdef int put_number(unsigned int value, unsigned char* out) noexcept nogil:
    cdef unsigned char digits[10]
    cdef int count = 0, i
    while True:
        digits[count] = 48 + value % 10
        value //= 10
        count += 1
        if value == 0:
            break
    for i in range(count):
        out[i] = digits[count - 1 - i]
    return count


cdef void put_hex(const unsigned char* data, int size, unsigned char* out) noexcept nogil:
    cdef int i
    for i in range(size):
        out[2 * i] = HEX[data[i] >> 4]
        out[2 * i + 1] = HEX[data[i] & 15]


# --- many records ----------------------------------------------------------------------------------------------------

cdef class Records:
    """Records of a buffer, their lengths followed. Makes the buffers of one column after the other."""

    cdef const unsigned char[::1] _buffer
    cdef Py_ssize_t _count
    cdef const unsigned char** _at
    cdef Parts* _parts
    #: The index of the first start where no record is; -1: all are.
    cdef readonly Py_ssize_t bad
    #: Objects that pieces point to, besides the buffer.
    cdef list _kept
    cdef Piece* _tags
    cdef Piece* _keys
    cdef Piece* _unique
    cdef Piece* _names
    cdef Piece* _values
    cdef Py_ssize_t _entries
    cdef Py_ssize_t _room
    cdef int32_t* _entry_ends

    def __cinit__(self, const unsigned char[::1] buffer, const long long[::1] starts):
        cdef Py_ssize_t i, limit = buffer.shape[0]
        cdef const unsigned char* data
        self._buffer = buffer
        self._count = starts.shape[0]
        self._kept = []
        self.bad = -1
        if not self._count:
            return
        self._at = <const unsigned char**>room_for(self._count, sizeof(void*))
        self._parts = <Parts*>room_for(self._count, sizeof(Parts))
        if not limit:
            self.bad = self._count = 0
            return
        data = &buffer[0]
        with nogil:
            for i in range(self._count):
                if starts[i] < 0 or starts[i] > limit or not find_parts(
                        data + starts[i], limit - starts[i], &self._parts[i]):
                    self.bad = self._count = i  # those before it may be looked at
                    break
                self._at[i] = data + starts[i]

    def __dealloc__(self):
        free(self._at)
        free(self._parts)
        free(self._tags)
        free(self._keys)
        free(self._unique)
        free(self._names)
        free(self._values)
        free(self._entry_ends)

    def first_damaged(self) -> int:
        """The index of the first record whose CRC is wrong; -1: none."""
        cdef Py_ssize_t i, found = -1
        with nogil:
            for i in range(self._count):
                if not crc_is_right(self._at[i], &self._parts[i]):
                    found = i
                    break
        return found

    # --- numbers -----------------------------------------------------------------------------------------------------

    cdef const unsigned char* _place(self, Py_ssize_t i, int where) noexcept nogil:
        if where >= 0:
            return self._at[i] + where
        if where == STORED_AT:
            return self._at[i] + self._parts[i].stored_at
        return self._at[i] + self._parts[i].body - TAIL_SIZE

    def int32s(self, int where, int32_t[::1] out):
        cdef Py_ssize_t i
        check_room(out.shape[0], self._count)
        with nogil:
            for i in range(self._count):
                out[i] = <int32_t>get32(self._place(i, where))

    def int64s(self, int where, int64_t[::1] out):
        cdef Py_ssize_t i
        check_room(out.shape[0], self._count)
        with nogil:
            for i in range(self._count):
                out[i] = get64(self._place(i, where))

    def micros(self, int where, int64_t[::1] out, unsigned char[::1] validity) -> int:
        """Times; how many of them are none."""
        cdef Py_ssize_t i, nulls = 0
        cdef int64_t ms
        check_room(out.shape[0], self._count)
        check_room(validity.shape[0], (self._count + 7) // 8)
        if not self._count:
            return 0
        memset(&validity[0], 0, validity.shape[0])
        with nogil:
            for i in range(self._count):
                ms = get64(self._place(i, where))
                if FIRST <= ms <= LAST:
                    out[i] = ms * 1000
                    validity[i >> 3] |= 1 << (i & 7)
                else:
                    out[i] = 0
                    nulls += 1
        return nulls

    # --- topics ------------------------------------------------------------------------------------------------------

    def topic_codes(self, int32_t[::1] out) -> list:
        """The topics that occur, as bytes; `out` says which of them each record has."""
        cdef Piece recent[RECENT]
        cdef int codes[RECENT]
        cdef int oldest = 0, k, code
        cdef Py_ssize_t i
        cdef const unsigned char* topic
        cdef int size
        cdef list names = []
        cdef dict code_of = {}
        check_room(out.shape[0], self._count)
        for k in range(RECENT):
            recent[k].size = -1
        for i in range(self._count):
            topic, size = self._at[i] + self._parts[i].topic, self._parts[i].topic_size
            code = -1
            for k in range(RECENT):
                if recent[k].size == size and memcmp(recent[k].data, topic, size) == 0:
                    code = codes[k]
                    break
            if code < 0:
                name = PyBytes_FromStringAndSize(<const char*>topic, size)
                code = code_of.setdefault(name, len(names))
                if code == len(names):
                    names.append(name)
                recent[oldest].data, recent[oldest].size, codes[oldest] = topic, size, code
                oldest = (oldest + 1) % RECENT
            out[i] = code
        return names

    # --- text and bytes ----------------------------------------------------------------------------------------------

    def topic(self, allocate):
        cdef Piece* pieces = self._new_pieces()
        cdef Py_ssize_t i
        try:
            with nogil:
                for i in range(self._count):
                    pieces[i].data, pieces[i].size = self._at[i] + self._parts[i].topic, self._parts[i].topic_size
            self._make_readable(pieces)
            return written(pieces, self._count, allocate)
        finally:
            free(pieces)

    def body(self, allocate, int64_t at_most):
        """Unpacked. Raises OverflowError when several together would have more bytes than `at_most`."""
        cdef Piece* pieces = self._new_pieces()
        cdef Py_ssize_t i
        cdef int64_t total = 0
        try:
            with nogil:
                for i in range(self._count):
                    pieces[i].data, pieces[i].size = self._at[i] + self._parts[i].body, self._parts[i].body_size
                    if self._parts[i].flags & FLAG_COMPRESSED:
                        with gil:
                            self._replace(&pieces[i], unpacked(as_bytes(&pieces[i]), self._parts[i].flags))
                    total += pieces[i].size
                    if total > at_most and i:
                        break
            if total > at_most and self._count > 1:
                raise OverflowError(f"the bodies of {self._count} messages have more than {at_most} bytes")
            return written(pieces, self._count, allocate)
        finally:
            free(pieces)

    def born_host(self, allocate):
        cdef Piece* pieces = self._new_pieces()
        cdef unsigned char* shown = NULL
        cdef Py_ssize_t i
        cdef dict known = {}
        try:
            shown = <unsigned char*>room_for(self._count, SHOWN_V4)
            with nogil:
                for i in range(self._count):
                    pieces[i].data, pieces[i].size = self._at[i] + BORN_HOST_AT, HOST_V6
                    if self._parts[i].flags & FLAG_BORN_HOST_V6:
                        with gil:
                            self._replace(&pieces[i], known_host(known, as_bytes(&pieces[i])))
                    else:
                        pieces[i].size = shown_v4(self._at[i] + BORN_HOST_AT, shown + i * SHOWN_V4)
                        pieces[i].data = shown + i * SHOWN_V4
            return written(pieces, self._count, allocate)
        finally:
            free(pieces)
            free(shown)

    def tags(self, allocate):
        self._require_properties()
        return written(self._tags, self._count, allocate)

    def keys(self, allocate):
        self._require_properties()
        return written(self._keys, self._count, allocate)

    def message_id(self, allocate):
        """What the producer called it, else where it is."""
        cdef Piece* pieces
        cdef unsigned char* ids = NULL
        cdef Py_ssize_t i
        self._require_properties()
        pieces = self._new_pieces()
        try:
            ids = <unsigned char*>room_for(self._count, LONGEST_ID)
            with nogil:
                for i in range(self._count):
                    pieces[i] = self._unique[i]
                    if pieces[i].size < 0:
                        pieces[i].data = ids + i * LONGEST_ID
                        pieces[i].size = self._put_id(i, ids + i * LONGEST_ID)
            return written(pieces, self._count, allocate)
        finally:
            free(pieces)
            free(ids)

    cdef int _put_id(self, Py_ssize_t i, unsigned char* out) noexcept nogil:
        cdef int host = self._parts[i].stored_at + STORE_TIMESTAMP_SIZE
        cdef int size = self._parts[i].body - TAIL_SIZE - host
        put_hex(self._at[i] + host, size, out)
        put_hex(self._at[i] + POSITION_AT, 8, out + 2 * size)
        return 2 * size + 16

    # --- properties --------------------------------------------------------------------------------------------------

    def split_properties(self, bint all_of_them):
        """Finds tags, keys and the unique key; with `all_of_them`, what the column of properties has, too."""
        cdef Py_ssize_t i
        cdef Piece text
        cdef bint is_normal
        if self._tags != NULL:
            raise RuntimeError("the properties are split already")
        self._tags = self._new_pieces()
        self._keys = self._new_pieces()
        self._unique = self._new_pieces()
        self._entry_ends = <int32_t*>room_for(self._count, sizeof(int32_t))
        with nogil:
            for i in range(self._count):
                text.data, text.size = self._at[i] + self._parts[i].properties, self._parts[i].properties_size
                is_normal = is_utf8(text.data, text.size)
                if is_normal:
                    is_normal = self._split(i, text, all_of_them, False)
                if not is_normal:
                    with gil:
                        self._replace(&text, normal_properties(as_bytes(&text)))
                    self._split(i, text, all_of_them, True)
                self._entry_ends[i] = <int32_t>self._entries

    cdef bint _split(self, Py_ssize_t i, Piece text, bint all_of_them, bint is_normal) except -1 nogil:
        """False when a name may be there twice: then it is as if this had not been called."""
        cdef const unsigned char* at = text.data
        cdef const unsigned char* end = text.data + text.size
        cdef const unsigned char* middle
        cdef const unsigned char* stop
        cdef Piece name, value
        cdef Py_ssize_t first = self._entries
        cdef uint64_t seen = 0, bit
        self._tags[i].size = self._keys[i].size = self._unique[i].size = -1
        if all_of_them:
            self._make_room(text.size // 4 + 1)
        while at < end:
            stop = <const unsigned char*>memchr(at, 2, end - at)
            if stop == NULL:
                stop = end
            middle = <const unsigned char*>memchr(at, 1, stop - at)
            name.data = at
            at = stop + 1
            if middle == NULL or middle == name.data or middle + 1 == stop:
                continue
            name.size = middle - name.data
            value.data, value.size = middle + 1, stop - middle - 1
            if name.size == 4:
                if memcmp(name.data, b"TAGS", 4) == 0:
                    self._tags[i] = value
                elif memcmp(name.data, b"KEYS", 4) == 0:
                    self._keys[i] = value
            elif name.size == 8:
                if memcmp(name.data, b"UNIQ_KEY", 8) == 0:
                    self._unique[i] = value
                elif memcmp(name.data, b"__CRC32#", 8) == 0:
                    continue
            if not all_of_them:
                continue
            if not is_normal:
                bit = <uint64_t>1 << ((name.data[0] + 7 * name.data[name.size - 1] + 3 * name.size) & 63)
                if self._entries - first >= MANY or (seen & bit and self._is_known(first, name)):
                    self._entries = first
                    return False
                seen |= bit
            self._names[self._entries] = name
            self._values[self._entries] = value
            self._entries += 1
        return True

    cdef bint _is_known(self, Py_ssize_t first, Piece name) noexcept nogil:
        cdef Py_ssize_t k
        for k in range(first, self._entries):
            if self._names[k].size == name.size and memcmp(self._names[k].data, name.data, name.size) == 0:
                return True
        return False

    cdef int _make_room(self, Py_ssize_t more) except -1 nogil:
        cdef void* grown
        if self._entries + more <= self._room:
            return 0
        self._room = max(2 * self._room, self._entries + more, 8 * self._count)
        grown = realloc(self._names, self._room * sizeof(Piece))
        if grown != NULL:
            self._names = <Piece*>grown
            grown = realloc(self._values, self._room * sizeof(Piece))
        if grown == NULL:
            with gil:
                raise MemoryError()
        self._values = <Piece*>grown
        return 0

    def properties(self, allocate):
        """Where each row's entries end, how many there are, their names and their values."""
        cdef object ends = allocate(4 * (self._count + 1))
        cdef int32_t[::1] view = memoryview(ends).cast("i")
        cdef Py_ssize_t i
        self._require_properties()
        view[0] = 0
        for i in range(self._count):
            view[i + 1] = self._entry_ends[i]
        return (ends, self._entries, written(self._names, self._entries, allocate),
                written(self._values, self._entries, allocate))

    cdef int _require_properties(self) except -1:
        if self._tags == NULL:
            raise RuntimeError("split the properties first")
        return 0

    # --- pieces ------------------------------------------------------------------------------------------------------

    cdef Piece* _new_pieces(self) except NULL:
        return <Piece*>room_for(self._count, sizeof(Piece))

    cdef int _make_readable(self, Piece* pieces) except -1:
        cdef Py_ssize_t i
        with nogil:
            for i in range(self._count):
                if pieces[i].size > 0 and not is_utf8(pieces[i].data, pieces[i].size):
                    with gil:
                        self._replace(&pieces[i], java_text(as_bytes(&pieces[i])).encode())
        return 0

    cdef int _replace(self, Piece* piece, bytes data) except -1:
        self._kept.append(data)
        piece.data = <const unsigned char*>PyBytes_AS_STRING(data)
        piece.size = PyBytes_GET_SIZE(data)
        return 0


cdef bytes as_bytes(Piece* piece):
    return PyBytes_FromStringAndSize(<const char*>piece.data, piece.size)


cdef bytes known_host(dict known, bytes host):
    shown = known.get(host)
    if shown is None:
        shown = known[host] = shown_host(host).encode()
    return shown


cdef void* room_for(Py_ssize_t count, size_t each) except NULL:
    cdef void* room = malloc(max(count, 1) * each)
    if room == NULL:
        raise MemoryError()
    return room


cdef int check_room(Py_ssize_t room, Py_ssize_t needed) except -1:
    if room < needed:
        raise IndexError("there is no room for so many")
    return 0


cdef tuple written(Piece* pieces, Py_ssize_t count, allocate):
    """Validity (None: all are there), ends and bytes of a column, and how many rows have none."""
    cdef Py_ssize_t i, nulls = 0
    cdef int64_t total = 0
    cdef int32_t[::1] ends
    cdef unsigned char[::1] data, validity
    cdef unsigned char* target = NULL
    cdef int32_t at = 0
    with nogil:
        for i in range(count):
            if pieces[i].size < 0:
                nulls += 1
            else:
                total += pieces[i].size
    if total > MOST_BYTES:
        raise OverflowError(f"a column of {count} rows has {total} bytes, the limit is {MOST_BYTES}")
    end_room, data_room = allocate(4 * (count + 1)), allocate(total)
    ends = memoryview(end_room).cast("i")
    data = memoryview(data_room).cast("B")
    if total:
        target = &data[0]
    validity_room = allocate((count + 7) // 8) if nulls else None
    if nulls:
        validity = memoryview(validity_room).cast("B")
        memset(&validity[0], 0, validity.shape[0])
    with nogil:
        ends[0] = 0
        for i in range(count):
            if pieces[i].size > 0:
                memcpy(target + at, pieces[i].data, pieces[i].size)
                at += <int32_t>pieces[i].size
            if nulls and pieces[i].size >= 0:
                validity[i >> 3] |= 1 << (i & 7)
            ends[i + 1] = at
    return validity_room, end_room, data_room, nulls
