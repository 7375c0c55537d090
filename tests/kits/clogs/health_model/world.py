"""Servers that come and go, pongs that are late, lost, doubled and forged, and a driver's calls."""

import random
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from raftwood.clogs.configuration import HaRules, LogServer, RingConfiguration
from raftwood.clogs.health import Action, Health, Ping
from tests.kits.clogs.health_model.oracle import Oracle

NAMES = [f"s{number}" for number in range(14)]
_OLD_MAX = 40
_CHECK_EVERY = 256


@dataclass(frozen=True)
class Profile:
    """Sizes, and how likely each thing is when its turn comes."""

    servers: int
    step_share: float
    """Of the gap: time passes by up to twice as much with each event."""
    flip: float
    """That a server goes down, or comes back."""
    mute: float
    """That a server which is up does not answer a ping."""
    slow: float
    """That a pong waits for long."""
    lost: float
    reload: float
    pause: float

    @classmethod
    def choose(cls, seed: int) -> "Profile":
        source = random.Random(f"clogs ha model {seed}")
        return cls(
            servers=source.choice((1, 2, 3, 3, 5, 8, 12)),
            step_share=source.choice((0.01, 0.03)),
            flip=source.choice((0.0005, 0.002, 0.01)),
            mute=source.choice((0.0, 0.1, 0.4)),
            slow=source.choice((0.0, 0.1, 0.5)),
            lost=source.choice((0.0, 0.002, 0.01)),
            reload=source.choice((0.0, 0.0005, 0.003)),
            pause=source.choice((0.0, 0.0002, 0.002)),
        )


def choose_rules(source: random.Random) -> HaRules:
    gap_ms = source.choice((100, 1_000, 1_000, 5_000))
    first_ms = int(gap_ms * source.choice((0, 0.5, 3, 10)))
    return HaRules(
        check_gap_ms=gap_ms,
        invalid_checks_max=source.choice((1, 2, 3, 3, 5)),
        isolated_percent_max=source.choice((0, 10, 34, 50, 100, 100)),
        isolation_first_ms=first_ms,
        isolation_longest_ms=int(first_ms * source.choice((1, 4, 50))),
    )


def choose_ring(source: random.Random, count: int) -> RingConfiguration:
    names = source.sample(NAMES, count)
    return RingConfiguration(
        servers=tuple(LogServer(host=name, port=1, name=name) for name in names),
        ha=choose_rules(source),
    )


class Report(msgspec.Struct, frozen=True):
    """What a run came to."""

    events: int
    isolations: int
    recoveries: int
    panics: int
    full: int
    """Servers that stayed because no more may be isolated."""


Machine = Callable[[RingConfiguration, float], Health]


class World:
    def __init__(self, seed: int, profile: Profile, machine: Machine) -> None:
        self.rng = random.Random(seed)
        self.profile = profile
        self.now = self.rng.uniform(0, 1e6)
        self.configuration = choose_ring(self.rng, profile.servers)
        self.health = machine(self.configuration, self.now)
        self.oracle = Oracle(self.health, self.configuration, self.now)
        self.names = [server.ring_name for server in self.configuration.servers]
        self.is_up = dict.fromkeys(NAMES, True)
        self.coming: list[tuple[str, int]] = []
        self.slow: list[tuple[str, int]] = []
        self.old: list[tuple[str, int]] = []

    def run(self, events: int) -> Report:
        for number in range(events):
            self.step()
            if not number % _CHECK_EVERY:
                self.oracle.check_pings()
                self.oracle.check_told()
        oracle = self.oracle
        return Report(events, oracle.isolations, oracle.recoveries, oracle.panics, oracle.full)

    def step(self) -> None:
        chance = self.rng.random()
        oracle = self.oracle
        self.now += 2 * chance * self.profile.step_share * oracle.gap_s
        now = self.now
        turn = self.rng.random()
        oracle.called(now)
        if self.coming and turn < 0.3:
            self.pong(self.coming.pop(), now)
        elif turn < 0.6:
            self.tick(now)
        elif turn < 0.93:
            name = self.names[int(chance * len(self.names))]
            actions = self.health.sent(name, now)
            if actions:
                self.act(actions, now)
            if name in oracle.isolated:
                oracle.check_recovered(name, now)
        else:
            self.rare(turn, now)

    def tick(self, now: float) -> None:
        actions = self.health.tick(now)
        if actions:
            self.act(actions, now)
        self.oracle.ticked(now)

    def act(self, actions: list[Action], now: float) -> None:
        self.oracle.acted(actions, now)
        for action in actions:
            if isinstance(action, Ping) and self.is_up[action.server]:
                chance = self.rng.random()
                if chance < self.profile.mute:
                    continue
                pong = (action.server, action.ping_id + 1)
                waits = self.slow if self.rng.random() < self.profile.slow else self.coming
                waits.append(pong)

    def pong(self, pong: tuple[str, int], now: float) -> None:
        name, pong_id = pong
        actions = self.health.pong(name, pong_id, now)
        self.oracle.ponged(name, pong_id, actions, now)
        self.old.append(pong)
        if len(self.old) > _OLD_MAX:
            del self.old[: _OLD_MAX // 2]

    def rare(self, turn: float, now: float) -> None:
        rng, profile = self.rng, self.profile
        if turn < 0.95 and self.slow:
            # It may be too late by now, and the server may be gone.
            self.pong(self.slow.pop(rng.randrange(len(self.slow))), now)
        elif turn < 0.97 and self.old:
            name, pong_id = rng.choice(self.old)
            self.pong((name, pong_id + rng.choice((0, 0, -2, -1, 1, 2, 4))), now)
        elif rng.random() < profile.flip * 14:
            name = rng.choice(NAMES)
            self.is_up[name] = not self.is_up[name]
        elif rng.random() < profile.lost * 14:
            name = rng.choice(self.names)
            self.oracle.lost(name)
            self.act(self.health.connection_lost(name, now), now)
        elif rng.random() < profile.reload * 14:
            self.reload(now)
        elif rng.random() < profile.pause * 14:
            self.now += self.oracle.gap_s * rng.choice((0.3, 1.2, 2.1, 3, 50, 10_000))

    def reload(self, now: float) -> None:
        rng = self.rng
        count = max(1, min(len(NAMES), len(self.names) + rng.randint(-2, 2)))
        fresh = choose_ring(rng, count)
        if rng.random() < 0.5:
            fresh = msgspec.structs.replace(fresh, ha=self.configuration.ha)
        if rng.random() < 0.7:
            # Most reloads keep most servers.
            kept = rng.sample(self.configuration.servers, min(count, len(self.names)))
            names = [server.ring_name for server in kept]
            others = [server for server in fresh.servers if server.ring_name not in names]
            fresh = msgspec.structs.replace(fresh, servers=(*kept, *others)[:count])
        self.configuration = fresh
        self.names = [server.ring_name for server in fresh.servers]
        actions = self.health.configure(fresh, now)
        self.oracle.configured(fresh, actions, now)


def run(
    seed: int, events: int, *, profile: Profile | None = None, machine: Machine = Health
) -> Report:
    return World(seed, profile or Profile.choose(seed), machine).run(events)
