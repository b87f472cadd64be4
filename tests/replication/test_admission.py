"""Which followers count for acknowledgements, and up to where, without a connection."""

from __future__ import annotations

from typing import Any

import pytest

from pyromq.auth.group_secret import GroupSecret
from pyromq.config.members import ConfiguredMember
from pyromq.errors import BadFrame
from pyromq.replication.admission import Admission, Greeting, is_same_host
from pyromq.replication.followers import Followers
from pyromq.replication.frames import MAX_HELLO, PUSH, encode_report, push_head
from pyromq.replication.handshake import Hello, HelloReader, framed, read
from pyromq.replication.identity import Identity, Refused
from pyromq.replication.introduction import Introduction
from pyromq.replication.log_matching import Epoch
from pyromq.replication.stream import Displaced, PrimaryStream, ReplicaStream, StreamTimes
from replication.memory_log import MemoryLog, a_log
from replication.pairs import PRIMARY, SLAVE, admission, introduction

TIMES = StreamTimes(heartbeat=5_000, housekeeping=20_000, hello=10_000)
LOG = a_log([b"%03d" % number * 20 for number in range(30)])
OTHER = Identity("other", 2, "127.0.0.1:10931", "", "first")
EPOCHS = (Epoch(1, 0, "a.1"),)


class Crowd:
    """A primary and the followers that come to it, each over a connection that carries everything at once."""

    def __init__(self, log: bytes = LOG, **rules: Any) -> None:
        self.log = MemoryLog(log)
        self.written: list[Identity] = []
        self.rules: Admission = admission(self.log, **({"write_down": self.written.append} | rules))
        self.followers = Followers()
        self.streams: dict[str, PrimaryStream] = {}
        self.now_ms = 0

    def connect(self, name: str, host: str = "10.0.0.2") -> PrimaryStream:
        stream = self.streams[name] = PrimaryStream(
            name, self.log, batch_bytes=1 << 20, whole_log=True, times=TIMES, now_ms=self.now_ms,
            greeting=Greeting(self.rules, host),
        )  # fmt: skip
        return stream

    def hear(self, name: str, said: bytes) -> bytes:
        """Return the answer."""
        stream = self.streams[name]
        try:
            self.followers = stream.received(said, self.followers, self.now_ms)
        except Refused:
            self.refusal = stream.take_answer()
            raise
        return stream.take_answer()

    def follow(self, name: str, told: Introduction | None, log: bytes = LOG, host: str = "10.0.0.2") -> ReplicaStream:
        """Connect, and shake hands."""
        self.connect(name, host)
        taking = ReplicaStream(MemoryLog(log), times=TIMES, now_ms=0, introduction=told)
        said = taking.hello(0)
        while said:
            answer = self.hear(name, said)
            taking.received(answer, 0)
            said = taking.report(0) if answer else b""
        return taking

    def send_all(self, name: str) -> None:
        stream = self.streams[name]
        while span := stream.next_span(self.now_ms):
            self.followers = stream.sent(span, self.followers, self.now_ms)

    @property
    def replicated(self) -> int:
        return self.followers.replicated(2, self.log.log_end)


# --- a follower of ours ----------------------------------------------------------------------------------------------


def test_a_follower_that_proves_itself_counts_up_to_the_end_that_was_compared() -> None:
    crowd = Crowd(epochs=lambda: EPOCHS)
    taking = crowd.follow("s", introduction(epochs=EPOCHS))
    assert taking.is_accepted
    assert not taking.uncounted
    assert crowd.replicated == len(LOG)
    assert crowd.written
    assert set(crowd.written) == {SLAVE._replace(is_proved=True)}


def test_it_is_written_down_before_its_report_counts() -> None:
    seen: list[int] = []
    crowd = Crowd(write_down=lambda identity: seen.append(crowd.replicated))
    crowd.follow("s", introduction())
    assert set(seen) == {0}


def test_it_does_not_count_if_it_cannot_be_written_down() -> None:
    def fail(identity: Identity) -> None:
        raise OSError(28, "no space left")

    crowd = Crowd(write_down=fail)
    with pytest.raises(Refused, match="cannot be written down"):
        crowd.follow("s", introduction())
    assert b"no space left" in crowd.refusal
    assert crowd.replicated == 0


@pytest.mark.parametrize("secret", [None, GroupSecret(b"another one")])
def test_without_the_secret_of_the_group_it_copies_and_does_not_count(secret: GroupSecret | None) -> None:
    crowd = Crowd()
    taking = crowd.follow("s", introduction(secret=secret, expects_proof=False))
    assert "replication.secret_file" in taking.uncounted
    crowd.send_all("s")
    assert crowd.replicated == 0
    assert not crowd.written
    assert len(crowd.followers) == 1


