"""One-way messages through a channel, in simulation: lost in faults, never twice, never changed."""

import asyncio

import pytest

from raftwood.base.environment import Environment
from raftwood.net import (
    Channel,
    ClientCredentials,
    ClientLimits,
    Connection,
    Identity,
    Method,
    Payload,
    Secret,
    Server,
    ServerCredentials,
    ServerLimits,
    Service,
    connect,
)
from raftwood.testing import NetworkProfile, Simulation, assert_deterministic

TELL = Method(1, "tell", roles=("node",))
SECRET = Secret(b"the secret of both nodes, for this test")
A, B = (Identity(role="node", node_id=name) for name in "ab")
CLIENT_LIMITS = ClientLimits(
    ping_interval_ms=500, ping_timeout_ms=500, unsent_bytes_max=1 << 20, connect_timeout_ms=1_000
)
SERVER_LIMITS = ServerLimits(ping_interval_ms=500, ping_timeout_ms=500)


class World:
    """What both nodes saw; it outlives their processes."""

    def __init__(self) -> None:
        self.sent: list[int] = []
        self.refused = 0
        self.heard: list[int] = []
        self.changes: list[bool] = []

    def hear(self, peer: Identity, payload: Payload) -> None:
        assert peer == B
        number = int.from_bytes(payload[:8], "little")
        assert payload == b"".join(message(number))
        self.heard.append(number)

    async def listen(self, environment: Environment) -> None:
        service = Service()
        service.one_way(TELL, self.hear)
        credentials = ServerCredentials(
            cluster_id="c", identity=A, secret_of=lambda who: SECRET if who == B else None
        )
        async with Server(service, credentials, environment.random, SERVER_LIMITS) as server:
            await server.listen("a", 7000)
            await asyncio.get_running_loop().create_future()

    async def talk(self, environment: Environment) -> None:
        credentials = ClientCredentials(cluster_id="c", identity=B, secret=SECRET, server=A)

        async def dial() -> Connection:
            return await connect("a", 7000, credentials, environment.random, limits=CLIENT_LIMITS)

        async with Channel(dial, environment.random, on_change=self.changes.append) as channel:
            for number in range(1 << 20):
                if channel.send(TELL, message(number)):
                    self.sent.append(number)
                else:
                    self.refused += 1
                await asyncio.sleep(0.01)


def message(number: int) -> list[bytes]:
    """Small ones, and each twentieth large and in pieces that are not joined."""
    return [
        number.to_bytes(8, "little"),
        bytes([number % 256]) * (30_000 if number % 20 == 0 else 40),
    ]


async def run_with_faults(simulation: Simulation) -> tuple[int, int, int, int]:
    world = World()
    a, b = simulation.add_node("a"), simulation.add_node("b")
    a.start(world.listen)
    b.start(world.talk)
    source = simulation.loop.random_of("faults")
    for _ in range(6):
        await asyncio.sleep(source.uniform(0.5, 2.0))
        match source.randrange(4):
            case 0:
                simulation.network.reset("a", "b")
            case 1:
                simulation.network.partition(["a"], ["b"])
                await asyncio.sleep(source.uniform(0.1, 4.0))
                simulation.network.heal()
            case 2:
                (a.kill if source.random() < 0.5 else a.power_off)()
                await asyncio.sleep(source.uniform(0.1, 2.0))
                a.start()
            case _:
                a.pause()
                await asyncio.sleep(source.uniform(0.1, 3.0))
                a.resume()
    await asyncio.sleep(20)
    calm_from = world.sent[-1]
    await asyncio.sleep(2)
    last = world.sent[-1]
    await asyncio.sleep(1)
    heard = set(world.heard)
    assert len(heard) == len(world.heard), "a message came twice"
    assert heard <= set(world.sent), "a message came that was refused"
    assert heard >= set(range(calm_from, last)), "a message was lost without a fault"
    # Connects and losses take turns.
    assert world.changes == [index % 2 == 0 for index in range(len(world.changes))]
    assert world.changes[-1]
    return len(world.sent), world.refused, len(world.heard), len(world.changes)


@pytest.mark.parametrize("seed", range(3))
def test_messages_are_lost_in_faults_only_and_never_come_twice(seed: int) -> None:
    network = NetworkProfile(split_probability=0.3, short_read_probability=0.3)
    sent, _, heard, _ = assert_deterministic(seed, run_with_faults, network=network).result
    assert sent >= heard > 1_000


async def run_over_a_slow_link(simulation: Simulation) -> None:
    """What is written waits for longer than an answer to a PING may take."""
    world = World()
    a, b = simulation.add_node("a"), simulation.add_node("b")
    a.start(world.listen)

    async def burst(environment: Environment) -> None:
        credentials = ClientCredentials(cluster_id="c", identity=B, secret=SECRET, server=A)
        dialled = connect("a", 7000, credentials, environment.random, limits=CLIENT_LIMITS)
        async with await dialled as connection:
            world.changes.append(True)
            # As much as fits below the bound at which writing pauses.
            while sum(map(len, map(b"".join, map(message, world.sent)))) < 450_000:
                number = 20 * len(world.sent)
                assert connection.send(TELL, message(number))
                world.sent.append(number)
            await connection.wait_closed()
            world.changes.append(False)

    b.start(burst)
    began = simulation.now
    await simulation.wait_until(lambda: 0 < len(world.sent) == len(world.heard), timeout_s=30)
    assert simulation.now - began > 2, "the link was slow"
    assert world.changes == [True]
    # A peer that is gone is still found, though something was written to it.
    simulation.network.partition(["a"], ["b"])
    await simulation.wait_until(lambda: world.changes == [True, False], timeout_s=3)


def test_a_slow_link_is_not_taken_for_a_dead_peer() -> None:
    network = NetworkProfile(delay_s=(0.15, 0.15), socket_buffer_bytes=64 << 10)
    assert_deterministic(1, run_over_a_slow_link, network=network)
