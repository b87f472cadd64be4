# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Reads all connections that have something to say in one turn of the loop, and answers what needs no decision.

An event loop calls a protocol for each connection that is readable, and again for what it writes. Here it calls once,
and what follows for each connection (receive, take the usual requests, send their answers) needs no interpreter.
Everything else is handed to the `Connection`, which is the definition of what has to happen: bytes that the shortcut
does not know, answers that the peer does not take, and whatever goes wrong with a socket.
"""

from cpython.bytes cimport PyBytes_AS_STRING
from cpython.dict cimport PyDict_GetItem
from cpython.object cimport PyObject
from libc.errno cimport EAGAIN, EINTR, errno
from libc.string cimport memcpy, memset
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec
from posix.uio cimport iovec
from posix.unistd cimport close

cdef extern from *:
    """
    #include <netinet/in.h>
    #include <netinet/tcp.h>
    #include <sys/socket.h>
    #include <sys/types.h>
    #ifdef __linux__
    #include <sys/epoll.h>
    #else  /* without epoll there is no intake, and its constructor fails */
    #include <errno.h>
    #define EPOLLIN 1
    #define EPOLL_CTL_ADD 1
    #define EPOLL_CTL_DEL 2
    #define EPOLL_CLOEXEC 0
    typedef union { int fd; } epoll_data_t;
    struct epoll_event { unsigned int events; epoll_data_t data; };
    static int epoll_create1(int flags) { errno = ENOSYS; return -1; }
    static int epoll_ctl(int epoll, int what, int fd, struct epoll_event *event) { errno = ENOSYS; return -1; }
    static int epoll_wait(int epoll, struct epoll_event *events, int count, int ms) { errno = ENOSYS; return -1; }
    #endif
    #ifndef MSG_NOSIGNAL
    #define MSG_NOSIGNAL 0
    #endif
    static void limit_unsent(int fd, int bytes) {
    #ifdef TCP_NOTSENT_LOWAT
        (void)setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &bytes, sizeof bytes);
    #endif
    }
    """
    int EPOLLIN, EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CLOEXEC, MSG_DONTWAIT, MSG_NOSIGNAL
    ctypedef union epoll_data_t:
        int fd
    struct epoll_event:
        unsigned int events
        epoll_data_t data
    int epoll_create1(int flags)
    int epoll_ctl(int epoll, int what, int fd, epoll_event* event)
    int epoll_wait(int epoll, epoll_event* events, int count, int ms)
    ssize_t recv(int fd, void* buffer, size_t size, int flags)
    ssize_t send(int fd, const void* buffer, size_t size, int flags)
    struct msghdr:
        iovec* msg_iov
        size_t msg_iovlen
    ssize_t sendmsg(int fd, const msghdr* message, int flags)
    void limit_unsent(int fd, int bytes)

cdef enum:
    # At most this many connections, and at most this time, for one turn: requests that arrive during the turn are read
    # in it, because one write to the log for many costs each of them less.
    EVENTS = 256
    TURN_NS = 500_000
    # Bytes that the system takes of a peer's answers and cannot send: without a limit they are 2.5 MB for each peer that
    # does not read, which costs 3 ms to copy, and memory that no limit of ours counts.
    UNSENT_BYTES = 512 << 10

# The values of `net.slices`; a test compares them.
cdef long long SLICE_NS = 5_000_000
cdef long long TURN_ANSWERS = 8 << 20
cdef long long LEAST_ANSWER = 32 << 10
SLICE_VALUES = (SLICE_NS, TURN_ANSWERS, LEAST_ANSWER)


cdef class Shortcut:
    """Takes usual requests from received bytes, and leaves what it does not know."""

    cdef Py_ssize_t take_bytes(self, const unsigned char* data, Py_ssize_t size, Inlet inlet) except -1:
        return 0


cdef class Inlet:
    """One connection, as the intake knows it."""

    def __init__(self, connection, int descriptor, bytes host):
        self.connection = connection
        self.descriptor = descriptor
        self.host = host
        limit_unsent(descriptor, UNSENT_BYTES)
        #: No half of a request, nothing that the peer has not taken, nothing that says that it may not go on.
        self.is_plain = False
        self.last_tick = 0

    def send(self, const unsigned char[::1] data):
        """Write to the peer, if nothing is in the way: how much it took. What is wrong, the transport finds out."""
        cdef ssize_t sent = 0
        if self.is_plain and data.shape[0]:
            sent = send(self.descriptor, &data[0], data.shape[0], MSG_DONTWAIT | MSG_NOSIGNAL)
        return max(sent, 0)

    cdef Py_ssize_t send_pieces(self, iovec* pieces, int count):
        """The same for what lies in several places."""
        cdef msghdr message
        cdef ssize_t sent = 0
        if self.is_plain:
            memset(&message, 0, sizeof(message))
            message.msg_iov = pieces
            message.msg_iovlen = count
            sent = sendmsg(self.descriptor, &message, MSG_DONTWAIT | MSG_NOSIGNAL)
        return max(sent, 0)

    cdef bint gather(self, bytes answers):
        """Put aside what leaves soon; True when it is the first."""
        if self.gathered is None:
            self.gathered = answers
            return True
        self.gathered += answers
        return False

    cdef int write_gathered(self) except -1:
        """Without asking the connection, if nothing is in the way."""
        cdef bytes answers = self.gathered
        self.gathered = None
        return self.write(answers)

    cdef int write(self, bytes answers) except -1:
        """What the peer does not take at once leaves before everything else."""
        cdef ssize_t sent = -1
        if self.is_plain:
            sent = send(self.descriptor, PyBytes_AS_STRING(answers), len(answers), MSG_DONTWAIT | MSG_NOSIGNAL)
        if sent < len(answers):
            self.connection.write_rest(answers[max(sent, 0):])
        return 0


cdef class Intake:
    """The connections of one server. A loop watches `descriptor`, and calls `turn` when it is readable."""

    cdef readonly int descriptor
    cdef dict inlets
    cdef object scratch
    cdef unsigned char[::1] buffer
    cdef public long long max_answer_bytes
    cdef readonly long long answer_room
    # Connections that are ready and were not read when the slice of their turn was used up: the next turn begins with
    # them, so that no connection is passed over twice.
    cdef epoll_event unread[EVENTS]
    cdef int unread_count

    def __init__(self, scratch):
        """`scratch` receives the bytes of every read; they are valid until the next one."""
        self.inlets = {}
        self.scratch = scratch
        self.buffer = scratch
        self.max_answer_bytes = self.answer_room = TURN_ANSWERS
        self.unread_count = 0
        self.descriptor = epoll_create1(EPOLL_CLOEXEC)
        if self.descriptor < 0:
            raise OSError(errno, "connections cannot be watched together")

    def new_inlet(self, connection, int descriptor, bytes host):
        return Inlet(connection, descriptor, host)

    def add(self, Inlet inlet):
        cdef epoll_event event
        event.events = EPOLLIN
        event.data.fd = inlet.descriptor
        if epoll_ctl(self.descriptor, EPOLL_CTL_ADD, inlet.descriptor, &event) != 0:
            raise OSError(errno, "a connection cannot be watched")
        self.inlets[inlet.descriptor] = inlet

    def remove(self, Inlet inlet):
        """Nothing happens when it is not there."""
        cdef epoll_event event
        if self.inlets.pop(inlet.descriptor, None) is not None:
            epoll_ctl(self.descriptor, EPOLL_CTL_DEL, inlet.descriptor, &event)

    def close(self):
        if self.descriptor >= 0:
            close(self.descriptor)
        self.descriptor = -1
        self.inlets.clear()

    def turn(self, Shortcut shortcut, long long tick):
        """Read every readable connection. Without a shortcut all bytes go to the connections."""
        cdef epoll_event events[EVENTS]
        cdef int count = self.next_events(events)
        cdef int total = count
        cdef long long until = nanoseconds() + TURN_NS
        self.read_all(events, count, shortcut, tick)
        while 1 < count and total < EVENTS and nanoseconds() < until:
            count = epoll_wait(self.descriptor, events, EVENTS, 0)
            self.read_all(events, count, shortcut, tick)
            total += count

    cdef int next_events(self, epoll_event* events) noexcept:
        cdef int count = self.unread_count
        if count == 0:
            return epoll_wait(self.descriptor, events, EVENTS, 0)
        memcpy(events, self.unread, count * sizeof(epoll_event))
        self.unread_count = 0
        return count

    cdef int read_all(self, epoll_event* events, int count, Shortcut shortcut, long long tick) except -1:
        cdef PyObject* found
        cdef Inlet inlet
        cdef int i
        cdef long long until = nanoseconds() + SLICE_NS
        self.answer_room = max(min(self.max_answer_bytes, TURN_ANSWERS // max(count, 1)), LEAST_ANSWER)
        if shortcut is not None:
            shortcut.answer_room = self.answer_room
        for i in range(count):
            if i and nanoseconds() > until:
                self.unread_count = count - i
                memcpy(self.unread, events + i, (count - i) * sizeof(epoll_event))
                break
            found = PyDict_GetItem(self.inlets, events[i].data.fd)
            if found != NULL:  # reading one connection may have closed another
                inlet = <Inlet>found  # a reference: it may leave the intake while it is read
                self.read(inlet, shortcut, tick)
        return 0

    cdef int read(self, Inlet inlet, Shortcut shortcut, long long tick) except -1:
        cdef ssize_t size = recv(inlet.descriptor, &self.buffer[0], self.buffer.shape[0], MSG_DONTWAIT)
        cdef Py_ssize_t taken = 0
        if size <= 0:
            if size == 0 or (errno != EAGAIN and errno != EINTR):
                inlet.connection.nothing_to_read()
            return 0
        inlet.last_tick = tick
        try:
            if shortcut is not None and inlet.is_plain:
                taken = shortcut.take_bytes(&self.buffer[0], size, inlet)
            if taken < size:
                inlet.connection.received(self.scratch[taken:size])
        except Exception as error:
            inlet.connection.fail(error)
        return 0


cdef long long nanoseconds() noexcept:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return now.tv_sec * <long long>1_000_000_000 + now.tv_nsec
