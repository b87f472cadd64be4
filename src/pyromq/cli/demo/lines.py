"""The demo where there is no terminal: a line for every second of it, and what each act is about."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from rich.console import Console

from pyromq.cli.output import duration, escaped, number
from pyromq.demo.frame import Frame, LaneView
from pyromq.demo.story import Story

#: Between two lines; and how soon it is seen that an act has begun.
LINE_SECONDS, LOOK_SECONDS = 1.0, 0.1


async def say_lines(console: Console, story: Story) -> None:
    """Until cancelled."""
    act, due_s = 0, 0.0
    while True:
        frame = story.frame
        if frame.told and frame.act != act:
            act, due_s = frame.act, frame.elapsed_s + LINE_SECONDS
            console.print(f"\nact {act}: {escaped(frame.title)}\n{escaped(frame.told)}", soft_wrap=True)
        elif frame.told and frame.elapsed_s >= due_s:
            due_s = frame.elapsed_s + LINE_SECONDS
            console.print(escaped(line(frame)), soft_wrap=True)
        await asyncio.sleep(LOOK_SECONDS)


def line(frame: Frame) -> str:
    return f"{frame.elapsed_s:5.1f} s  " + "  |  ".join(_parts(frame))


def _parts(frame: Frame) -> Iterator[str]:
    for lane in (frame.in_line, frame.queued):
        if lane is not None and lane.is_live:
            yield f"{lane.name}: {_lane(lane)}"
    if frame.services:
        yield "backlog " + ", ".join(
            f"{one.name} {number(one.backlog)}{'' if one.is_up else ' (stopped)'}" for one in frame.services
        )


def _lane(lane: LaneView) -> str:
    troubles = ((lane.waiting, "waiting"), (lane.failed, "failed"), (lane.gave_up, "left"))
    parts = [f"{number(amount)} {what}" for amount, what in troubles if amount]
    times = f"p50 {duration(lane.p50_s)}, p99 {duration(lane.p99_s)}"
    return ", ".join([f"{number(lane.done)} signed up", *([times] if lane.done else []), *parts])
