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
from libc.string cimport memset
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec
from posix.uio cimport iovec
from posix.unistd cimport close

cdef extern from *:
    """
    #include <poll.h>
    #include <sys/socket.h>
    #include <sys/types.h>
    #ifdef __linux__
    #include <sys/epoll.h>
    #else  /* there is no intake there, and its maker is told so */
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
    #include <unistd.h>
    #include <sys/syscall.h>
    /* Older C libraries know no such function, older systems no such call: nobody is waited for there. */
    static int wait_ns(int epoll, struct epoll_event *events, int count, long long ns) {
    #ifdef SYS_epoll_pwait2
        struct { long long seconds, ns; } limit = { ns / 1000000000, ns % 1000000000 };
        return syscall(SYS_epoll_pwait2, epoll, events, count, &limit, (void *)0, (size_t)0);
    #else
        errno = ENOSYS; return -1;
    #endif
    }
    #ifndef MSG_NOSIGNAL
    #define MSG_NOSIGNAL 0
    #endif
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
    int wait_ns(int epoll, epoll_event* events, int count, long long ns) nogil
    ssize_t recv(int fd, void* buffer, size_t size, int flags)
    ssize_t send(int fd, const void* buffer, size_t size, int flags)
    struct msghdr:
        iovec* msg_iov
        size_t msg_iovlen
    ssize_t sendmsg(int fd, const msghdr* message, int flags)
    struct pollfd:
        int fd
        short events
    int POLLIN
    int poll(pollfd* asked, unsigned long count, int ms)

cdef enum:
    # Connections that are read in one turn, and for how long those who have asked meanwhile are read as well; the others
    # are there in the next.
    EVENTS = 256
    TURN_NS = 500_000
    # A peer that asks again within this time is quick, and one that is also alone is waited for: so long for its next
    # request (less costs more: the system has to set a clock), and so long in all, or until the loop's next timer; where
    # nobody knows when that is, not as long.
    QUICK_NS = 400_000
    WAIT_NS = 2_000_000
    STAY_NS = 20_000_000
    BLIND_STAY_NS = 4_000_000
    # It is not waited for while a callback of the loop is ready, or, looked for now and then, a socket of it readable.
    LOOK_NS = 1_000_000
    MOST_NEEDED = 4096


cdef class Shortcut:
    """Takes usual requests from received bytes, and leaves what it does not know."""

    cdef Py_ssize_t take_bytes(self, const unsigned char* data, Py_ssize_t size, Inlet inlet) except -1:
        return 0

    cdef bint settle(self) except -1:
        """Do now what is left for the end of the turn, and answer; False when that is somebody else's matter."""
        return False


cdef class Inlet:
    """One connection, as the intake knows it."""

    def __init__(self, connection, int descriptor, bytes host):
        self.connection = connection
        self.descriptor = descriptor
        self.host = host
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


