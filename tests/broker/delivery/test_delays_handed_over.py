"""A master that steps down just after delayed messages fell due: the slave that leads does not deliver them again."""

from __future__ import annotations

from pathlib import Path

from broker.support.leading_scene import TOPIC, Scene, told, until
from pyromq import Message, Producer


def delivered(scene: Scene, name: str) -> list[str]:
    return [body for body in scene.bodies(name) if body.startswith("later")]


def test_what_was_delivered_by_the_one_is_not_delivered_again_by_the_other(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        wanted = [f"later-{number}" for number in range(10)]
        await scene.send("first")
        async with Producer(scene.name_server, group="producers", attempts=20, timeout_s=20.0) as producer:
            for body in wanted:
                await producer.send(Message(TOPIC, body.encode(), delay_level=1))
        await until(lambda: len(delivered(scene, "a")) == len(wanted))
        assert (await scene.step_down("a", "b")).code == 0
        await scene.leads("b")
        parts = scene.of("b").parts
        assert parts is not None
        await until(lambda: parts.delays.progress()[0] == (1, len(wanted), len(wanted)))
        assert delivered(scene, "b") == wanted

    told(tmp_path, story, "ASYNC_MASTER")