def test_the_settings_vouch_for_a_follower_that_has_no_secret() -> None:
    crowd = Crowd(secret=None, members=[ConfiguredMember(1, "10.0.0.2:10911")])
    taking = crowd.follow("s", introduction(secret=None, expects_proof=False))
    assert not taking.uncounted
    assert crowd.replicated == len(LOG)


def test_a_primary_without_the_secret_is_not_followed() -> None:
    with pytest.raises(Refused, match="does not prove"):
        Crowd(secret=None).follow("s", introduction())
    with pytest.raises(Refused, match="comparing again"):
        Crowd().follow("s", introduction(primary="somebody else"))


def test_a_recorded_handshake_is_worth_nothing_on_another_connection() -> None:
    crowd = Crowd()
    crowd.connect("s")
    taking = ReplicaStream(MemoryLog(LOG), times=TIMES, now_ms=0, introduction=introduction())
    hello = taking.hello(0)
    taking.received(crowd.hear("s", hello), 0)
    proof = taking.report(0)
    crowd.hear("s", proof)
    crowd.followers = Followers()
    crowd.connect("again")
    crowd.hear("again", hello)
    assert b"proved another secret" in crowd.hear("again", proof + encode_report(len(LOG)))
    assert crowd.replicated == 0


def test_a_hello_cannot_be_changed_under_its_proof() -> None:
    crowd = Crowd()
    taking = ReplicaStream(MemoryLog(LOG), times=TIMES, now_ms=0, introduction=introduction())
    crowd.connect("s")
    reader = HelloReader()
    reader.feed(taking.hello(0))
    payload = reader.next()
    assert payload is not None
    taking.received(crowd.hear("s", framed(payload.replace(b":10921", b":10931"))), 0)
    assert b"proved another secret" in crowd.hear("s", taking.report(0))
    assert not crowd.written


# --- its log ---------------------------------------------------------------------------------------------------------


def test_a_log_that_differs_below_its_end_is_refused() -> None:
    other = a_log([b"%03d" % (number + 1) * 20 for number in range(30)])
    crowd = Crowd(epochs=lambda: EPOCHS)
    with pytest.raises(Refused, match="differs") as caught:
        crowd.follow("s", introduction(epochs=EPOCHS), other)
    assert caught.value.for_good
    assert crowd.replicated == 0
    assert not crowd.written
    assert not crowd.followers.by_name


@pytest.mark.parametrize("epochs", [(), (Epoch(1, 0, "b.1"),), (*EPOCHS, Epoch(2, 10, "b.1"))])
def test_a_log_with_other_epochs_is_refused(epochs: tuple[Epoch, ...]) -> None:
    crowd = Crowd(epochs=lambda: EPOCHS)
    with pytest.raises(Refused, match="epochs"):
        crowd.follow("s", introduction(epochs=epochs))
    assert crowd.replicated == 0


def test_a_longer_log_is_refused() -> None:
    size = len(a_log([b"000" * 20]))
    with pytest.raises(Refused, match="compare again"):
        Crowd(LOG[:size]).follow("s", introduction(), LOG[: 2 * size])


def test_a_digest_of_removed_bytes_is_refused_and_one_of_the_rest_is_good() -> None:
    crowd = Crowd()
    crowd.log.remove_below(2048)
    with pytest.raises(Refused, match="cannot be compared"):
        crowd.follow("s", introduction())
    crowd.follow("t", introduction(primary_start=2048))
    assert crowd.replicated == len(LOG)


