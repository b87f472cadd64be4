# The functions that other compiled modules may call at C speed.

from posix.uio cimport iovec

cdef class Inlet:
    cdef int descriptor
    cdef readonly object connection
    cdef readonly bytes host
    cdef public bint is_plain
    cdef public long long last_tick
    cdef bytes gathered
    cdef Py_ssize_t send_pieces(self, iovec* pieces, int count)
    cdef bint gather(self, bytes answers)
    cdef int write_gathered(self) except -1
    cdef int write(self, bytes answers) except -1

cdef class Shortcut:
    # Limit of an answer that can be made smaller, in this turn.
    cdef long long answer_room
    cdef Py_ssize_t take_bytes(self, const unsigned char* data, Py_ssize_t size, Inlet inlet) except -1

cdef long long nanoseconds() noexcept
