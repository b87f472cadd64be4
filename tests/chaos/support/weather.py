"""What goes wrong, chosen by a seed: one fault after the other, some of them two at a time, with quiet in between."""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter

from chaos.support.cluster import BROKERS, Cluster
from chaos.support.crowd import LINE, READERS, Groups, deck
from chaos.support.tally import Tally
from pyromq.testing import Direction, FaultProxy

FAULTS = [
    "kill a broker", "kill a broker", "cut", "stall", "stall both", "no answers", "refuse", "slow", "narrow",
    "kill a name server", "stall a name server", "a reader vanishes", "one of the line vanishes", "a reader leaves",
    "a reader is killed", "one of the line is killed", "freeze a broker",
]  # fmt: skip

#: On a machine where a broker takes long to start, a run takes longer.
LEAST_FAULTS = 8


class Weather:
    """`counts` says how often each fault happened."""

    def __init__(self, cluster: Cluster, groups: Groups, history: Tally, rng: random.Random) -> None:
        self._cluster = cluster
        self._groups = groups
        self._history = history
        self._rng = rng
        self.counts: Counter[str] = Counter()
        #: One name server is away for the whole of some runs.
        self.is_one_name_server_away = rng.random() < 0.5

    async def rage(self, seconds: float) -> None:
        end = asyncio.get_running_loop().time() + seconds
        if self.is_one_name_server_away:
            self._note("a name server is away")
            await asyncio.to_thread(self._cluster.name_servers[0].kill)
        kinds = deck(self._rng, FAULTS)
        while asyncio.get_running_loop().time() < end or self.counts.total() < LEAST_FAULTS:
            both = [next(kinds)] if self._rng.random() < 0.5 else [next(kinds), next(kinds)]
            targets = self._rng.sample(BROKERS, 2)
            await asyncio.gather(*(self._happen(kind, target) for kind, target in zip(both, targets, strict=False)))
            await asyncio.sleep(self._rng.uniform(0.1, 0.8))

    def _note(self, kind: str, *, forgets_progress: bool = False) -> None:
        self.counts[kind] += 1
        self._history.fault(kind, forgets_progress=forgets_progress)

    async def _happen(self, kind: str, target: str) -> None:
        rng, proxy = self._rng, self._cluster.proxies[target]
        self._note(kind, forgets_progress=kind == "kill a broker")
        match kind:
            case "kill a broker":
                await self._cluster.kill(target)
                await asyncio.sleep(rng.choice([0.0, 0.3, 2.0]))
                await self._cluster.start(target)
                self._history.fault("it is back", forgets_progress=True)
            case "cut":
                proxy.cut()
            case "stall":
                await self._stalled([proxy], rng.uniform(0.3, 3.5))
            case "stall both":
                await self._stalled(list(self._cluster.proxies.values()), rng.uniform(0.3, 2.5))
            case "no answers":
                await self._stalled([proxy], rng.uniform(0.3, 3.0), Direction.TO_CLIENT)
            case "refuse":
                await proxy.refuse()
                proxy.cut()
                await asyncio.sleep(rng.uniform(0.2, 2.0))
                await proxy.accept()
            case "slow":
                proxy.delay(rng.choice([0.05, 0.3, 0.8]))
                await asyncio.sleep(rng.uniform(0.5, 2.0))
                proxy.delay(0)
            case "narrow":
                proxy.throttle(20_000)
                await asyncio.sleep(rng.uniform(0.5, 2.0))
                proxy.throttle(None)
            case "freeze a broker":
                await self._frozen(target, rng.uniform(0.3, 2.5))
            case "kill a name server" | "stall a name server":
                await self._name_server(kind)
            case _:
                await self._member(kind)

    async def _stalled(self, proxies: list[FaultProxy], seconds: float, direction: Direction | None = None) -> None:
        for proxy in proxies:
            proxy.stall(direction)
        await asyncio.sleep(seconds)
        for proxy in proxies:
            if self._rng.random() < 0.3:
                proxy.cut()  # what waited never arrives
            proxy.resume(direction)

    async def _frozen(self, target: str, seconds: float) -> None:
        """The whole process, in the middle of whatever it does."""
        process = self._cluster.brokers[target].process
        process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(seconds)
        process.send_signal(signal.SIGCONT)

    async def _name_server(self, kind: str) -> None:
        if kind == "stall a name server":
            await self._stalled([self._rng.choice(self._cluster.name_server_proxies)], self._rng.uniform(0.5, 2.0))
            return
        server = self._cluster.name_servers[1]
        await asyncio.to_thread(server.kill)
        await asyncio.sleep(self._rng.uniform(0.2, 2.0))
        await asyncio.to_thread(server.start)

    async def _member(self, kind: str) -> None:
        groups, rng = self._groups, self._rng
        match kind:
            case "a reader vanishes":
                groups.join_readers()
                await groups.readers.pop(rng.randrange(len(groups.readers) - 1)).vanish()
            case "a reader leaves":
                await groups.readers.pop(rng.randrange(len(groups.readers))).leave()
                groups.join_readers()
            case "one of the line vanishes":
                await groups.line.pop(rng.randrange(len(groups.line))).vanish()
                groups.join_line()
            case "a reader is killed" | "one of the line is killed":
                group = READERS if kind == "a reader is killed" else LINE
                victim = next(one for one in groups.processes if one.group == group)
                groups.processes.remove(victim)
                await victim.kill()
                await groups.join_process(group)
            case _:
                raise AssertionError(kind)
