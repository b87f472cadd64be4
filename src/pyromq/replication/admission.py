"""Which followers a primary takes in, and which of them count for acknowledgements. No input or output of its own.

A follower of ours proves the secret of the group, and that its log is the beginning of ours: by its epochs, and by the
digest of its last bytes. Its end is believed then. A broker of Apache RocketMQ proves nothing: it counts if the
settings name it, from the first bytes on that it confirms after they were sent on its own connection. Everything else
may copy the log and never counts.
"""

from __future__ import annotations

import ipaddress
import secrets
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import NamedTuple, Protocol

from pyromq.errors import BadFrame, OffsetNotFound
from pyromq.replication.followers import Followers
from pyromq.replication.frames import IS_OURS, REPORT
from pyromq.replication.handshake import (
    OF_FOLLOWER,
    OF_PRIMARY,
    Accepted,
    Hello,
    HelloReader,
    Proof,
    Secret,
    Welcome,
    digest_between,
    digest_start,
    follower_parts,
    frame_of,
    primary_parts,
    read,
)
from pyromq.replication.identity import Connected, Identity, Refused, displaced
from pyromq.replication.log import ReadLog
from pyromq.replication.log_matching import Epoch, GoOn, LogExtent, way_back

#: A follower that was silent for this many heartbeats no longer keeps another one with its id out.
ALIVE_HEARTBEATS = 2


class Entry(Protocol):
    """A broker that the settings name: `pyromq.config.members`."""

    @property
    def broker_id(self) -> int: ...

    @property
    def address(self) -> str: ...

    @property
    def host(self) -> str: ...


class ResolvedMember(NamedTuple):
    """An entry with one of the addresses of its host."""

    broker_id: int
    address: str
    host: str


class Itself(NamedTuple):
    """The primary's own names."""

    cluster: str = ""
    name: str = ""
    member: str = ""
    address: str = ""


def _nothing(identity: Identity) -> None:
    return None


class Admission:
    """The rules of one primary."""

    def __init__(
        self,
        log: ReadLog,
        *,
        itself: Callable[[], Itself] = Itself,
        epochs: Callable[[], tuple[Epoch, ...]] = tuple,
        secret: Secret | None = None,
        members: Iterable[Entry] = (),
        write_down: Callable[[Identity], None] = _nothing,
        heartbeat_ms: int = 5_000,
        nonce: Callable[[], str] = lambda: secrets.token_hex(16),
    ) -> None:
        """`write_down` returns when an identity is durable. It raises OSError, or Refused."""
        self._log = log
        self._itself = itself
        self._epochs = epochs
        self._secret = secret
        self.members: tuple[Entry, ...] = tuple(members)
        self._write_down = write_down
        self._alive_ms = ALIVE_HEARTBEATS * heartbeat_ms
        self.nonce = nonce

    # --- with a handshake --------------------------------------------------------------------------------------------

    def welcome(self, hello: Hello) -> Welcome:
        """Raises Refused for a follower of another broker."""
        itself = self._itself()
        if (hello.cluster, hello.name) != (itself.cluster, itself.name):
            raise Refused(
                f"a slave of {hello.name} in {hello.cluster} connects to {itself.name} in {itself.cluster}",
                for_good=True,
            )
        welcome = Welcome(member=itself.member, nonce=self.nonce(), address=itself.address)
        if self._secret is None:
            return welcome
        return replace(welcome, proof=self._secret.proof(OF_PRIMARY, *primary_parts(hello, welcome)))

    def check_log(self, hello: Hello) -> None:
        """Raises Refused unless the follower's log is the beginning of ours; BadFrame if it is none."""
        ours, theirs = LogExtent(self._log.log_start, self._log.log_end, self._epochs()), hello.extent
        if theirs.is_empty:
            return
        way = way_back(ours, theirs)
        if way != GoOn(theirs.end) or theirs.epochs != ours.epochs:
            raise Refused(
                f"the log of the slave ends at {theirs.end} with epochs that are not those of this broker, whose log "
                f"ends at {ours.end}: it has to compare again"
            )
        if hello.digest_from > digest_start(theirs.start, theirs.end, ours.start):
            raise Refused(f"the digest of the slave's log begins at {hello.digest_from}, which is too near its end")
        try:
            digest = digest_between(self._log.log_bytes, hello.digest_from, hello.end)
        except OffsetNotFound as gone:
            raise Refused(f"the slave's last bytes cannot be compared: {gone}") from None
        if digest != hello.digest:
            raise Refused(
                f"the slave's log differs from this broker's between {hello.digest_from} and {hello.end}, although the "
                "same brokers led both: one of the stores was put back from an older copy, or is damaged. Compare "
                "both (`pyromq store verify`); to copy the log again, start the slave with an empty store",
                for_good=True,
            )

    def is_proved(self, payload: bytes, welcome: Welcome, proof: str) -> bool:
        return self._secret is not None and self._secret.verify(proof, OF_FOLLOWER, *follower_parts(payload, welcome))

    def identify(self, hello: Hello, host: str, *, proved: bool) -> Identity | None:
        """Return the identity of a follower of ours; `None` if nothing vouches for it. Raises Refused."""
        vouched = any(one.broker_id == hello.broker_id and is_same_host(host, one.host) for one in self.members)
        if not proved and not vouched:
            return None
        itself = self._itself()
        identity = Identity(hello.member, hello.broker_id, hello.address, hello.ha_address, hello.process, proved)
        if not hello.member or hello.member == itself.member:
            raise Refused(f"the slave {identity} has no member id of its own: its store is a copy of this broker's")
        if hello.broker_id == 0:
            raise Refused(f"the slave {identity} has the id of a master: give it another one (brokerId)")
        if hello.address == itself.address:
            raise Refused(f"the slave {identity} gives this broker's own address: give it another one (brokerIP1)")
        return identity

    # --- without -----------------------------------------------------------------------------------------------------

    def knows_host(self, host: str) -> bool:
        """Return whether the settings name a broker on this host."""
        return any(is_same_host(host, one.host) for one in self.members)

    def unannounced(self, host: str, followers: Followers) -> Identity | None:
        """Return the identity of a follower that says nothing of itself, from the settings.

        Each entry is good for one connection. A connection from another machine takes the place of an older one, which
        may be left over from before; on this machine none is, unnoticed. `None` if no entry is left.
        """
        taken = {one.identity.broker_id: one for one in followers.by_name.values() if one.identity is not None}
        entries = [one for one in self.members if is_same_host(host, one.host)]
        for one in entries:
            if one.broker_id not in taken:
                return _configured(one)
        replaceable = [
            (taken[one.broker_id].heard_ms, _configured(one))
            for one in entries
            if not _is_local(host) and taken[one.broker_id].identity == _configured(one)
        ]
        return min(replaceable)[1] if replaceable else None

    # --- both --------------------------------------------------------------------------------------------------------

    def take_in(self, identity: Identity, followers: Followers, now_ms: int) -> Followers:
        """Write the identity down, and return the followers without those whose place it takes. Raises Refused."""
        connected = (
            Connected(one.name, one.identity, one.heard_ms)
            for one in followers.by_name.values()
            if one.identity is not None
        )
        gone = displaced(identity, connected, now_ms - self._alive_ms)
        try:
            self._write_down(identity)
        except OSError as error:
            raise Refused(
                f"the slave {identity} cannot be written down, and must be before it counts: {error}"
            ) from None
        for name in gone:
            followers = followers.left(name)
        return followers


