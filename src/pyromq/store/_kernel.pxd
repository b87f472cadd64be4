# What other compiled modules may call at C speed.

from posix.uio cimport iovec

from pyromq.records._kernel cimport RawDraft

cdef class QueueCursor:
    cdef public long long next_append
    cdef public long long next_dispatch
    cdef readonly object buffer
    cdef readonly long long first
    cdef public long long limit
    cdef public object awaited
    cdef public object name
    cdef unsigned char[::1] view
    cdef void write(self, long long position, int size, long long tag_code) noexcept

cdef class BatchWriter:
    cdef unsigned char[::1] view
    cdef Py_ssize_t room
    cdef readonly long long base
    cdef readonly Py_ssize_t offset
    cdef readonly long long count
    cdef readonly bint is_open
    cdef readonly long long now_ms
    cdef readonly bint is_awaited
    cdef bint with_crc
    cdef int max_body
    cdef dict cursors
    cdef long long append(self, RawDraft* raw, long long* queue_offset)

cdef struct QueueView:
    # What one answer may take of a queue, and what it takes. Entries count from the beginning of their file.
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
