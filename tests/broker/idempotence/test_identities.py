"""Only the holder of an issued identity moves a sequence: forged, made-up and forwarded writers change nothing."""

from __future__ import annotations

import pytest

from broker.requests.test_reply import PROPERTIES, World
from broker.support.fakes import FakePeer
from broker.support.numbered_scene import NAME, WRITER, Scene, as_text, number, numbers, writer_named
from pyromq.broker.idempotence import identities as writer_identities
from pyromq.broker.idempotence import sends
from pyromq.broker.idempotence.identities import WriterIdentities, id_of, writer_id
from pyromq.client.sending.writer_identity import writer_identity
from pyromq.errors import BadRequest, IllegalMessage, NotNow, RepeatNotFound
from pyromq.model.topic import TopicConfig
from pyromq.wire.codes import ResponseCode
from pyromq.wire.requests.client import IssueWriter

HUGE = 10**17


def identities(**streams: int) -> WriterIdentities:
    return WriterIdentities(lambda writer: streams.get(writer.decode(), 0), key=b"k" * 32)


# --- forgeries -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "token", [None, "", "0" * 64, "another writer's", "\ud800"], ids=["none", "empty", "wrong", "another's", "no text"]
)
@pytest.mark.parametrize("batch", [True, False])
def test_a_forged_number_is_refused_and_the_real_writer_goes_on(token: str | None, batch: bool) -> None:
    scene = Scene()
    scene.send(0, 0, 3)
    forged = scene.request([number(HUGE, 0)], batch=batch)  # the writer as every consumer reads it
    forged.writer_token = scene.token("another") if token == "another writer's" else token
    refused = scene.ask(forged)
    assert refused.code == ResponseCode.NO_PERMISSION
    answer = scene.send(0, 3, 2)
    assert (answer.code, "repeated" in answer.more) == (0, False)
    assert scene.stored() == numbers(0, 0, 5)
    scene = scene.killed()
    assert scene.send(0, 5).code == 0
    assert scene.stored() == numbers(0, 0, 6)


@pytest.mark.parametrize("writer", ["query-7/3", "w", "W" + "0" * 40, "w" + "0" * 39, "w" + "0" * 41])
def test_a_made_up_writer_is_refused_and_enters_no_table(writer: str) -> None:
    scene = Scene()
    refused = scene.ask(scene.request([number(0, 0, writer)]))
    assert refused.code == ResponseCode.NO_PERMISSION
    assert (scene.stored(), scene.parts.numbered.writers) == ([], 0)


def test_one_token_does_not_prove_two_writers_of_a_batch() -> None:
    scene = Scene()
    mixed = scene.request([number(0, 0), number(0, 0, writer_named("another"))])
    assert scene.ask(mixed).code == ResponseCode.NO_PERMISSION
    assert scene.stored() == []


def test_what_consumers_see_does_not_give_them_the_identity() -> None:
    """Neither the id nor the whole property, used as a seed or hashed, leads to the writer's own id."""
    public = writer_identity(NAME).writer
    assert WRITER.startswith(public)
    for guess in (writer_identity(public), writer_identity(WRITER), writer_identity(NAME, "another secret")):
        assert guess.writer != public


def test_the_token_is_stored_nowhere() -> None:
    scene = Scene()
    scene.send(0, 0)
    [message] = scene.parts.messages("orders")
    assert scene.token() not in str(message)


def test_a_jump_of_an_honest_writer_cannot_make_the_broker_acknowledge_what_it_has_not() -> None:
    scene = Scene()
    scene.send(0, 0)
    assert scene.send(HUGE, 0).code == 0
    refused = scene.send(1, 0)
    assert (refused.code, refused.more) == (ResponseCode.MESSAGE_ILLEGAL, {"expected": f"{HUGE}:1"})
    assert "1:0" in str(refused.reason)
    assert scene.send(0, 0).more["repeated"] == "1", "the end of that batch is in the log"
    assert scene.stored() == ["0:0", f"{HUGE}:0"]


