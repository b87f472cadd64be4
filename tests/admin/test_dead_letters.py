"""Dead letters against a real broker: counted, looked into, replayed, and resumed where a replay was stopped."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterator

import pytest

import pyromq.testing
from admin.scene import bury, send, with_admin
from pyromq.admin.admin import Admin
from pyromq.admin.dead_letters import REPLAYED_FROM, Replayed, kept_properties
from pyromq.client.message import Message
from pyromq.errors import NoPermission, NotFound, OffsetNotFound, TopicNotFound
from pyromq.model.topic import Permission

NUMBERS = itertools.count(1)


@pytest.fixture(scope="module")
def mq() -> Iterator[pyromq.testing.LocalBroker]:
    with pyromq.testing.broker() as running:
        yield running


class Scene:
    def __init__(self, mq: pyromq.testing.LocalBroker) -> None:
        number = next(NUMBERS)
        self.name_servers, self.topic, self.group = mq.name_servers, f"topic-{number}", f"group-{number}"

    async def prepare(self, admin: Admin, *messages: Message) -> None:
        """Messages, and as many dead letters."""
        await admin.topics.create(self.topic, queues=1)
        await admin.groups.create(self.group)
        await send(self.name_servers, *messages)
        for message in await admin.messages.peek(self.topic, count=len(messages)):
            await bury(admin, self.group, message)

    def letters(self, count: int) -> list[Message]:
        return [
            Message(self.topic, f"letter {n}", tags="T", keys=[f"k{n}"], properties={"colour": "red"})
            for n in range(count)
        ]

    async def replay(self, admin: Admin, **how: object) -> list[Replayed]:
        return [one async for one in admin.dead_letters.replay(self.group, **how)]  # type: ignore[arg-type]


@pytest.fixture
def scene(mq: pyromq.testing.LocalBroker) -> Scene:
    return Scene(mq)


def test_dead_letters_are_counted_and_looked_into(scene: Scene) -> None:
    async def story(admin: Admin) -> None:
        with pytest.raises(NotFound, match="has no dead letters"):
            await admin.dead_letters.of(scene.group)
        await scene.prepare(admin, *scene.letters(3))
        (found,) = [one for one in await admin.dead_letters.list() if one.group == scene.group]
        assert (found.messages, found.waiting, found.readable) == (3, 3, True)
        first, *_ = await admin.dead_letters.peek(scene.group)
        assert (first.text, first.tags, first.properties["colour"]) == ("letter 0", "T", "red")
        assert (await admin.dead_letters.letter(scene.group, first.message_id)).text == "letter 0"

    with_admin(scene.name_servers, story)


def test_a_replayed_letter_is_the_message_it_was(scene: Scene) -> None:
    """Its id, keys, tag, own properties and body, also where that is packed; not what the way there added."""

    async def story(admin: Admin) -> None:
        packed = Message(scene.topic, "p" * 20_000, keys=["big"])
        await scene.prepare(admin, *scene.letters(1), packed)
        before = await admin.messages.peek(scene.topic)
        done = await scene.replay(admin)
        assert [(one.topic, one.queue_offset) for one in done] == [(scene.topic, 2), (scene.topic, 3)]
        after = (await admin.messages.peek(scene.topic))[2:]
        for old, new in zip(before, after, strict=True):
            assert (new.message_id, new.body, new.keys, new.tags) == (old.message_id, old.body, old.keys, old.tags)
            assert dict(new.properties) == {**old.properties, REPLAYED_FROM: f"%DLQ%{scene.group}"}
            assert "RETRY_TOPIC" not in new.all_properties
            assert new.reconsume_times == 0
        assert zlib.decompress(zlib.compress(after[1].body)) == b"p" * 20_000

    with_admin(scene.name_servers, story)


def test_a_replay_goes_on_where_the_last_one_stopped(scene: Scene) -> None:
    async def story(admin: Admin) -> None:
        await scene.prepare(admin, *scene.letters(5))
        assert len(await scene.replay(admin, most=2)) == 2
        assert (await admin.dead_letters.of(scene.group)).waiting == 3
        stopped = admin.dead_letters.replay(scene.group)
        assert (await anext(stopped)).message.text == "letter 2"
        await stopped.aclose()  # Ctrl-C
        assert [one.message.text for one in await scene.replay(admin)] == ["letter 3", "letter 4"]
        assert await scene.replay(admin) == []
        assert len(await scene.replay(admin, again=True, most=2)) == 2
        assert (await admin.dead_letters.of(scene.group)).waiting == 0, "to begin anew forgets nothing"

    with_admin(scene.name_servers, story)


def test_the_rate_is_kept(scene: Scene) -> None:
    async def story(admin: Admin) -> None:
        await scene.prepare(admin, *scene.letters(5))
        began = admin.session.clock.monotonic()
        await scene.replay(admin, rate=40)
        assert admin.session.clock.monotonic() - began >= 4 / 40

    with_admin(scene.name_servers, story)


def test_some_letters_by_id_to_one_group_or_another_topic(scene: Scene) -> None:
    async def story(admin: Admin) -> None:
        await scene.prepare(admin, *scene.letters(3))
        letters = await admin.dead_letters.peek(scene.group)
        chosen = [letters[1].message_id, letters[2].offset_message_id]
        done = [one async for one in admin.dead_letters.replay_some(scene.group, chosen, only_group=True)]
        assert [one.topic for one in done] == [f"%RETRY%{scene.group}"] * 2
        again = await admin.messages.peek(f"%RETRY%{scene.group}")
        assert [(one.topic, one.text) for one in again] == [(scene.topic, "letter 1"), (scene.topic, "letter 2")]
        assert (await admin.dead_letters.of(scene.group)).waiting == 3, "those by id are beside the row"
        await admin.topics.create(f"{scene.topic}-other", queues=1)
        assert {one.topic for one in await scene.replay(admin, to=f"{scene.topic}-other")} == {f"{scene.topic}-other"}
        with pytest.raises(OffsetNotFound, match="no message of"):
            await admin.dead_letters.letter(scene.group, "7F000001000000000000000000000000")

    with_admin(scene.name_servers, story)


def test_a_group_that_never_tried_again_has_nowhere_to_get_them(scene: Scene) -> None:
    async def story(admin: Admin) -> None:
        await scene.prepare(admin, *scene.letters(1))
        await admin.topics.delete(f"%RETRY%{scene.group}")
        with pytest.raises(TopicNotFound, match="start a consumer of it first"):
            await scene.replay(admin, only_group=True)

    with_admin(scene.name_servers, story)


def test_letters_that_may_not_be_read_say_how_to_allow_it(scene: Scene) -> None:
    async def story(admin: Admin) -> None:
        await scene.prepare(admin, *scene.letters(1))
        await admin.topics.update(f"%DLQ%{scene.group}", permission=Permission.WRITE)
        with pytest.raises(NoPermission, match=f"`pyromq topic update %DLQ%{scene.group} --permission read-write`"):
            await admin.dead_letters.peek(scene.group)

    with_admin(scene.name_servers, story)


def test_a_deleted_group_leaves_its_letters_unless_told_otherwise(scene: Scene) -> None:
    async def story(admin: Admin) -> None:
        await scene.prepare(admin, *scene.letters(1))
        await admin.groups.delete(scene.group)
        assert (await admin.dead_letters.of(scene.group)).messages == 1
        await admin.groups.create(scene.group)
        removed = await admin.groups.delete(scene.group, with_dead_letters=True)
        assert f"topic %DLQ%{scene.group}" in removed
        with pytest.raises(NotFound):
            await admin.dead_letters.of(scene.group)

    with_admin(scene.name_servers, story)


def test_what_belongs_to_the_way_stays_behind() -> None:
    found = {
        "TAGS": "T",
        "UNIQ_KEY": "u",
        "mine": "x",
        "RETRY_TOPIC": "t",
        "DELAY": "3",
        "__CRC32#": "1",
        "WAIT": "false",
    }
    assert kept_properties(found) == {"TAGS": "T", "UNIQ_KEY": "u", "mine": "x"}
