# The functions that other compiled modules call at C speed.

from posix.uio cimport iovec

cdef struct QueueView:
    # The limits of one answer from a queue, and its result. Entries count from the beginning of their file.
    Py_ssize_t first
    Py_ssize_t end
    Py_ssize_t max_messages
    long long max_bytes
    long long first_base
    long long segment_bytes
    long long readable
    long long hot_from
    Py_ssize_t next
    Py_ssize_t count
    long long total

cdef bint measure(const unsigned char* entries, QueueView* view, list buffers, tag_codes)
cdef int spread(const unsigned char* entries, QueueView* view, list buffers, tag_codes, iovec* pieces, int most)
cdef void gather(const unsigned char* entries, QueueView* view, list buffers, tag_codes, unsigned char* target)
