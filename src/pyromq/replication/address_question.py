"""Ask a replication port for the address of its broker. No input or output.

A slave whose settings name the replication address of its master alone does not know where to copy topics, groups and
progress. It asks on a connection of its own:

    follower → primary   IS_OURS               one word: a negative number, which is no position
    primary → follower   IS_OURS               the same word
    follower → primary   HELLO, length, JSON   see `handshake`
    primary → follower   HELLO, length, JSON   the address, under the proof of the group secret; both hang up

A primary of Apache RocketMQ takes the word for a position that its log does not have: it acknowledges nothing for it,
and sends nothing before its first heartbeat. So it is never sent a handshake, whose bytes it would take for
acknowledged positions; the stream begins on another connection, unchanged.
"""

from __future__ import annotations

from pyromq.errors import BadFrame
from pyromq.replication.frames import IS_OURS, REPORT
from pyromq.replication.handshake import OF_PRIMARY, Hello, HelloReader, Secret, Welcome, framed, primary_parts, read
from pyromq.replication.identity import Refused


class AddressQuestion:
    """One question."""

    def __init__(self, hello: Hello, secret: Secret) -> None:
        self._hello = hello
        self._secret = secret
        self._reader = HelloReader()
        self._is_ours = False
        #: The address of the primary's broker; `None` before the answer has come.
        self.address: str | None = None

    def first(self) -> bytes:
        """Return the word to begin with."""
        return REPORT.pack(IS_OURS)

    def received(self, data: bytes) -> bytes:
        """Take bytes of the primary, and return those to send next. Raises BadFrame, Refused."""
        self._reader.feed(data)
        if not self._is_ours:
            if self._reader.is_undecided:
                return b""
            if not self._reader.take_question():
                raise BadFrame("the replication port belongs to a broker that tells no address")
            self._is_ours = True
            return framed(self._hello.encode())
        if (payload := self._reader.next()) is not None:
            self._take(read(Welcome, payload))
        return b""

    def _take(self, welcome: Welcome) -> None:
        if welcome.refused:
            raise Refused(f"the master refuses this slave: {welcome.refused}", for_good=welcome.for_good)
        if not self._secret.verify(welcome.proof, OF_PRIMARY, *primary_parts(self._hello, welcome)):
            raise Refused("the replication port does not prove the secret of this group: its address is not believed")
        self.address = welcome.address