def test_a_log_of_which_no_byte_is_compared_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the secret: the settings name its host, and it knows the epochs."""
    monkeypatch.setattr("pyromq.replication.introduction.digest_start", lambda start, end, primary_start: end)
    crowd = Crowd(members=[ConfiguredMember(SLAVE.broker_id, "10.0.0.2:10911")])
    with pytest.raises(Refused, match="too near its end"):
        crowd.follow("s", introduction(secret=None, expects_proof=False), bytes(len(LOG)))
    assert crowd.replicated == 0


def test_an_empty_log_proves_nothing_and_counts_for_what_it_is_sent() -> None:
    crowd = Crowd(epochs=lambda: EPOCHS)
    crowd.follow("s", introduction(epochs=EPOCHS), b"")
    assert crowd.replicated == 0
    crowd.send_all("s")
    crowd.hear("s", encode_report(len(LOG)))
    assert crowd.replicated == len(LOG)


def test_a_first_report_that_is_not_the_end_that_was_compared_ends_the_connection() -> None:
    size = len(a_log([b"000" * 20]))
    crowd = Crowd()
    crowd.connect("s")
    taking = ReplicaStream(MemoryLog(LOG[:size]), times=TIMES, now_ms=0, introduction=introduction())
    taking.received(crowd.hear("s", taking.hello(0)), 0)
    with pytest.raises(BadFrame, match="compared up to"):
        crowd.hear("s", taking.report(0) + encode_report(len(LOG)))
    assert crowd.replicated == 0


# --- two with one id -------------------------------------------------------------------------------------------------


def test_a_follower_that_connects_again_takes_the_place_of_its_older_connection() -> None:
    size = len(a_log([b"000" * 20]))
    crowd = Crowd()
    crowd.follow("old", introduction())
    crowd.follow("new", introduction(), LOG[:size])
    assert set(crowd.followers.by_name) == {"new"}
    assert crowd.replicated == size, "it may have lost the rest"
    with pytest.raises(Displaced):
        crowd.hear("old", encode_report(len(LOG)))
    assert crowd.replicated == size


@pytest.mark.parametrize(
    ("second", "match"),
    [
        (SLAVE._replace(process="second", address="127.0.0.1:7", broker_id=7), "member id slave"),
        (OTHER._replace(broker_id=1), "broker id 1"),
        (OTHER._replace(address=SLAVE.address), "address 127.0.0.1:10921"),
    ],
)
def test_a_second_follower_with_the_same_id_is_refused_while_the_first_is_alive(second: Identity, match: str) -> None:
    crowd = Crowd(heartbeat_ms=5_000)
    crowd.follow("first", introduction())
    with pytest.raises(Refused, match=match) as caught:
        crowd.follow("second", introduction(second))
    assert str(SLAVE) in str(caught.value)
    assert str(second) in str(caught.value)
    assert match.encode() in crowd.refusal, "the slave is told"
    assert set(crowd.followers.by_name) == {"first"}
    assert second not in crowd.written
    crowd.now_ms = 10_001
    crowd.follow("third", introduction(second))
    assert set(crowd.followers.by_name) == {"third"}, "the first has been silent for two heartbeats"


def test_two_that_shake_hands_at_once_do_not_both_join() -> None:
    crowd = Crowd()
    reports = []
    for name, identity in (("a", SLAVE), ("b", OTHER._replace(broker_id=1))):
        crowd.connect(name)
        taking = ReplicaStream(MemoryLog(LOG), times=TIMES, now_ms=0, introduction=introduction(identity))
        taking.received(crowd.hear(name, taking.hello(0)), 0)
        taking.received(crowd.hear(name, taking.report(0)), 0)
        reports.append((name, taking.report(0)))
    crowd.hear(*reports[0])
    with pytest.raises(Refused, match="broker id 1"):
        crowd.hear(*reports[1])
    assert set(crowd.followers.by_name) == {"a"}


@pytest.mark.parametrize(
    ("identity", "match"),
    [
        (SLAVE._replace(member=PRIMARY.member), "copy of this broker's"),
        (SLAVE._replace(broker_id=0), "id of a master"),
        (SLAVE._replace(address=PRIMARY.address), "own address"),
    ],
)
def test_a_follower_that_is_none_is_refused(identity: Identity, match: str) -> None:
    with pytest.raises(Refused, match=match):
        Crowd().follow("s", introduction(identity))


def test_a_follower_of_another_broker_is_refused() -> None:
    with pytest.raises(Refused, match="a slave of elsewhere"):
        Crowd().follow("s", introduction(name="elsewhere"))


# --- without a handshake ---------------------------------------------------------------------------------------------


def test_eight_bytes_of_a_stranger_acknowledge_nothing() -> None:
    crowd = Crowd()
    crowd.connect("stranger")
    crowd.hear("stranger", encode_report(len(LOG)))
    assert crowd.replicated == 0
    assert crowd.followers.copies == 0


def test_one_that_echoes_what_it_is_sent_acknowledges_nothing() -> None:
    crowd = Crowd()
    crowd.connect("stranger")
    crowd.hear("stranger", encode_report(0))
    crowd.send_all("stranger")
    crowd.hear("stranger", encode_report(len(LOG)))
    assert crowd.replicated == 0
    assert not crowd.written


def test_a_configured_member_counts_from_the_first_bytes_on_that_it_confirms() -> None:
    crowd = Crowd(LOG, members=[ConfiguredMember(1, "10.0.0.2:10911")])
    crowd.follow("apache", None)
    assert crowd.written == [Identity("1@10.0.0.2:10911", 1, "10.0.0.2:10911")]
    assert crowd.replicated == 0, "nothing was sent on this connection"
    assert crowd.followers.copies == 1
    crowd.log.data += a_log([b"x"], start=len(LOG))
    crowd.send_all("apache")
    crowd.hear("apache", encode_report(crowd.log.log_end))
    assert crowd.replicated == crowd.log.log_end


def test_an_entry_of_the_settings_is_good_for_one_connection() -> None:
    members = [ConfiguredMember(1, "127.0.0.1:10911"), ConfiguredMember(2, "127.0.0.2:10921")]
    crowd = Crowd(members=members)
    for name in ("first", "second", "third"):
        crowd.follow(name, None, host="127.0.0.1")
    ids = [one.identity.broker_id if one.identity else None for one in crowd.followers.by_name.values()]
    assert ids == [1, 2, None]


def test_a_configured_member_that_comes_again_from_its_machine_is_one_copy() -> None:
    crowd = Crowd(members=[ConfiguredMember(1, "10.0.0.2:10911")])
    crowd.follow("old", None)
    crowd.follow("new", None)
    assert set(crowd.followers.by_name) == {"new"}


def test_an_entry_that_a_proved_follower_has_is_no_strangers() -> None:
    crowd = Crowd(members=[ConfiguredMember(1, "10.0.0.2:10911")])
    crowd.follow("ours", introduction())
    crowd.follow("stranger", None)
    assert crowd.followers.by_name["stranger"].identity is None
    assert crowd.replicated == len(LOG)


def test_a_program_on_a_configured_host_keeps_no_proved_follower_out() -> None:
    crowd = Crowd(members=[ConfiguredMember(SLAVE.broker_id, f"localhost:{SLAVE.address.rpartition(':')[2]}")])
    crowd.follow("stranger", None, host="127.0.0.1")
    assert crowd.followers.copies == 1
    crowd.follow("ours", introduction(), host="127.0.0.1")
    assert set(crowd.followers.by_name) == {"ours"}
    assert crowd.replicated == len(LOG)


def test_a_proved_follower_with_the_id_of_another_configured_member_is_refused() -> None:
    crowd = Crowd(members=[ConfiguredMember(SLAVE.broker_id, "10.0.0.2:10911")])
    crowd.follow("apache", None)
    with pytest.raises(Refused, match="broker id 1"):
        crowd.follow("second", introduction())
    assert set(crowd.followers.by_name) == {"apache"}


# --- frames ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "said",
    [
        framed(b"{"),
        framed(b"{}"),
        framed(b"[]"),
        PUSH.pack(PUSH.unpack(framed(b"")[:12])[0], MAX_HELLO + 1),
        PUSH.pack(PUSH.unpack(framed(b"")[:12])[0], -1),
    ],
)
def test_a_hello_that_is_none_ends_the_connection(said: bytes) -> None:
    crowd = Crowd()
    crowd.connect("s")
    with pytest.raises(BadFrame):
        crowd.hear("s", said)


def test_a_handshake_comes_in_any_pieces() -> None:
    crowd = Crowd()
    crowd.connect("s")
    taking = ReplicaStream(MemoryLog(LOG), times=TIMES, now_ms=0, introduction=introduction())
    said = taking.hello(0)
    while said:
        answer = b"".join(crowd.hear("s", said[at : at + 3]) for at in range(0, len(said), 3))
        for at in range(0, len(answer), 5):
            taking.received(answer[at : at + 5], 0)
        said = taking.report(0)
    assert crowd.replicated == len(LOG)


def test_a_primary_that_sends_before_the_handshake_ends_is_not_believed() -> None:
    taking = ReplicaStream(MemoryLog(), times=TIMES, now_ms=0, introduction=introduction())
    taking.hello(0)
    with pytest.raises(BadFrame, match="handshake"):
        taking.received(push_head(0, len(LOG)) + LOG, 0)
    with pytest.raises(BadFrame, match="handshake"):
        ReplicaStream(MemoryLog(), times=TIMES, now_ms=0).received(framed(b"{}"), 0)


def test_a_hello_says_everything_and_is_read_as_it_was_said() -> None:
    hello = Hello(
        cluster="c", name="n", member="m", broker_id=1, address="a:1", ha_address="a:2", process="p", nonce="x",
        epochs=EPOCHS, start=0, end=10, digest_from=5, digest="d",
    )  # fmt: skip
    assert read(Hello, hello.encode()) == hello


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("127.0.0.1", "localhost", True),
        ("::1", "127.0.0.5", True),
        ("::ffff:10.0.0.2", "10.0.0.2", True),
        ("10.0.0.2", "10.0.0.3", False),
        ("10.0.0.2", "localhost", False),
        ("fe80::1%eth0", "fe80::1", True),
    ],
)
def test_hosts_are_compared_as_addresses(one: str, other: str, same: bool) -> None:
    assert is_same_host(one, other) is same
