"""A slave asks a replication port for the address of its broker, without a connection."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pyromq.auth.group_secret import GroupSecret
from pyromq.errors import BadFrame
from pyromq.replication.address_question import AddressQuestion
from pyromq.replication.admission import Admission, Greeting, Itself
from pyromq.replication.followers import Followers
from pyromq.replication.frames import IS_OURS, REPORT, push_head
from pyromq.replication.handshake import Hello, HelloReader, Welcome, frame_of, read
from pyromq.replication.identity import Refused
from replication.memory_log import MemoryLog, a_log

SECRET = GroupSecret(b"of the group")
ADDRESS = "10.0.0.1:10911"
HELLO = Hello(
    cluster="c", name="pair", member="b", broker_id=1, address="10.0.0.2:10911", process="p", nonce="n", start=0, end=0,
    digest_from=0, digest="",
)  # fmt: skip


def greeting(secret: GroupSecret | None = SECRET, **itself: str) -> Greeting:
    names = Itself(**{"cluster": "c", "name": "pair", "member": "a", "address": ADDRESS} | itself)
    return Greeting(Admission(MemoryLog(a_log([b"one"])), itself=lambda: names, secret=secret), "10.0.0.2")


def ask(primary: Greeting, question: AddressQuestion, piece: int = 1 << 20) -> None:
    said = question.first()
    while said:
        answer = b""
        for start in range(0, len(said), piece):
            primary.feed(said[start : start + piece], Followers(), 0)
            answer, primary.answer = answer + primary.answer, b""
        said = b"".join(question.received(answer[at : at + piece]) for at in range(0, len(answer), piece))


@pytest.mark.parametrize("piece", [1, 5, 1 << 20])
def test_the_replication_port_tells_the_address_of_its_broker(piece: int) -> None:
    question, primary = AddressQuestion(HELLO, SECRET), greeting()
    ask(primary, question, piece)
    assert question.address == ADDRESS
    assert (primary.identity, primary.is_over) == (None, False), "a question makes no follower"


@pytest.mark.parametrize("secret", [None, GroupSecret(b"of another group")])
def test_an_address_without_a_proof_is_not_believed(secret: GroupSecret | None) -> None:
    question = AddressQuestion(HELLO, SECRET)
    with pytest.raises(Refused, match="does not prove the secret"):
        ask(greeting(secret), question)
    assert question.address is None


def test_the_proof_covers_the_address() -> None:
    question, primary = AddressQuestion(HELLO, SECRET), greeting()
    primary.feed(question.first(), Followers(), 0)
    said = question.received(REPORT.pack(IS_OURS))
    primary.feed(said, Followers(), 0)
    reader = HelloReader()
    reader.feed(primary.answer[8:])
    payload = reader.next()
    assert payload is not None
    with pytest.raises(Refused, match="does not prove the secret"):
        question.received(frame_of(replace(read(Welcome, payload), address="10.9.9.9:1")))
    assert question.address is None


def test_a_primary_of_another_name_refuses_with_a_sentence() -> None:
    with pytest.raises(Refused, match="a slave of pair in c connects to other"):
        ask(greeting(name="other"), AddressQuestion(HELLO, SECRET))


def test_a_primary_of_apache_is_sent_one_word_and_no_handshake() -> None:
    question = AddressQuestion(HELLO, SECRET)
    assert question.first() == REPORT.pack(IS_OURS)
    assert IS_OURS < 0, "it is no position"
    with pytest.raises(BadFrame, match="tells no address"):
        question.received(push_head(IS_OURS - 1, 0))
