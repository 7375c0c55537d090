"""The cluster of a run: stores, groups and services around HAKeeper's state, and what happens."""

import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass

from raftwood.logservice.hakeeper import checkers, rules
from raftwood.logservice.hakeeper.commands import (
    AddShard,
    DrainStore,
    HearStore,
    KeeperCommand,
    KeeperResult,
    KeeperTick,
    Ordered,
    RemoveShard,
    Schedule,
    Scheduled,
    SetInitialCluster,
    encode_command,
)
from raftwood.logservice.hakeeper.messages import GUESTS_FIRST, is_log
from raftwood.logservice.hakeeper.state import KeeperState, decode_state, encode_state
from tests.kits.logservice.hakeeper_model.ending import check_end
from tests.kits.logservice.hakeeper_model.groups import Configuration, Group, Replica
from tests.kits.logservice.hakeeper_model.oracle import Oracle
from tests.kits.logservice.hakeeper_model.profile import SETTINGS, Profile
from tests.kits.logservice.hakeeper_model.services import Services
from tests.kits.logservice.hakeeper_model.stores import Store
from tests.kits.models import Violation, repeatable

_TICK = KeeperTick(SETTINGS.bootstrap_ticks, SETTINGS.service_removed_ticks)
ROUNDS_TO_SETTLE = 600
QUIET_TICKS = 60


@dataclass(frozen=True)
class Report:
    events: int
    ticks: int
    orders: int
    digest: int


