"""Stores that halt without dying, or end in order, while clients write."""

import asyncio
import signal
import time
from pathlib import Path

import msgspec
import pytest

from raftwood.base.errors import RaftwoodError
from raftwood.net import ClientLimits
from raftwood.raft.remote.client import AsyncRaftClient
from tests.kits.raft.cluster import CLIENT_NETWORK, STORES
from tests.kits.raft.ledger import command, count_from, count_query
from tests.kits.raft.load import Writer
from tests.kits.raft.node import BUSY_GROUPS, HAND_OVER_MS
from tests.kits.raft.scene import Scene, scene
from tests.kits.running import run

pytestmark = pytest.mark.slow

PAUSE_S = 5.0
HAND_OVER_S_MAX = 1.0
_STRANGER = 1_000
_PATIENT = msgspec.structs.replace(
    CLIENT_NETWORK, limits=ClientLimits(ping_interval_ms=60_000, ping_timeout_ms=60_000)
)
"""For a client that holds on to a store which says nothing."""


async def read_at_stale_leader(client: AsyncRaftClient, writer: Writer) -> tuple[int, int]:
    """What it tells, or -1 for a refusal, and what it has to tell at least."""
    acked = len(writer.acked)
    try:
        answer = await client.read(writer.group, count_query(writer.id), timeout_ms=1_900)
    except RaftwoodError:
        return -1, acked
    return count_from(answer), acked


async def write_at_stale_leader(client: AsyncRaftClient, group: int) -> bool:
    """Whether it acks, without a session: the command is sent once, to this store alone."""
    payload = command(_STRANGER + group, 1, 20)
    try:
        await client.propose(group, payload, timeout_ms=1_900, exactly_once=False)
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
        cluster.nodes[1].signal(signal.SIGSTOP)
        at.proxies.isolate(1)  # so that, when it wakes up, nobody tells it that another one leads
        try:
            await at.answered_again("SIGSTOP of the leader", began)
            others = [store for store in STORES if store != 1]
            leaders = {await cluster.leader(group, others) for group in BUSY_GROUPS}
            assert leaders <= set(others)
            await load.for_a_while(PAUSE_S - 1.0 - (time.monotonic() - began))
            # These lie before the store when it wakes up and believes that it leads.
            reads = [
                asyncio.create_task(read_at_stale_leader(client, writer)) for writer in watched
            ]
            writes = [
                asyncio.create_task(write_at_stale_leader(client, group)) for group in BUSY_GROUPS
            ]
            await load.for_a_while(1.0)
        finally:
            cluster.nodes[1].signal(signal.SIGCONT)
        for told, least in await asyncio.gather(*reads):
            assert told == -1 or told >= least, f"a stale read: {told} of {least}"
        acks = await asyncio.gather(*writes)
        healed = time.monotonic()
        at.proxies.heal()
        for group, is_acked in zip(BUSY_GROUPS, acks, strict=True):
            answer = await load.client.read(group, count_query(_STRANGER + group), timeout_ms=5_000)
            assert count_from(answer) >= is_acked, "a stale leader acked a write that is gone"
    await at.answered_again("SIGCONT", healed)
    await at.caught_up(1)


def test_a_leader_that_was_paused_neither_reads_nor_acks_wrongly(tmp_path: Path) -> None:
    async def body() -> None:
        async with scene(tmp_path, with_proxies=True) as at:
            await pause_leader(at)

    run(body())


def test_a_store_that_ends_in_order_hands_over_within_a_second(tmp_path: Path) -> None:
    async def body() -> None:
        async with scene(tmp_path) as at:
            for store in STORES:
                await at.cluster.let_lead(store)
                node = at.cluster.nodes[store]
                began = time.monotonic()
                node.signal(signal.SIGTERM)
                assert await node.ended() == 0
                ended = time.monotonic()
                assert ended - began < HAND_OVER_MS / 1000, "it waited in vain for a hand-over"
                await at.answered_again("SIGTERM of the leader, and its end", ended)
                silence_s = at.load.longest_silence_s(began)
                print(f"it took {ended - began:.2f} s, the longest silence was {silence_s:.2f} s")
                assert silence_s < HAND_OVER_S_MAX
                await at.cluster.restart(store)
                await at.caught_up(store)

    run(body())
