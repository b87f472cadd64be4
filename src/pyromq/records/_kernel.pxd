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

cdef struct RawDraft:
    # A message to be encoded, its parts wherever they are in memory.
    const unsigned char* topic
    Py_ssize_t topic_size
    const unsigned char* properties
    Py_ssize_t properties_size
    const unsigned char* body
    Py_ssize_t body_size
    const unsigned char* born_host
    Py_ssize_t born_size
    const unsigned char* store_host
    Py_ssize_t store_size
    int queue_id
    int flags
    int user_flag
    int reconsume_times
    long long born_timestamp_ms
    long long prepared_position

cdef unsigned int get32(const unsigned char* at) noexcept nogil
cdef long long get64(const unsigned char* at) noexcept nogil
cdef void put32(unsigned char* at, unsigned int value) noexcept nogil
cdef void put64(unsigned char* at, long long value) noexcept nogil
cdef unsigned int crc32(const unsigned char* data, size_t size) noexcept nogil
cdef int before_record(const unsigned char* at, Py_ssize_t room) noexcept nogil
cdef bint find_parts(const unsigned char* record, long long room, Parts* parts) noexcept nogil
cdef bint crc_is_right(const unsigned char* record, Parts* parts) noexcept nogil
cdef const unsigned char* find_property(
    const unsigned char* properties, int size, const unsigned char* name, int name_size, int* value_size) noexcept nogil
cdef bint ascii_hash(const unsigned char* text, int size, unsigned int* value) noexcept nogil
cdef int encode_into(
    unsigned char* target, long long room, object draft, long long position, long long queue_offset,
    long long store_timestamp_ms, bint with_crc, int max_body) except -2
cdef int encode_raw(
    unsigned char* target, long long room, RawDraft* raw, long long position, long long queue_offset,
    long long store_timestamp_ms, bint with_crc, int max_body) noexcept nogil
