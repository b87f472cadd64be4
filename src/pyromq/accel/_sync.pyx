# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The body of the thread that syncs the log's files."""

from libc.errno cimport EINTR, errno
from libc.stdint cimport uint64_t
from posix.unistd cimport read, write

cdef extern from "<unistd.h>" nogil:
    int fdatasync(int)


cdef int sync_file(int descriptor) noexcept nogil:
    """0, or the number of the error."""
    while fdatasync(descriptor) != 0:
        if errno != EINTR:
            return errno
    return 0


def sync_loop(int requests, int answers, int[::1] shared):
    """The body of a thread that syncs files, and never asks for the interpreter's lock while it does.

    `requests` and `answers` are event descriptors. For each request the files in `shared[2:2 + shared[0]]` are synced in
    this order; `shared[1]` is then 0, or the error of the first that failed. A negative count ends the thread.
    """
    cdef int* files = &shared[0]
    cdef int i
    cdef uint64_t word
    with nogil:
        while True:
            if read(requests, &word, 8) == 8:
                files[1] = 0
            elif errno == EINTR:
                continue
            else:
                files[1] = errno  # the waiting side must learn that no sync counts any more
                files[0] = 0
            if files[0] < 0:
                break
            for i in range(files[0]):
                files[1] = sync_file(files[2 + i])
                if files[1]:
                    break
            word = 1
            write(answers, &word, 8)
            if files[0] == 0:
                break