def test_a_table_that_speaks_of_what_the_log_has_not_acknowledges_nothing() -> None:
    scene = Scene()
    scene.send(0, 0, 2)
    sequences = scene.parts.writers.sequences
    [(stream, newest)] = sequences.entries()
    for position in (0, newest.position - 1, 10**12):
        sequences.restore([(stream, newest._replace(number=9, position=position))])
        with pytest.raises(RepeatNotFound, match="is not in the log any more"):
            scene.send(0, 5)
    assert scene.stored() == numbers(0, 0, 2)


# --- issuing ---------------------------------------------------------------------------------------------------------


def test_the_same_seed_is_the_same_writer_on_every_broker_and_the_client_knows_its_id() -> None:
    identity = writer_identity("query-1", "secret")
    ids = {WriterIdentities(lambda _: 0).issue(identity.seed, "10.0.0.1").writer for _ in range(2)}
    assert ids == {identity.writer} == {writer_id(identity.seed)}
    assert identity == writer_identity("query-1", "secret")
    assert id_of(f"{identity.writer}/7".encode()) == identity.writer.encode()


def test_a_token_of_an_earlier_life_is_to_be_renewed_and_the_sequence_goes_on() -> None:
    scene = Scene()
    scene.send(0, 0, 3)
    old = scene.token()
    scene = scene.killed()
    stale = scene.request([number(0, 3)], token=old)
    answer = scene.ask(stale)
    assert (answer.code, answer.more) == (ResponseCode.NO_PERMISSION, {"writerToken": "renew"})
    assert scene.send(0, 2, 2).more["repeated"] == "1"
    assert scene.stored() == numbers(0, 0, 4)


@pytest.mark.parametrize("seed", ["", "0" * 63, "0" * 65, "Z" * 64, "0" * 63 + "\u0661", "A" * 64])
def test_a_seed_is_64_hex_digits(seed: str) -> None:
    with pytest.raises(BadRequest, match="64 hexadecimal digits"):
        identities().issue(seed, "10.0.0.1")


def seed_of(number: int) -> str:
    return f"{number:064x}"


def test_one_host_gets_a_bounded_number_of_identities_and_others_still_get_theirs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(writer_identities, "MAX_PER_HOST", 3)
    unused = identities()
    for one in range(10):
        unused.issue(seed_of(one), "10.0.0.1")
    assert len(unused) <= 3, "identities without messages make room"
    used = identities(**{writer_id(seed_of(one)): 1 for one in range(3)})
    for one in range(3):
        used.issue(seed_of(one), "10.0.0.1")
    with pytest.raises(NotNow, match=r"issued to 10\.0\.0\.1"):
        used.issue(seed_of(3), "10.0.0.1")
    used.issue(seed_of(0), "10.0.0.1")
    used.issue(seed_of(3), "10.0.0.2")


def test_one_host_cannot_fill_the_table_of_writers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sends, "MAX_STREAMS", 8)
    scene = Scene()
    for queue in range(2):
        assert scene.send(0, 0, queue=queue).code == 0
    with pytest.raises(NotNow, match="one host may have 2"):
        scene.send(0, 0, name="another", queue=0)
    assert scene.send(0, 1).code == 0, "known streams go on"
    issue = IssueWriter(seed=writer_identity("elsewhere").seed)
    token = scene.parts.numbered.issue(issue, FakePeer("10.9.9.9:1234")).token
    other = scene.request([number(0, 0, writer_named("elsewhere"))], token=token)
    assert scene.ask(other).code == 0


# --- other ways into the log -----------------------------------------------------------------------------------------


def test_a_reply_cannot_carry_a_number() -> None:
    world = World(store_replies=True)
    world.parts.topics.make(TopicConfig("orders", 1, 1))
    with pytest.raises(IllegalMessage, match="a reply cannot be numbered"):
        world.reply(properties=PROPERTIES + "\x02" + as_text(number(HUGE, 0)), topic="orders")
    assert world.parts.messages("orders") == []
    world.parts.close()
