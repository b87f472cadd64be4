"""Two brokers of the replication simulation that lead one after the other, each without the other.

    run_fork(7)     # raises AssertionError if bytes of a leader are cut without a decision

A seed decides what happens before, how much either broker writes, whether the old master starts again in between, which
of the two is back last, and which log the simulated operator keeps. Real are the decisions (`broker.forks`), the
leadership files, the stores and the stream that makes both logs equal in the end.
"""

from __future__ import annotations

from typing import NamedTuple

from pyromq.broker.failover.forks import fork_that_holds, lives_given_up, own_bytes
from pyromq.broker.failover.members import Answered
from pyromq.broker.failover.role import Verdict
from pyromq.errors import PyroMQError
from pyromq.replication.log_matching import GoOn, way_back
from pyromq.testing.sim.replica_node import Node
from pyromq.testing.sim.replication import Outcome, Step, World


class _Fork(NamedTuple):
    """The brokers, and where their logs were equal last."""

    old: Node
    promoted: Node
    position: int


def _write(world: World, node: Node) -> None:
    world.acting = node
    node.store.lead()
    if count := world.rng.randrange(4):
        node.store.append([world.draft(90) for _ in range(count)])
    node.store.flush()
    world.say(f"{node.name} writes up to {node.end}")


def _lead_separately(world: World) -> _Fork:
    """Promote the replica, stop it after it wrote, and let the old master write without it."""
    old, promoted, position = world.primary, world.replica, world.primary.end
    world.lose_connections()
    world.promote_replica()
    _write(world, promoted)
    promoted.restart(with_power=False)
    if world.rng.random() < 0.6:
        old.restart(with_power=False)
        old.lead()
    _write(world, old)
    return _Fork(old, promoted, position)


def _answer(node: Node) -> Answered:
    return Answered(node.name, node.told())


def _bytes_of(node: Node) -> bytes:
    return node.bytes_between(node.start, node.end)


def _promoted_comes_back(world: World, fork: _Fork) -> bool:
    """Return whether the promoted broker waits for a decision: it must if the old master has bytes that it lacks."""
    old, promoted = fork.old, fork.promoted
    held = fork_that_holds(promoted.extent, [_answer(old)])
    has_more = old.end > fork.position
    assert (held is not None) is has_more, f"{promoted.name} begins over {old.end - fork.position} bytes of {old.name}"
    if held is None:
        assert isinstance(way_back(promoted.extent, old.extent), GoOn), f"{old.name} would be cut"
        return False
    assert (held.position, held.theirs) == (fork.position, old.end - fork.position)
    assert held.ours == promoted.end - fork.position
    return True


def _old_comes_back(world: World, fork: _Fork) -> bool:
    """Return whether the old master refuses to be cut, while the promoted one leads: it does for a life of its own."""
    old, promoted = fork.old, fork.promoted
    promoted.lead()
    assert old.verdict(promoted) is Verdict.STAND_DOWN
    led_again = old.epochs[-1].by not in {one.by for one in promoted.epochs}
    at_stake = own_bytes(old.extent, old.name, promoted.told())
    assert at_stake == (old.end - fork.position if led_again else 0), f"{at_stake} bytes of {old.name} are at stake"
    return at_stake > 0


def _decide(world: World, fork: _Fork, kept: Node) -> None:
    """The operator promotes one of them by force; the other one follows it."""
    given_up = fork.old if kept is fork.promoted else fork.promoted
    before, number = _bytes_of(kept), 1 + max(one.leading.number for one in fork[:2])
    kept.leading.promote(number, "ASYNC_MASTER")
    kept.leading.gives_up = lives_given_up(kept.extent, [_answer(given_up)])
    world.primary, world.focus = kept, world.sides[given_up.name]
    world.lead(kept)
    assert given_up.verdict(kept) is Verdict.STAND_DOWN
    at_stake = own_bytes(given_up.extent, given_up.name, kept.told())
    assert at_stake == 0, f"{given_up.name} does not follow: nothing was decided about {at_stake} bytes"
    given_up.leading.stand_down(number, given_up.slave_id, None)
    given_up.store.follow()
    world.heal()
    assert _bytes_of(kept).startswith(before), f"the log of {kept.name} was kept, and is another one"


def _story(world: World) -> None:
    world.heal()
    fork = _lead_separately(world)
    logs = [_bytes_of(one) for one in fork[:2]]
    is_held = (_promoted_comes_back if world.rng.random() < 0.5 else _old_comes_back)(world, fork)
    assert logs == [_bytes_of(one) for one in fork[:2]], "a log was changed before anybody decided"
    world.say("held" if is_held else "goes on")
    _decide(world, fork, world.rng.choice(fork[:2]) if is_held else fork.promoted)


def run_fork(seed: int, steps: int = 30) -> Outcome:
    """Raises AssertionError with the seed and what happened."""
    world = World(seed)
    try:
        for step in world.rng.choices(list(Step), world.weights, k=steps):
            world.step(step)
        _story(world)
    except (AssertionError, PyroMQError) as error:
        tail = "\n".join(world.outcome.trace[-40:])
        raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}\n{tail}") from error
    return world.outcome
