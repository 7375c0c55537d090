"""Virtual time, the store that all share, the source's shards, and what befalls them."""

import heapq
import random
from collections.abc import Callable, Sequence

from raftwood.loghub.consumer.leases import LeaseOwner, Save, ShardLease, Take
from raftwood.loghub.consumer.memory_store import MemoryLeaseStore
from tests.kits.loghub.leases.oracle import Oracle, Shard, counts, position
from tests.kits.loghub.leases.profile import TIMES, Profile
from tests.kits.loghub.leases.sim_worker import SimWorker
from tests.kits.models import Violation

WORKERS_MAX = 5
SHARDS_MAX = 14
EVENTS_MAX = 200_000


class CheckedStore(MemoryLeaseStore):
    """Tells the oracle what lands, and counts."""

    def __init__(self, oracle: Oracle) -> None:
        super().__init__()
        self.oracle = oracle
        self.moves = 0
        self.steals = 0

    async def take(self, worker: LeaseOwner, takes: Sequence[Take]) -> list[ShardLease]:
        before = dict(self.leases)
        found = await super().take(worker, takes)
        for take in takes:
            old, new = before.get(take.shard), self.leases.get(take.shard)
            if old and new and old.lease_id != new.lease_id:
                self.moves += 1
                self.steals += not take.sets_consumer
        return found

    async def save(self, process: str, saves: Sequence[Save]) -> list[str]:
        before = dict(self.leases)
        refused = await super().save(process, saves)
        self._check(before, process, saves)
        return refused

    async def hand_over(self, process: str, saves: Sequence[Save]) -> list[ShardLease]:
        before = dict(self.leases)
        found = await super().hand_over(process, saves)
        self._check(before, process, saves)
        for save in saves:
            old, new = before.get(save.shard), self.leases.get(save.shard)
            if (
                old
                and new
                and (old.consumer_process, old.epoch) == (process, save.epoch)
                and position(new.checkpoint) == position(save.checkpoint)
            ):
                self.oracle.clean.add((save.shard, save.epoch))
        return found

    def _check(self, before: dict[str, ShardLease], process: str, saves: Sequence[Save]) -> None:
        for save in saves:
            old, new = before.get(save.shard), self.leases.get(save.shard)
            self.oracle.saves(old, new, save, process)


