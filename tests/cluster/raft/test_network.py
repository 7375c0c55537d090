"""The network between stores fails in every way, and a leader halts, while clients write."""

import asyncio
import time
from pathlib import Path

import msgspec

from raftwood.base.errors import RaftwoodError
from raftwood.net import ClientLimits
from raftwood.raft.client import AsyncRaftClient
from tests.kits.raft.cluster import CLIENT_NETWORK, STORES
from tests.kits.raft.ledger import command, count_from, count_query
from tests.kits.raft.load import Writer
from tests.kits.raft.node import BUSY_GROUPS
from tests.kits.raft.scene import Scene, scene
from tests.kits.running import run

_LATENCY_S = 0.02
_STALE_MS = 2_000
_STRANGER = 1_000
_PATIENT = msgspec.structs.replace(
    CLIENT_NETWORK, limits=ClientLimits(ping_interval_ms=60_000, ping_timeout_ms=60_000)
)
"""For a client that holds on to a store which says nothing."""


async def heal(at: Scene, store: int) -> None:
    healed = time.monotonic()
    at.proxies.heal()
    await at.answered_again("healed", healed)
    await at.caught_up(store)
    print(f"store {store} has caught up after {time.monotonic() - healed:.2f} s")


async def stall_leader(at: Scene) -> None:
    await at.cluster.let_lead(1)
    began = time.monotonic()
    at.proxies.isolate(1)
    await at.answered_again("stall of the leader's network", began)
    await heal(at, 1)


async def stall_one_way(at: Scene) -> None:
    """The leader is not heard any more, but hears."""
    await at.cluster.let_lead(2)
    began = time.monotonic()
    at.proxies.stall(2, 1)
    at.proxies.stall(2, 3)
    await at.answered_again("one-way stall, the leader is not heard", began)
    await heal(at, 2)
    await at.cluster.let_lead(2)
    began = time.monotonic()
    at.proxies.stall(1, 2)
    at.proxies.stall(3, 2)
    await at.answered_again("one-way stall, the leader hears nothing", began)
    await heal(at, 2)


async def stall_one_link(at: Scene) -> None:
    """Two stores do not reach one another; the third one reaches both."""
    await at.cluster.let_lead(3)
    began = time.monotonic()
    at.proxies.stall(3, 1)
    at.proxies.stall(1, 3)
    await at.answered_again("stall between the leader and one follower", began)
    await heal(at, 1)


async def reset_connections(at: Scene) -> None:
    for store in STORES:
        began = time.monotonic()
        at.proxies.reset(store)
        await at.answered_again(f"reset of all connections to store {store}", began)


async def slow_down(at: Scene) -> None:
    began = time.monotonic()
    at.proxies.slow_down(_LATENCY_S)
    await at.answered_again("latency", began)
    await at.load.for_a_while(0.5)
    at.proxies.slow_down(0.0)


async def read_at_stale_leader(client: AsyncRaftClient, writer: Writer) -> tuple[int, int]:
    """What it tells, or -1 for a refusal, and what it has to tell at least."""
    acked = len(writer.acked)
    try:
        answer = await client.read(writer.group, count_query(writer.id), timeout_ms=_STALE_MS)
    except RaftwoodError:
        return -1, acked
    return count_from(answer), acked


async def write_at_stale_leader(client: AsyncRaftClient, group: int) -> bool:
    """Whether it acks, without a session: the command is sent once, to this store alone."""
    payload = command(_STRANGER + group, 1, 20)
    try:
        await client.propose(group, payload, timeout_ms=_STALE_MS, exactly_once=False)
    except RaftwoodError:
        return False
    return True


async def pause_leader(at: Scene) -> None:
    cluster, load = at.cluster, at.load
    await cluster.let_lead(1, BUSY_GROUPS)
    watched = [next(each for each in load.busy if each.group == group) for group in BUSY_GROUPS]
    async with cluster.client(1, network=_PATIENT) as client:
        for writer in watched:  # the connection stands, and the store's answer is a leader's
            told, least = await read_at_stale_leader(client, writer)
            assert told >= least
        began = time.monotonic()
        cluster.nodes[1].pause()
        at.proxies.isolate(1)  # so that, when it wakes up, nobody tells it that another one leads
        try:
            await at.answered_again("SIGSTOP of the leader", began)
            others = [store for store in STORES if store != 1]
            leaders = {await cluster.leader(group, others) for group in BUSY_GROUPS}
            assert leaders <= set(others)
            # These lie before the store when it wakes up and believes that it leads.
            reads = [
                asyncio.create_task(read_at_stale_leader(client, writer)) for writer in watched
            ]
            writes = [
                asyncio.create_task(write_at_stale_leader(client, group)) for group in BUSY_GROUPS
            ]
            await load.for_a_while(0.5)
        finally:
            cluster.nodes[1].resume()
        for told, least in await asyncio.gather(*reads):
            assert told == -1 or told >= least, f"a stale read: {told} of {least}"
        acks = await asyncio.gather(*writes)
        healed = time.monotonic()
        at.proxies.heal()
        for group, is_acked in zip(BUSY_GROUPS, acks, strict=True):
            answer = await load.client.read(
                group, count_query(_STRANGER + group), timeout_ms=60_000
            )
            assert count_from(answer) >= is_acked, "a stale leader acked a write that is gone"
    await at.answered_again("SIGCONT", healed)
    await at.caught_up(1)


def test_nothing_acked_is_missing_after_the_network_failed_and_a_leader_was_paused(
    tmp_path: Path,
) -> None:
    async def body() -> None:
        async with scene(tmp_path, with_proxies=True) as at:
            for fault in (
                stall_leader,
                stall_one_way,
                stall_one_link,
                reset_connections,
                slow_down,
                pause_leader,
            ):
                await fault(at)

    run(body())
