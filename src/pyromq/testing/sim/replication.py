"""A primary and its replicas in memory, with everything that may happen to them, drawn from a seed.

    outcome = run_seed(7)             # raises AssertionError when a promise is broken, with the trace of what happened
    outcome = run_seed(7, size=3)     # the same with a primary and two replicas

Real are both ends of the stream, the stores, their recovery, the file that says who led, and the decisions about who
has what and who leads. Simulated are the disks (`SimDisk`), the network (`SimLink`) and the clock. Checked is, after
every step:

- the replica's log is the primary's, byte for byte, as far as it goes;
- no report falls, or exceeds the sent position;
- `replicated` claims nothing that the replica would not have after its crash, given how it flushes;
- acknowledged messages stay: the next leader has them, byte for byte;
- one replica counts once, regardless of its older connections, and a connection without an identity never;
- every follower that counts is in the primary's leadership file;
- truncated bytes and replaced logs are kept in quarantine;
- a master that was replaced, and still takes messages, stands down when it hears of the other, and never the other way;
- consumer progress never goes back;
- once nothing happens any more, both logs are equal within a bounded number of steps.

The same seed gives the same trace. `Planted` names mistakes that the simulation must find.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
from dataclasses import dataclass, field
from enum import Enum, auto

from pyromq.broker.failover.members import Answered
from pyromq.broker.failover.promotion_check import has_more
from pyromq.broker.failover.role import Verdict, extent_of
from pyromq.clock import ManualClock
from pyromq.errors import BadFrame, DiskFull, OffsetNotFound, PyroMQError
from pyromq.model.message import Draft
from pyromq.replication.admission import Greeting
from pyromq.replication.arrival import StreamDamaged
from pyromq.replication.followers import Followers
from pyromq.replication.frames import encode_report, push_head
from pyromq.replication.identity import Refused
from pyromq.replication.log_matching import CutBack, StartOver, way_back
from pyromq.replication.progress_merge import Place, merge
from pyromq.replication.stream import Ahead, Displaced, Gap, PrimaryStream, ReplicaStream, Silence, StreamTimes
from pyromq.testing.sim.disk import PowerCut
from pyromq.testing.sim.network import SimLink
from pyromq.testing.sim.replica_node import SEGMENT, Node, Planted
from pyromq.testing.sim.replication_bugs import primary_stream_of, replica_stream_of

TIMES = StreamTimes(heartbeat=500, housekeeping=2_000, hello=1_000)
#: Steps in which everything must have come together once nothing happens any more.
HEALED_STEPS = 800
MACHINE = "10.0.0.2"
GROUP = Place("t", "g", 0)


class Step(Enum):
    SEND = auto()
    FLOW = auto()
    FLUSH = auto()
    SPEAK = auto()
    TO_REPLICA = auto()
    REPORT = auto()
    TO_PRIMARY = auto()
    CONNECT = auto()
    CUT = auto()
    WAIT = auto()
    FLIP = auto()
    CRASH = auto()
    PROMOTE = auto()
    RETENTION = auto()
    FULL_DISK = auto()
    STRANGER = auto()
    METADATA = auto()


@dataclass(slots=True)
class Line:
    """A connection, seen from the primary: it may outlive the replica's end."""

    link: SimLink
    stream: PrimaryStream


@dataclass(slots=True)
class Outcome:
    seed: int
    steps: int = 0
    trace: list[str] = field(default_factory=list)

    @property
    def digest(self) -> str:
        return hashlib.sha256("\n".join(self.trace).encode()).hexdigest()


@dataclass(slots=True)
class Side:
    """One node as a follower: its end of the connection."""

    node: Node
    link: SimLink | None = None
    taking: ReplicaStream | None = None
    #: Its bytes below this were compared with the primary's.
    compared: int = 0
    #: Progress that it took from the primary.
    taken: dict[Place, int] = field(default_factory=dict)