class World:
    def __init__(self, seed: int, profile: Profile) -> None:
        self.random = random.Random(seed)
        self.profile = profile
        self.times = TIMES
        self.now = 0.0
        self.bad = 1.0
        """What chances of loss are multiplied with."""
        self.is_store_away = False
        self.starts = 0
        self.hangs = 0
        self.events = 0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        self.oracle = Oracle()
        self.store = CheckedStore(self.oracle)
        self.workers: list[SimWorker] = []
        for _ in range(profile.shards):
            self.new_shard(())
        for _ in range(profile.workers):
            self.join()

    def after(self, delay_ms: float, act: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._queue, (self.now + max(0.0, delay_ms), self._number, act))

    def run_for(self, duration_ms: float) -> None:
        end = self.now + duration_ms
        while self._queue and self._queue[0][0] <= end:
            self.now, _, act = heapq.heappop(self._queue)
            self.events += 1
            if self.events > EVENTS_MAX:
                raise Violation("a worker never rests")
            act()
        self.now = end

    def latency(self) -> float:
        return self.random.uniform(0.5, 1.5) * self.profile.latency_ms

    def late_ms(self) -> float:
        """How much later than most something comes; mostly 0."""
        chance = self.profile.late * self.bad
        if not chance or self.random.random() >= chance:
            return 0.0
        return self.random.uniform(0.2, 1.5) * self.times.timeout_ms

    def process_ms(self) -> float:
        return self.random.uniform(0.2, 1.0) * self.profile.process_ms

    def dies_now(self, worker: SimWorker) -> bool:
        crash = self.profile.crash_at
        if crash is None or not self.bad or worker not in self.workers:
            return False
        return crash == (self.workers.index(worker), worker.steps)

    def up(self) -> list[SimWorker]:
        return [worker for worker in self.workers if worker.is_up]

    def new_shard(self, parents: tuple[str, ...]) -> None:
        name = f"s{len(self.oracle.shards):02}"
        length = self.random.randint(0, 6)
        self.oracle.shards[name] = Shard(name, parents, length)

    def open_shards(self) -> list[Shard]:
        return [shard for shard in self.oracle.shards.values() if not shard.is_sealed]

    def befall(self) -> None:
        """One event, drawn by the profile's weights."""
        names = list(self.profile.weights)
        weights = list(self.profile.weights.values())
        name = self.random.choices(names, weights)[0]
        getattr(self, name)()

    def join(self) -> None:
        if len(self.up()) < WORKERS_MAX:
            number = len(self.workers)
            self.workers.append(SimWorker(self, LeaseOwner(f"w{number:02}", f"p{number:02}")))

    def drain(self) -> None:
        if len(self.up()) > 1:
            self.random.choice(self.up()).leave()

    def crash(self) -> None:
        if len(self.up()) > 1:
            self.random.choice(self.up()).crash()

    def restart(self) -> None:
        """A new process under an old one's name; sometimes the old one lives on, unseen."""
        if not self.up() or len(self.up()) > WORKERS_MAX:
            return
        old = self.random.choice(self.up())
        if self.random.random() < 0.5:
            old.crash()
        elif self.random.random() < 0.5:
            old.pause(self.random.uniform(0.2, 3) * self.times.timeout_ms)
        owner = LeaseOwner(old.owner.instance, f"p{len(self.workers):02}")
        self.workers.append(SimWorker(self, owner))

    def pause(self) -> None:
        if self.up():
            length = self.random.choice((0.2, 0.8, 1.0, 1.5, 3.0)) * self.times.timeout_ms
            self.random.choice(self.up()).pause(length)

    def hang(self) -> None:
        if self.up():
            length = self.random.choice((0.5, 2.5, 6.0)) * self.times.timeout_ms
            worker = self.random.choice(self.up())
            worker.hangs_until = max(worker.hangs_until, self.now + length)

    def cut_off(self) -> None:
        if self.up():
            worker = self.random.choice(self.up())
            worker.is_cut_off = True
            length = self.random.choice((0.3, 1.0, 2.0)) * self.times.timeout_ms
            self.after(length, worker.reconnect)

    def outage(self) -> None:
        self.is_store_away = True
        self.after(self.random.choice((0.5, 1.0, 3.0)) * self.times.timeout_ms, self._store_back)

    def _store_back(self) -> None:
        self.is_store_away = False

    def split(self) -> None:
        if self.open_shards() and len(self.oracle.shards) < SHARDS_MAX:
            parent = self.random.choice(self.open_shards())
            parent.is_sealed = True
            for _ in range(2):
                self.new_shard((parent.name,))

    def merge(self) -> None:
        if len(self.open_shards()) > 2:
            first, second = self.random.sample(self.open_shards(), 2)
            first.is_sealed = second.is_sealed = True
            self.new_shard((first.name, second.name))

    def write(self) -> None:
        if self.open_shards():
            self.random.choice(self.open_shards()).length += self.random.randint(1, 6)

    def heal(self) -> None:
        """Nothing goes wrong from now on; who is paused wakes up."""
        self.bad = 0.0
        self.is_store_away = False
        for worker in self.up():
            worker.is_cut_off = False
            worker.paused_until = min(worker.paused_until, self.now)
            worker.hangs_until = min(worker.hangs_until, self.now)
        if self.profile.hangs_on and self.up():
            self.random.choice(self.up()).hangs_until = float("inf")
            for shard in self.open_shards():
                shard.length += 1
        # Whoever is up may be about to leave.
        number = len(self.workers)
        self.workers.append(SimWorker(self, LeaseOwner(f"w{number:02}", f"p{number:02}")))

    def spread(self) -> int:
        """The most that two workers differ by."""
        live = [worker.owner.process for worker in self.up()]
        numbers = counts(self.store.leases, live).values()
        return max(numbers, default=0) - min(numbers, default=0)
