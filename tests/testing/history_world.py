"""A broker and its clients that keep every promise, in memory: whatever they do makes a good history."""

from __future__ import annotations

import random

from pyromq.clock import ManualClock
from pyromq.model.queue import MessageQueue
from pyromq.testing.history.history import History

TOPIC = "orders"
GROUP = "billing"
RETRIES = MessageQueue(f"%RETRY%{GROUP}", "broker-a", 0)


class World:
    """Each step is one action of a client or a broker. `faults` allows duplicates, unknown sends and crashes."""

    def __init__(self, rng: random.Random, *, queues: int = 3, ordered: bool = False, faults: bool = True) -> None:
        self.rng = rng
        self.faults = faults
        self.ordered = ordered
        self.clock = ManualClock()
        self.history = History(clock=self.clock)
        self.queues = [MessageQueue(TOPIC, "broker-a", number) for number in range(queues)]
        self.log: dict[MessageQueue, list[str]] = {queue: [] for queue in self.queues}
        self.stored_at: dict[MessageQueue, list[float]] = {queue: [] for queue in self.queues}
        self.committed = dict.fromkeys(self.queues, 0)
        self.at = dict.fromkeys(self.queues, 0)
        self.sequence = 0
        #: Half messages that wait for their decision, and delayed ones for their time.
        self.halves: list[tuple[int, str]] = []
        self.later: list[tuple[float, str]] = []
        self.retried = 0
        self.deaths = 0
        self.history.subscribed(GROUP, TOPIC, ordered=ordered)
        if faults:
            self.history.fault("the network is bad today")

    def run(self, steps: int) -> History:
        kinds = [self.send, self.send, self.send, self.consume, self.consume, self.half, self.decide, self.delay]
        if self.faults:
            kinds += [self.send_into_the_dark, self.refused, self.die]
        for _ in range(steps):
            self.clock.advance(0.01)
            self.rng.choice(kinds)()
            self.deliver_due()
        self.finish()
        return self.history

    # --- producers ---------------------------------------------------------------------------------------------------

    def named(self) -> str:
        self.sequence += 1
        return f"m{self.sequence}"

    def store(self, message: str, queue: MessageQueue | None = None) -> tuple[MessageQueue, int]:
        queue = queue or self.rng.choice(self.queues)
        self.log[queue].append(message)
        self.stored_at[queue].append(self.history.now())
        return queue, len(self.log[queue]) - 1

    def send(self) -> None:
        """With a key, to one queue; without, to any."""
        message, queue = self.named(), self.rng.choice(self.queues)
        key = f"k{queue.queue_id}" if self.rng.random() < 0.5 else ""
        op = self.history.send_called("p", TOPIC, message, key=key, sequence=self.sequence, digest=message)
        if self.faults and self.rng.random() < 0.05:
            self.store(message, queue)  # its answer was lost, and the client tries again
        self.clock.advance(0.001)
        self.history.send_ok(op, *self.store(message, queue))
        if self.rng.random() < 0.1:
            self.history.queue_end(self.history.now(), "looker", queue, len(self.log[queue]))

    def send_into_the_dark(self) -> None:
        op = self.history.send_called("p", TOPIC, message := self.named())
        self.history.send_unknown(op)
        if self.rng.random() < 0.5:
            self.store(message)

    def refused(self) -> None:
        self.history.send_failed(self.history.send_called("p", TOPIC, self.named()), "the disk is full")

    def half(self) -> None:
        op = self.history.send_called("p", TOPIC, message := self.named(), transaction=True)
        self.history.send_ok(op, self.queues[0], self.sequence)
        self.halves.append((op, message))

    def decide(self) -> None:
        if self.halves:
            op, message = self.halves.pop(self.rng.randrange(len(self.halves)))
            commit = self.rng.random() < 0.5
            times = 2 if self.faults and self.rng.random() < 0.2 else 1
            for _ in range(times):
                self.history.decided(op, commit=commit)
                if commit:
                    self.store(message)

    def delay(self) -> None:
        due = self.history.now() + self.rng.random()
        op = self.history.send_called("p", TOPIC, message := self.named(), due=due)
        self.history.send_ok(op, self.queues[0], self.sequence)
        self.later.append((due, message))

    def deliver_due(self) -> None:
        for one in [one for one in self.later if one[0] <= self.history.now()]:
            self.later.remove(one)
            self.store(one[1])

    # --- consumers ---------------------------------------------------------------------------------------------------

    def consume(self) -> None:
        queue = self.rng.choice(self.queues)
        while self.at[queue] < len(self.log[queue]) and self.rng.random() < 0.9:
            self.handle(queue, self.at[queue])
            self.at[queue] += 1
        if self.rng.random() < 0.5:
            self.commit(queue)

    def handle(self, queue: MessageQueue, offset: int) -> None:
        message, client = self.log[queue][offset], f"c{self.deaths}"
        again = self.rng.random() < 0.05
        self.history.delivered(client, GROUP, queue, offset, message, digest=message)
        self.history.handled(client, GROUP, queue, offset, message, again=again)
        if again:
            place = (queue, offset) if self.ordered else (RETRIES, self.next_retry())
            self.history.delivered(client, GROUP, *place, message, attempt=2)
            self.history.handled(client, GROUP, *place, message)

    def next_retry(self) -> int:
        self.retried += 1
        return self.retried

    def commit(self, queue: MessageQueue) -> None:
        self.committed[queue] = self.at[queue]
        self.history.committed(f"c{self.deaths}", GROUP, queue, self.at[queue])

    def die(self) -> None:
        """Crash in the middle of a message; the next consumer of the queue begins at the stored progress."""
        queue = self.rng.choice(self.queues)
        if self.at[queue] < len(self.log[queue]):
            message = self.log[queue][self.at[queue]]
            self.history.delivered(f"c{self.deaths}", GROUP, queue, self.at[queue], message)
        self.deaths += 1
        self.at = dict(self.committed)

    # --- the end -----------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        while self.halves:
            self.decide()
        while self.later:
            self.clock.advance(0.1)
            self.deliver_due()
        for queue, log in self.log.items():
            for offset in range(self.at[queue], len(log)):
                self.handle(queue, offset)
            self.at[queue] = len(log)
            self.commit(queue)
            for offset, message in enumerate(log):
                stored_at = self.stored_at[queue][offset]
                self.history.read(
                    "reader", queue, offset, message, digest=message, position=10 * offset, stored_at=stored_at
                )