class World:
    """The machines, and the acknowledged log. Each step is about one of the replicas: the one in `focus`."""

    def __init__(self, seed: int, planted: Planted | None = None, size: int = 2) -> None:
        self.rng = rng = random.Random(seed)  # noqa: S311  to be repeated, not to be unguessable
        self.planted = planted
        self.outcome = Outcome(seed)
        self.clock = ManualClock()
        sync = rng.random() < 0.6
        self.nodes = [Node(name, self.clock, rng, sync=sync, planted=planted) for name in "abc"[:size]]
        self.sides = {node.name: Side(node) for node in self.nodes}
        self.primary, self.focus = self.nodes[0], self.sides["b"]
        #: Copies of an acknowledged message.
        self.copies = 2 if size == 2 else rng.choice((2, 2, size))
        self.batch_bytes = rng.choice((40, 150, 700, SEGMENT))
        self.window = rng.choice((None, None, 400, 5000))
        self.whole_log = rng.random() < 0.7
        self.weights = self._mix()
        self.lines: dict[str, Line] = {}
        self.followers = Followers()
        self.connections = 0
        #: Everything below may have been acknowledged, and these are its bytes.
        self.promised = 0
        self.truth = bytearray()
        #: Messages below it were removed from the primary's log before their acknowledgement: their content is unknown.
        self.known_from = 0
        self.numbers = 0
        #: A machine whose power failed while it did not flush, and that has not caught up since.
        self.weak: Node | None = None
        self.weak_until = 0
        self.progress: dict[str, dict[Place, int]] = {node.name: {} for node in self.nodes}
        self.committed = 0
        self.lead(self.primary)

    def _mix(self) -> list[float]:
        """Each seed has its own mixture of what happens."""
        usual = {
            Step.SEND: 6, Step.FLOW: 14, Step.FLUSH: 4, Step.SPEAK: 4, Step.TO_REPLICA: 4, Step.REPORT: 3,
            Step.TO_PRIMARY: 3, Step.CONNECT: 6, Step.WAIT: 1,
        }  # fmt: skip
        rare = {
            Step.CUT: 1, Step.FLIP: 0.5, Step.CRASH: 1, Step.PROMOTE: 0.5, Step.RETENTION: 1.5, Step.FULL_DISK: 0.3,
            Step.STRANGER: 0.5, Step.METADATA: 1,
        }  # fmt: skip
        return [
            usual.get(step, 0) * self.rng.uniform(0.3, 1) or rare.get(step, 0) * self.rng.choice((0, 1, 2))
            for step in Step
        ]

    @property
    def replicas(self) -> list[Node]:
        return [node for node in self.nodes if node is not self.primary]

    @property
    def replica(self) -> Node:
        return self.focus.node

    def say(self, what: str) -> None:
        self.outcome.trace.append(what)

    # --- running -----------------------------------------------------------------------------------------------------

    def run(self, steps: int) -> Outcome:
        chosen = self.rng.choices(list(Step), self.weights, k=steps)
        for step in chosen:
            self.step(step)
        self.heal()
        self.outcome.steps = len(self.outcome.trace)
        return self.outcome

    def step(self, step: Step) -> None:
        self.clock.advance(0.01)
        replicas = self.replicas
        if self.replica is self.primary or len(replicas) > 1:
            self.focus = self.sides[self.rng.choice(replicas).name]
        self.carry_out(step)

    def carry_out(self, step: Step) -> None:
        self.say(step.name if len(self.nodes) == 2 else f"{step.name} {self.replica.name}")
        try:
            getattr(self, f"do_{step.name.lower()}")()
        except PowerCut:
            self.power_failed()
        self.check()

    def do_send(self) -> None:
        count = self.rng.randrange(1, 5)
        drafts = [self.draft(self.rng.choice((20, 90, 90, 90, 400, 900))) for _ in range(count)]
        self.acting = self.primary
        self.primary.store.append(drafts)
        self.primary.disk.mark()
        self.say(f"{self.primary.name} ends at {self.primary.end}")

    def draft(self, size: int) -> Draft:
        self.numbers += 1
        return Draft(b"t", self.numbers % 2, (b"%d " % self.numbers).ljust(size, b"."))

    def do_flow(self) -> None:
        """Things go well for a moment."""
        for _ in range(self.rng.randrange(1, 4)):
            self.do_connect()
            self.do_to_primary()
            self.do_speak()
            self.do_to_replica()
            if self.rng.random() < 0.5:
                self.acting = self.replica
                self.replica.store.flush()
            self.do_report()
            self.do_to_primary()

    def do_flush(self) -> None:
        self.acting = self.rng.choice(self.nodes)
        self.acting.store.flush()
        if self.rng.random() < 0.3:
            with contextlib.suppress(DiskFull, OSError):
                self.acting.store.dispatch()
                self.acting.store.save_recover_point()

    def do_connect(self) -> None:
        if self.focus.taking is not None:
            return
        self.acting = self.replica
        try:
            self.agree()
        except OSError as full:  # the epoch cannot be written: it is tried again
            self.say(f"{self.replica.name} does not connect: {full}")
            return
        self.acting = self.replica
        if self.replica.sync and self.planted is not Planted.HELLO_BEFORE_SYNC:
            self.replica.store.flush()
        self.connections += 1
        name = f"{MACHINE}:{self.connections}"
        self.focus.link = SimLink(self.rng)
        now = self.now_ms
        stream = primary_stream_of(self.planted)(
            name, self.primary.log, batch_bytes=self.batch_bytes, whole_log=self.whole_log, times=TIMES, now_ms=now,
            greeting=Greeting(self.primary.admission(TIMES.heartbeat), MACHINE),
        )  # fmt: skip
        self.lines[name] = Line(self.focus.link, stream)
        log = self.replica.log
        kind = replica_stream_of(self.planted)
        self.focus.taking = kind(
            log, times=TIMES, now_ms=now, window_bytes=self.window, max_push=SEGMENT,
            introduction=self.replica.introduction(self.primary.told()),
        )  # fmt: skip
        self.focus.link.b.send(self.focus.taking.hello(now))
        self.say(f"{self.replica.name} connects with {log.copy_end}")
        for _ in range(self.rng.choice((0, 3, 3, 3))):  # most handshakes are quick
            self.do_to_primary()
            self.do_to_replica()
            self.do_report()

    def agree(self) -> None:
        """Compare the logs by epochs, as both sides do before they connect."""
        if self.planted is Planted.HELLO_BEFORE_COMPARING:
            return
        told = self.primary.told()
        assert told.newest >= self.replica.leading.number, "a replica follows one that was replaced"
        way = way_back(extent_of(told), self.replica.extent)
        self.say(f"{self.primary.extent} {self.replica.extent} {way}")
        self.acting = self.replica
        if isinstance(way, CutBack) and self.planted is not Planted.FORGET_TO_CUT:
            self.replica.cut_back(way.position)
            self.focus.compared = min(self.focus.compared, way.position)
        elif isinstance(way, StartOver):
            self.replica.start_over(way.reason)
            self.focus.compared = 0
        self.replica.leading.adopt(told)
        self.compare(0)

    def do_speak(self) -> None:
        for name, line in list(self.lines.items()):
            try:
                span = line.stream.next_span(self.now_ms)
                while span is not None:
                    self.followers = line.stream.sent(span, self.followers, self.now_ms)
                    data = self.primary.log.log_bytes(span.position, span.length) if span.length else b""
                    line.link.a.send(push_head(*span) + bytes(data))
                    span = line.stream.next_span(self.now_ms) if self.rng.random() < 0.8 else None
            except (Silence, OffsetNotFound) as error:
                self.say(f"{name} {type(error).__name__}")
                self.drop(name)

    def do_to_replica(self) -> None:
        if self.focus.taking is None or self.focus.link is None:
            return
        self.acting = self.replica
        data = self.focus.link.b.receive()
        try:
            if data:
                self.focus.taking.received(data, self.now_ms)
        except (BadFrame, Gap, Ahead, StreamDamaged, DiskFull, Refused) as error:
            self.say(f"stops: {type(error).__name__}")
            self.disconnect()
        finally:
            self.replica.disk.mark()
        self.compare(self.focus.compared)
        self.say(f"{self.replica.name} ends at {self.replica.end}")
        if self.focus.link is not None and self.focus.link.b.closed:
            self.disconnect()

    def do_report(self) -> None:
        if self.focus.taking is None or self.focus.link is None:
            return
        try:
            said = self.focus.taking.report(self.now_ms)
        except Silence:
            self.disconnect()
            return
        self.focus.link.b.send(said)

    def do_to_primary(self) -> None:
        self.acting = self.primary
        for name, line in list(self.lines.items()):
            data = line.link.a.receive()
            try:
                if data:
                    self.followers = line.stream.received(data, self.followers, self.now_ms)
                    line.link.a.send(line.stream.take_answer())
            except (BadFrame, Ahead, Refused, Displaced) as error:
                line.link.a.send(line.stream.take_answer())
                if isinstance(error, BadFrame) and name.startswith(MACHINE):
                    raise AssertionError(f"a report went wrong: {error}") from error
                self.say(f"{name} {type(error).__name__}")
                self.drop(name)
                continue
            if line.link.a.closed and self.rng.random() < 0.5:  # or it is noticed later, by its silence
                self.drop(name)

    def do_cut(self) -> None:
        if self.focus.link is not None:
            self.focus.link.cut()
            if self.rng.random() < 0.5:
                self.disconnect()

    def do_wait(self) -> None:
        self.clock.advance(self.rng.choice((0.3, 0.6, 3)))

    def do_flip(self) -> None:
        """A bit of the log's bytes changes on its way."""
        if self.focus.link is not None and self.focus.link.b.waiting > 60:
            place = self.rng.randrange(20, self.focus.link.b.waiting)
            self.focus.link.b.flip_bit(place, self.rng.randrange(8))

    def do_retention(self) -> None:
        files = self.primary.store.log_files()
        if len(files.segments) > 1 and files.segments[0].end <= self.promised:
            self.acting = self.primary
            self.primary.remove_oldest()
            self.say(f"{self.primary.name} begins at {self.primary.start}")

    def do_full_disk(self) -> None:
        self.replica.disk.full = not self.replica.disk.full
        self.clock.advance(1.5)  # a store does not ask a full disk all the time

    def do_stranger(self) -> None:
        """A connection without an identity claims to have everything, or more than that."""
        self.connections += 1
        name = f"10.9.9.9:{self.connections}"
        stream = primary_stream_of(self.planted)(
            name, self.primary.log, batch_bytes=self.batch_bytes, whole_log=self.whole_log, times=TIMES,
            now_ms=self.now_ms, greeting=Greeting(self.primary.admission(TIMES.heartbeat), "10.9.9.9"),
        )  # fmt: skip
        link = SimLink(self.rng)
        self.lines[name] = Line(link, stream)
        if self.rng.random() < 0.5:
            link.b.send(encode_report(self.primary.end))
            return
        link.b.send(encode_report(0))
        link.b.send(encode_report(self.primary.end + self.rng.choice((1 << 20, 1 << 60))))

    def do_metadata(self) -> None:
        master, slave = self.progress[self.primary.name], self.progress[self.replica.name]
        self.committed += self.rng.randrange(3)
        (master if self.rng.random() < 0.6 else slave)[GROUP] = self.committed
        if self.rng.random() < 0.5:
            self.copy_metadata()

    def copy_metadata(self) -> None:
        master, slave = self.progress[self.primary.name], self.progress[self.replica.name]
        merged = merge(master, slave, self.focus.taken)
        if self.planted is Planted.FORGET_PROGRESS:
            merged = merged._replace(offsets=dict(master), to_tell={})
        known = max(slave.get(GROUP, 0), master.get(GROUP, 0))
        slave.clear()
        slave.update(merged.offsets)
        master.update(merged.to_tell)
        self.focus.taken = dict(merged.offsets)
        assert slave.get(GROUP, 0) >= known, "consumer progress went back"

    # --- crashes -----------------------------------------------------------------------------------------------------

    def do_crash(self) -> None:
        node = self.acting = self.rng.choice(self.nodes)
        with_power = self.rng.random() < 0.6
        if with_power and not self._power_may_fail(node):
            return
        if with_power and self.rng.random() < 0.5:
            node.fail_after(self.rng.randrange(1, 6))  # in the middle of something
            self.say(f"power of {node.name} fails soon")
            return
        self.crash(node, with_power=with_power)

    def _power_may_fail(self, node: Node) -> bool:
        """Without flushes a promise survives the power of one machine, while another one has everything."""
        others = [one for one in self.nodes if one is not node and not one.fails_soon]
        return node.sync or (self.weak in (None, node) and any(one.end >= self.promised for one in others))

    def power_failed(self) -> None:
        self.crash(self.acting, with_power=True)

    def crash(self, node: Node, *, with_power: bool) -> None:
        known = [one for one in self.followers.by_name.values() if one.identity and one.identity.address == node.name]
        reported = max((one.confirmed for one in known), default=0)
        self.say(f"crash of {node.name} {'power' if with_power else 'kill'}")
        if with_power and not node.sync:
            self.weak, self.weak_until = node, max(self.promised, node.end)  # it may have reported all it had
        node.restart(with_power=with_power)
        if node is not self.primary:
            side = self.sides[node.name]
            side.taking, side.taken = None, {}
            self.say(f"{node.name} is back with {node.end}")
            if side.link is not None:
                side.link.cut()
            side.compared = min(side.compared, node.end)
            if node is not self.weak and self.followers.replicated(2, self.primary.end):
                assert node.end >= reported, f"{node.name} reported {reported} and has {node.end} after its crash"
            return
        self.lose_connections()
        self.start_again()

    def do_promote(self) -> None:
        """Promote the replica; the check for lost acknowledged messages comes first."""
        replica = self.replica
        is_fit = replica is not self.weak and replica.end >= self.promised and not replica.log.is_empty
        others = [Answered(one.name, one.told()) for one in self.replicas if one is not replica]
        if self.planted is not Planted.PROMOTE_WITHOUT_ASKING:
            is_fit = is_fit and not any(has_more(replica.extent, one) for one in others)
        else:
            is_fit = not replica.log.is_empty
        if is_fit and replica.epochs and replica.epochs == self.primary.epochs:
            old = self.primary
            self.lose_connections()
            self.say(f"{replica.name} is promoted by hand")
            self.promote_replica()
            self.hear_of_another(old)
            if self.rng.random() < 0.3 and self._power_may_fail(self.primary):
                self.crash(self.primary, with_power=True)

    def promote_replica(self) -> None:
        """With a number that has not been."""
        chosen = self.replica
        self.acting = chosen
        chosen.disk.full = False
        chosen.never_fails()
        self.clock.advance(1.5)
        if self.planted is not Planted.LEAD_UNFLUSHED:
            chosen.store.flush()
        chosen.promote(1 + self.primary.leading.number)
        self.primary, self.focus = chosen, self.sides[self.primary.name]
        for side in self.sides.values():
            side.taken = {}
        self.lead(chosen)

    def hear_of_another(self, old: Node) -> None:
        """Let a replaced master continue until it learns of the new one; then it stands down."""
        self.acting = old
        old.disk.full = False
        old.never_fails()
        self.clock.advance(1.5)
        if self.rng.random() < 0.5:
            old.store.append([self.draft(90) for _ in range(self.rng.randrange(1, 4))])
        verdict = old.verdict(self.primary)
        assert verdict is Verdict.STAND_DOWN, (
            f"{old.name} was replaced by {self.primary.name}, and takes it for {verdict}"
        )
        assert self.primary.verdict(old) is Verdict.OUTRANKED, f"{self.primary.name} was chosen, and gives way"
        old.leading.stand_down(self.primary.leading.number, old.slave_id, None)
        old.store.follow()

    def lose_connections(self) -> None:
        for name in list(self.lines):
            self.drop(name)
        for side in self.sides.values():
            self.disconnect(side)

    def start_again(self) -> None:
        """Restart the primary: it first asks the replicas whether one has lost bytes, and leads if not.

        With a synced log no acknowledged message is lost: then it may lead without any answer.
        """
        node = self.primary
        answers = not node.sync or self.rng.random() < 0.6
        verdicts = {one.name: node.verdict(one) if answers else Verdict.NOTHING for one in self.replicas}
        better = [one for one in self.replicas if verdicts[one.name] is Verdict.HAND_OVER]
        if better and self.planted is not Planted.LEAD_OVER_A_LOST_END:
            self.focus = self.sides[max(better, key=lambda one: one.end).name]
            self.say(f"{self.replica.name} is promoted: it has what {node.name} lost")
            self.promote_replica()
            node.leading.stand_down(self.primary.leading.number, node.slave_id, None)
        else:
            assert Verdict.STAND_DOWN not in verdicts.values(), "a slave knows of a later master, and there is none"
            self.lead(node)

    def lead(self, node: Node) -> None:
        self.acting = node
        node.disk.full = False
        node.never_fails()
        self.clock.advance(1.5)
        node.lead()
        for one in self.replicas:
            one.store.follow()
        for side in self.sides.values():
            side.compared = 0
        self.check_promise()

    # --- connections -------------------------------------------------------------------------------------------------

    def drop(self, name: str) -> None:
        line = self.lines.pop(name)
        line.link.a.close()
        self.followers = self.followers.left(name)

    def disconnect(self, side: Side | None = None) -> None:
        side = side or self.focus
        if side.link is not None:
            side.link.b.close()
        side.link = side.taking = None

    @property
    def now_ms(self) -> int:
        return int(self.clock.monotonic() * 1000)

    # --- invariants --------------------------------------------------------------------------------------------------

    def check(self) -> None:
        primary = self.primary
        claimed = self.followers.replicated(self.copies, primary.end)
        written = {one.member for one in primary.leading.known.members}
        for one in self.followers.by_name.values():
            assert one.identity is None or one.identity.member in written, f"{one.name} counts and is not written down"
        assert self.followers.replicated(len(self.nodes) + 1, primary.end) == 0, "one replica counts as two"
        have = sorted((one.log.copy_safe for one in self.replicas if one is not self.weak), reverse=True)
        needed = self.copies - 1 - (self.weak in self.replicas)
        if needed > 0 and claimed:
            assert claimed <= have[needed - 1], (
                f"{claimed} is said to be on {self.copies} machines, and they have {have}"
            )
        if self.weak in self.replicas and self.weak is not None and self.weak.end >= self.weak_until:
            self.weak = None
        promised = min(claimed, primary.log.copy_safe)
        if promised > self.promised:
            start = max(self.promised, primary.start)
            self.known_from = start if start > self.promised else self.known_from
            self.truth += bytes(start - self.promised) + primary.bytes_between(start, promised)
            self.promised = promised

    def check_promise(self) -> None:
        """Check that the leader has everything acknowledged."""
        node = self.primary
        assert node.end >= self.promised, f"{self.promised} was promised, and {node.name} leads with {node.end}"
        start = max(node.start, self.known_from)
        if start < self.promised:
            assert node.bytes_between(start, self.promised) == self.truth[start : self.promised], (
                "promised bytes differ"
            )

    def compare(self, start: int) -> None:
        """The replica's bytes are the primary's."""
        start = max(start, self.primary.start, self.replica.start)
        end = min(self.primary.end, self.replica.end)
        if start < end:
            ours, theirs = self.replica.bytes_between(start, end), self.primary.bytes_between(start, end)
            assert ours == theirs, f"the logs differ between {start} and {end}"
        is_longer = not self.replica.log.is_empty and self.replica.end > self.primary.end
        assert self.focus.taking is None or not is_longer, "the copy is longer than the log"
        self.focus.compared = max(end, 0)

    def heal(self) -> None:
        """Nothing more happens: everything must come together."""
        for node in self.nodes:
            node.disk.full = False
            node.never_fails()
        self.say("heal")
        for _ in range(HEALED_STEPS):
            for replica in self.replicas:
                self.focus = self.sides[replica.name]
                for step in (Step.CONNECT, Step.SPEAK, Step.TO_REPLICA, Step.FLUSH, Step.REPORT, Step.TO_PRIMARY):
                    self.clock.advance(0.01)
                    self.carry_out(step)
            known = self.followers.replicated(len(self.nodes), self.primary.end)
            if known == self.primary.end and all(one.is_level(self.primary) for one in self.replicas):
                break
            self.clock.advance(0.1)
        self.check_healed()

    def check_healed(self) -> None:
        primary = self.primary
        for replica in self.replicas:
            self.focus = self.sides[replica.name]
            assert replica.is_level(primary), f"{replica.name} stays at {replica.end}, the log ends at {primary.end}"
            self.compare(0)
        if primary.end > primary.start:
            claimed = self.followers.replicated(len(self.nodes), primary.end)
            assert claimed == primary.end, f"{claimed} of {primary.end} is known to be copied"
        self.check_promise()
        for replica in self.replicas * 2:  # a report of one changes another in the second round
            self.focus = self.sides[replica.name]
            self.copy_metadata()
        assert all(one.get(GROUP, 0) == self.committed for one in self.progress.values()), "progress is lost"
        for node in self.nodes:
            node.check_kept()
            node.store.dispatch()


def run_seed(seed: int, planted: Planted | None = None, steps: int = 90, size: int = 2) -> Outcome:
    """Raises AssertionError with the seed and what happened."""
    world = World(seed, planted, size)
    try:
        return world.run(steps)
    except (AssertionError, PyroMQError) as error:
        tail = "\n".join(world.outcome.trace[-40:])
        raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}\n{tail}") from error