class Greeting:
    """The primary's side of one handshake, or of a connection without one."""

    def __init__(self, admission: Admission, host: str) -> None:
        self._admission = admission
        self._host = host
        self._reader = HelloReader()
        self._payload = b""
        self._hello: Hello | None = None
        self._welcome: Welcome | None = None
        #: Frames for the follower.
        self.answer = b""
        #: The handshake is over, or there is none: reports follow.
        self.is_over = False
        self.identity: Identity | None = None

    @property
    def has_begun(self) -> bool:
        return self._hello is not None

    def feed(self, data: bytes, followers: Followers, now_ms: int) -> None:
        """Raises Refused, with an answer; BadFrame."""
        reader = self._reader
        reader.feed(data)
        if self._hello is None and reader.take_question():
            self.answer += REPORT.pack(IS_OURS)
        if self._hello is None and not reader.is_undecided and not reader.is_hello:
            self.is_over = True
            return
        try:
            while not self.is_over and not reader.is_undecided and (payload := reader.next()) is not None:
                self._take(payload, followers, now_ms)
        except Refused as refusal:
            kind = Welcome if self._welcome is None else Accepted
            self.answer += frame_of(kind(refused=str(refusal), for_good=refusal.for_good))
            raise

    def rest(self) -> bytes:
        """Return the bytes that follow the handshake."""
        return self._reader.take_rest()

    def _take(self, payload: bytes, followers: Followers, now_ms: int) -> None:
        admission = self._admission
        if self._hello is None or self._welcome is None:
            self._payload, self._hello = payload, read(Hello, payload)
            self._welcome = admission.welcome(self._hello)
            self.answer += frame_of(self._welcome)
            return
        hello, proof = self._hello, read(Proof, payload).proof
        proved = admission.is_proved(self._payload, self._welcome, proof)
        identity = admission.identify(hello, self._host, proved=proved)
        admission.check_log(hello)
        if identity is not None:
            admission.take_in(identity, followers, now_ms)  # once more when it joins: this is for the answer
        self.identity, self.is_over = identity, True
        uncounted = "" if identity is not None else _why_uncounted(proof)
        self.answer += frame_of(Accepted(uncounted=uncounted))

    def take_in(self, followers: Followers, now_ms: int) -> Followers:
        """Return the followers without those whose place this one takes. Raises Refused.

        Also after a handshake: another follower with the same id may have joined since.
        """
        if not self.has_begun:
            self.identity = self._admission.unannounced(self._host, followers)
        return followers if self.identity is None else self._admission.take_in(self.identity, followers, now_ms)

    def check_first(self, reported: int) -> None:
        """Raises BadFrame if the first report is not the end that was compared."""
        hello = self._hello
        if hello is not None and reported != (0 if hello.start == hello.end else hello.end):
            raise BadFrame(f"a replica reports {reported} first, and its log was compared up to {hello.end}")


def _configured(entry: Entry) -> Identity:
    return Identity(f"{entry.broker_id}@{entry.address}", entry.broker_id, entry.address)


def _why_uncounted(proof: str) -> str:
    has = "it proved another secret than this broker's" if proof else "it proved no secret"
    return (
        f"{has}: give both the same secret file (replication.secret_file), or name the slave in replication.members of "
        "the master"
    )


def is_same_host(one: str, other: str) -> bool:
    """Return whether two hosts are one address. Every loopback address is this machine."""
    ours, theirs = _address(one), _address(other)
    if ours is None or theirs is None:
        return one.lower() == other.lower() or (_is_local(one) and _is_local(other))
    return ours == theirs or (ours.is_loopback and theirs.is_loopback)


def _is_local(host: str) -> bool:
    address = _address(host)
    return address.is_loopback if address is not None else host.lower() == "localhost"


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(host.partition("%")[0].strip("[]"))
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address