class World:
    def __init__(self, seed: int, profile: Profile) -> None:
        self.random = random.Random(seed)
        self.profile = profile
        self.state = KeeperState()
        self.events = 0
        self.ordered = 0
        self.stores: dict[int, Store] = {}
        for number in range(1, profile.stores + profile.spares + 1):
            domain = f"zone-{number % profile.domains}" if profile.domains else ""
            self.stores[number] = Store(number, domain, is_up=number <= profile.stores)
        self.joined = profile.stores
        members = {n: self.stores[n].address for n in range(1, profile.stores + 1)}
        self.groups: dict[int, Group] = {0: Group(members)}
        for number in members:
            self.groups[0].replicas[number] = Replica(is_empty=False)
            self.groups[0].promised.add(number)
        for number in range(profile.stores, profile.stores - profile.absent, -1):
            self.stores[number].is_up = False
        self.oracle = Oracle(self)
        self.services = Services(self)
        self.plans: list[Schedule] = []
        self.is_faulty = True
        self.next_name = 1
        self.apply(
            SetInitialCluster(
                profile.log_shards,
                profile.tn_shards,
                profile.replicas,
                min(profile.hakeeper_replicas, profile.stores),
                members,
                guests={GUESTS_FIRST: "guest"},
            )
        )

    # What the parts ask for

    def apply(self, command: KeeperCommand) -> KeeperResult:
        result = rules.carry_out(self.state, command)
        self.oracle.check()
        return result

    def presence(self, group: Group) -> Callable[[int], bool]:
        return lambda store: self.takes_part(group, store)

    def takes_part(self, group: Group, store: int) -> bool:
        return group.takes_part(store, self._is_up)

    def _is_up(self, store: int) -> bool:
        return self.stores[store].is_up

    @property
    def serves(self) -> bool:
        """Whether HAKeeper's own group can decide."""
        return self.groups[0].leader != 0

    def chance(self, likelihood: float) -> bool:
        return self.is_faulty and self.random.random() < likelihood

    # Events

    def event(self) -> None:
        self.events += 1
        if self.plans and self.random.random() < 0.1:
            self._schedule(self.plans.pop(0))
        draw = self.random.random()
        if draw < 0.06:
            self.tick()
        elif draw < 0.40:
            self.heartbeat(self.random.choice(list(self.stores.values())))
        elif draw < 0.60:
            self.carry_out(self.random.choice(list(self.stores.values())))
        elif draw < 0.85:
            group = self.groups[self.random.choice(list(self.groups))]
            group.step(self.random, self._is_up, write=self.profile.write)
        elif draw < 0.93:
            self.services.event()
        else:
            self._fault()

    def tick(self) -> None:
        if not self.serves:
            return
        self.apply(_TICK)
        if self.events % 10 == 0:
            self._check_bytes()
        term = self.groups[0].term
        plan = tuple(checkers.plan(self.state, SETTINGS))
        self.oracle.check_plan(plan)
        if plan and self.chance(self.profile.delay_plan):
            self.plans.append(Schedule(term, self.state.tick, plan))
        elif plan:
            self._schedule(Schedule(term, self.state.tick, plan))

    def _schedule(self, batch: Schedule) -> None:
        newest, before = self.state.term, dict(self.state.orders)
        result = self.apply(batch)
        assert isinstance(result, Scheduled)
        self.ordered += result.taken
        if batch.term < newest and self.state.orders != before:
            raise Violation("orders of an older term were taken")

    def _check_bytes(self) -> None:
        """What is kept as bytes is the same state."""
        data = encode_state(self.state)
        restored = decode_state(data)
        if encode_state(restored) != data:
            raise Violation("a snapshot changes the state")
        self.state = restored
        rules.apply(self.state, encode_command(_TICK)[:-1])

    def heartbeat(self, store: Store) -> None:
        if not store.is_up or not self.serves:
            return
        told = store.heartbeat(self)
        if self.chance(self.profile.lose_heartbeat):
            return
        result = self.apply(HearStore(told))
        assert isinstance(result, Ordered)
        if self.chance(self.profile.lose_answer):
            return
        store.orders = list(result.orders.orders)
        del store.finished[: len(told.finished)]

    def carry_out(self, store: Store) -> None:
        if store.is_up and store.orders:
            store.carry_out(self, store.orders.pop(self.random.randrange(len(store.orders))))

    # Faults

    def _fault(self) -> None:
        store = self.random.choice(list(self.stores.values()))
        if not store.is_up:
            if self.random.random() < 5 * self.profile.restart:
                self._restart(store)
            return
        profile = self.profile
        if self.chance(profile.crash * 10):
            store.crash()
        elif self.chance(profile.stop_replica * 10):
            self._pick_replica(store, self._stop)
        elif self.chance(profile.fork * 10):
            self._pick_replica(store, self._fork)
        elif self.chance(profile.operate * 10):
            self._operate(store)

    def _restart(self, store: Store) -> None:
        if store.number > self.joined:
            if self.random.random() > 0.05:
                return
            self.joined = store.number
        if self.chance(self.profile.wipe) and self._may_lose(store):
            store.wipe(self)
        for group in self.groups.values():
            if store.number in group.replicas:
                group.replicas[store.number].is_running = True
                group.replicas[store.number].fork = None
        store.is_up = True

    def _may_lose(self, store: Store) -> bool:
        """Data is lost on fewer than half of a group's voters at any time, or it is lost for good.

        A store that lost its data before it ever reported cannot be told from a new one.
        """
        if store.number not in self.state.stores:
            return False
        if self.state.stores[store.number].incarnation != str(store.incarnation):
            return False
        for number, shard in self.state.shards.items():
            if store.number in shard.founders and number not in self.groups:
                return False
        for group in self.groups.values():
            now = group.now
            for voters in (now.voters, now.outgoing):
                if store.number not in voters:
                    continue
                whole = [
                    each
                    for each in voters
                    if each in group.replicas
                    and each != store.number
                    and group.replicas[each].match >= group.commit
                ]
                waiting = [each for each in voters if each not in group.promised]
                if len(whole) <= len(voters) // 2 or waiting:
                    return False
        return True

    def _pick_replica(self, store: Store, fault: Callable[[int, Group, Replica], None]) -> None:
        held = [
            group
            for number, group in self.groups.items()
            if store.number in group.replicas and number
        ]
        if held:
            group = self.random.choice(held)
            fault(store.number, group, group.replicas[store.number])

    def _stop(self, store: int, group: Group, replica: Replica) -> None:
        if group.leader != store:
            replica.is_running = False

    def _fork(self, store: int, group: Group, replica: Replica) -> None:
        """A replica says something else at the same epoch, until its store restarts."""
        known = {id(self.groups.get(number)): each for number, each in self.state.shards.items()}
        if id(group) not in known or known[id(group)].epoch != group.now.epoch:
            return  # Of two at an epoch that is new to HAKeeper, it believes the first.
        if group.leader != store and not replica.is_empty:
            others = [each for each in (*group.now.voters, store) if self.random.random() < 0.5]
            voters = tuple(sorted({store, *others, 1}))
            replica.fork = Configuration(group.now.epoch, voters)

    def _operate(self, store: Store) -> None:
        draw = self.random.random()
        if draw < 0.5 and store.number in self.state.stores:
            self.apply(DrainStore(store.number, self.random.random() < 0.4))
        elif draw < 0.8 and len(self.groups) < 10:
            self.next_name += 1
            replicas = self.random.choice((1, 3))
            learners = self.random.choice((0, 0, 1))
            self.apply(AddShard(f"extra-{self.next_name}", replicas, learners, "nonce"))
        elif len(self.state.shards) > 3:
            self._remove_shard()

    def _remove_shard(self) -> None:
        written = [each.log_shard for each in self.state.tn_shards.values()]
        free = [each for each in self.state.shards if is_log(each) and each not in written]
        if free:
            self.apply(RemoveShard(self.random.choice(free)))

    # The end

    def settle(self) -> None:
        """No more faults: everything has to come to rest, and to be well."""
        self.is_faulty = False
        dead = self._choose_dead()
        for store in self.stores.values():
            if store is dead:
                store.crash()
            elif not store.is_up and store.number <= self.joined:
                self._restart(store)
            for group in self.groups.values():
                if store.number in group.replicas:
                    group.replicas[store.number].fork = None
        self.services.return_all()
        for number in self.state.stores:
            self.apply(DrainStore(number, is_draining=False))
        quiet_since, done = self.state.tick, self._done()
        for _ in range(ROUNDS_TO_SETTLE):
            self._round()
            if self._done() != done:
                quiet_since, done = self.state.tick, self._done()
            if self.state.tick - quiet_since > QUIET_TICKS and not self.state.orders:
                check_end(self)
                return
        raise Violation(f"no end of orders: {list(self.state.orders.values())[-5:]}")

    def _done(self) -> tuple[int, ...]:
        """What has been ordered and copied: who has a long log to catch up with is not at rest."""
        copied = (
            replica.match for group in self.groups.values() for replica in group.replicas.values()
        )
        return self.ordered, *copied

    def _choose_dead(self) -> Store | None:
        """A store that never returns, where the others are enough for all that is wanted."""
        store = self.stores[self.random.randint(1, self.joined)]
        wanted = max(each.replicas + each.learners_wanted for each in self.state.shards.values())
        if store.number not in self.state.stores or self.joined - 1 < wanted:
            return None
        for group in self.groups.values():

            def is_whole(voter: int, group: Group = group) -> bool:
                replica = group.replicas.get(voter)
                return (
                    voter != store.number and replica is not None and replica.match >= group.commit
                )

            if not group.now.is_decided(is_whole):
                return None
        if any(number not in self.groups for number in self.state.shards):
            return None
        return store

    def _round(self) -> None:
        for group in self.groups.values():
            for _ in range(2):
                group.step(self.random, self._is_up, write=0.0)
        for store in self.stores.values():
            self.heartbeat(store)
            while store.is_up and store.orders:
                self.carry_out(store)
        self.services.round()
        self.tick()
        self.events += 2 * len(self.stores) + 2 * len(self.groups) + 1


def run(seed: int, events: int, *, profile: Profile | None = None) -> Report:
    """One run; raises `Violation` where a promise is broken."""
    world = World(seed, profile or Profile.choose(seed))
    with repeatable("hakeeper", seed):
        while world.events < events:
            world.event()
        world.settle()
    digest = zlib.crc32(encode_state(world.state))
    return Report(world.events, world.state.tick, world.ordered, digest)
