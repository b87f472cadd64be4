# The functions that other compiled modules may call at C speed.

cdef struct SendHeader:
    # The fields of a send whose header was read in place; pointers are into the received bytes.
    int code
    int correlation_id
    int flags
    const unsigned char* topic
    int topic_size
    # Still escaped as JSON has it.
    const unsigned char* properties
    int properties_size
    int queue_id
    int storage_flags
    int user_flag
    int reconsume_times
    long long born_timestamp_ms
    bint batch

cdef struct PullHeader:
    # The bytes of the whole frame, and the numbers that differ from pull to pull.
    Py_ssize_t size
    long long offset
    # -1: none.
    long long committed
    int correlation_id

cdef bytes read_pull(const unsigned char* frame, Py_ssize_t room, PullHeader* found)
cdef bint read_send(const unsigned char* header, Py_ssize_t size, SendHeader* found) noexcept nogil
cdef int unescape(const unsigned char* text, int size, unsigned char* target) noexcept nogil
