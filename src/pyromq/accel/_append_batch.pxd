# The functions and classes that other compiled modules call at C speed.

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

cdef QueueCursor find_cursor(dict cursors, const unsigned char* topic, Py_ssize_t topic_size, int queue_id)
