# What other compiled modules may call at C speed.

cdef struct Parts:
    # A record whose lengths have been followed and add up; offsets count from the record's first byte.
    int size
    int flags
    int stored_at
    int body
    int body_size
    int topic
    int topic_size
    int properties
    int properties_size

cdef unsigned int get32(const unsigned char* at) noexcept nogil
cdef long long get64(const unsigned char* at) noexcept nogil
cdef void put32(unsigned char* at, unsigned int value) noexcept nogil
cdef void put64(unsigned char* at, long long value) noexcept nogil
cdef unsigned int crc32(const unsigned char* data, size_t size) noexcept nogil
cdef bint find_parts(const unsigned char* record, long long room, Parts* parts) noexcept nogil
cdef bint crc_is_right(const unsigned char* record, Parts* parts) noexcept nogil
cdef const unsigned char* find_property(
    const unsigned char* properties, int size, const unsigned char* name, int name_size, int* value_size) noexcept nogil
cdef bint ascii_hash(const unsigned char* text, int size, unsigned int* value) noexcept nogil
cdef int encode_into(
    unsigned char* target, long long room, object draft, long long position, long long queue_offset,
    long long store_timestamp_ms, bint with_crc, int max_body) except -2