cdef class Patience:
    """Whom to wait for: one that is alone with us and asks again as soon as it has its answer. After a wait in vain
    whoever is next has to be quick four times as often, after one that was not, half as often."""

    def __init__(self):
        self.alone = -1
        self.answered_at = self.quick = self.stays = self.stays_in_vain = 0
        self.needed = 1

    cpdef bint alone_again(self, int descriptor) noexcept:
        """Whether this one alone has asked, the last time as well; -1: there was none, or there were more.

        Of many who wait for each other's answers, one may be first now and then, and what they ask for is better done
        together.
        """
        cdef int before = self.alone
        self.alone = descriptor
        return descriptor >= 0 and descriptor == before

    cpdef bint asked(self, long long now) noexcept:
        """A turn begins. Whether the one who asks is worth waiting for after its answer."""
        self.quick = self.quick + 1 if now - self.answered_at < QUICK_NS else 0
        self.answered_at = 0
        return self.quick >= self.needed

    cpdef void answered(self, long long now) noexcept:
        """One that is alone has its answer; if it is not told, whoever asks next was not quick."""
        self.answered_at = now

    cpdef void came(self) noexcept:
        """While it was waited for."""
        self.stays += 1
        self.needed = max(self.needed // 2, 1)

    cpdef void did_not_come(self) noexcept:
        self.stays_in_vain += 1
        self.quick = 0
        self.needed = min(4 * self.needed, MOST_NEEDED)


cdef class Intake:
    """The connections of one server. A loop watches `descriptor`, and calls `turn` when it is readable."""

    cdef readonly int descriptor
    cdef int loop_descriptor
    cdef int (*timeout)(void*) noexcept
    cdef void* argument
    cdef object ready
    cdef dict inlets
    cdef object scratch
    cdef unsigned char[::1] buffer
    cdef readonly Patience patience

    def __init__(self, scratch, int loop_descriptor=-1, size_t timeout=0, size_t argument=0, ready=None):
        """`scratch` is where received bytes are put; whoever is handed them looks at them at once. The rest is what
        `loop_state` knows of the loop; nothing: nobody is waited for."""
        self.loop_descriptor = loop_descriptor
        self.timeout = <int (*)(void*) noexcept>timeout
        self.argument = <void*>argument
        self.ready = ready
        self.inlets = {}
        self.scratch = scratch
        self.buffer = scratch
        self.patience = Patience()
        self.descriptor = epoll_create1(EPOLL_CLOEXEC)
        if self.descriptor < 0:
            raise OSError(errno, "connections cannot be watched together")

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
        """Read what is there. Without a shortcut everything goes to the connections.

        One that is alone and has its answer asks again before the loop has gone round: it is waited for here, for a
        moment, in which one message after the other needs neither the interpreter nor the loop.
        """
        cdef epoll_event events[EVENTS]
        cdef int count = epoll_wait(self.descriptor, events, EVENTS, 0)
        cdef int total = count
        cdef long long began = nanoseconds()
        cdef long long until = began + TURN_NS
        cdef bint stays = self.patience.asked(began)
        if not self.read_all(events, count, shortcut, tick):
            # Others have asked meanwhile. What is done for all of them once costs each of them less.
            while 1 < count and total < EVENTS and nanoseconds() < until:
                count = epoll_wait(self.descriptor, events, EVENTS, 0)
                self.read_all(events, count, shortcut, tick)
                total += count
            return
        if stays:
            self.stay(shortcut, tick)
        else:
            self.patience.answered(nanoseconds())

    cdef bint is_wanted(self) except -1:
        """Whether the loop has something else to do, or nobody knows."""
        if self.timeout != NULL:
            return self.timeout(self.argument) == 0
        return self.ready is None or len(self.ready) > 0

    cdef long long longest_stay(self) noexcept:
        cdef int ms
        if self.timeout == NULL:
            return BLIND_STAY_NS
        ms = self.timeout(self.argument)
        return STAY_NS if ms < 0 else min(<long long>STAY_NS, <long long>ms * 1_000_000)

    cdef int stay(self, Shortcut shortcut, long long tick) except -1:
        cdef epoll_event events[EVENTS]
        cdef long long now = nanoseconds()
        cdef long long until = now + self.longest_stay(), next_look = now + LOOK_NS
        cdef int count
        while now < until and not self.is_wanted():
            if now > next_look:
                next_look = now + LOOK_NS
                if is_readable(self.loop_descriptor) and not is_readable(self.descriptor):
                    break  # our own sockets are among the loop's
            with nogil:
                count = wait_ns(self.descriptor, events, EVENTS, WAIT_NS)
            if count == 0:
                self.patience.did_not_come()
            # A process that was stopped meanwhile has to ask first whether it may still answer.
            if (count <= 0 or nanoseconds() > until + WAIT_NS
                    or not self.read_all(events, count, shortcut, tick)):
                return 0
            self.patience.came()
            now = nanoseconds()
        self.patience.answered(now)
        return 0

    cdef bint read_all(self, epoll_event* events, int count, Shortcut shortcut, long long tick) except -1:
        """Whether one is alone, all that it asked for was of the usual kind, and it has its answers."""
        cdef PyObject* found
        cdef Inlet inlet
        cdef int i
        cdef bint taken = True, alone = self.patience.alone_again(events[0].data.fd if count == 1 else -1)
        for i in range(count):
            found = PyDict_GetItem(self.inlets, events[i].data.fd)
            if found != NULL:  # another one's end may have been this one's too
                inlet = <Inlet>found  # ours as well while it is read: it may leave
                taken &= self.read(inlet, shortcut, tick)
        # Also what went the ordinary way may have left something to settle.
        return alone and shortcut is not None and shortcut.settle() and taken

    cdef bint read(self, Inlet inlet, Shortcut shortcut, long long tick) except -1:
        """Whether everything was of the usual kind, and nothing waits to leave."""
        cdef ssize_t size = recv(inlet.descriptor, &self.buffer[0], self.buffer.shape[0], MSG_DONTWAIT)
        cdef Py_ssize_t taken = 0
        if size <= 0:
            if size == 0 or (errno != EAGAIN and errno != EINTR):
                inlet.connection.nothing_to_read()
            return False
        inlet.last_tick = tick
        try:
            if shortcut is not None and inlet.is_plain:
                taken = shortcut.take_bytes(&self.buffer[0], size, inlet)
            return (taken == size or inlet.connection.received(self.scratch[taken:size])) and inlet.is_plain
        except Exception as error:
            inlet.connection.fail(error)
            return False


cdef bint is_readable(int descriptor) noexcept:
    cdef pollfd asked
    asked.fd = descriptor
    asked.events = POLLIN
    return poll(&asked, 1, 0) > 0


cdef long long nanoseconds() noexcept:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return now.tv_sec * <long long>1_000_000_000 + now.tv_nsec
