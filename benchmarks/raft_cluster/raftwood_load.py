"""A load of Raftwood from one client process; prints what `system` describes."""

import argparse
import asyncio
import os
import random
import signal
import time

from benchmarks.harness.load import parser, say, say_result
from benchmarks.raft_cluster.raftwood_node import CLIENT_NETWORK
from raftwood.base.environment import Environment
from raftwood.base.errors import RaftwoodError
from raftwood.disk.real_environment import real_environment
from raftwood.raft.client import AsyncRaftClient
from raftwood.server.event_loop import run

TIMEOUT_MS = 20_000
PROBE_PAUSE_S = 0.005


async def work(
    client: AsyncRaftClient, groups: int, payload: bytes, latencies: list[float]
) -> None:
    """Keep one append in flight, for ever; without sessions, as the peers do."""
    clock = time.perf_counter
    while True:
        group = random.randrange(groups) + 1 if groups > 1 else 1
        began = clock()
        await client.propose(group, payload, timeout_ms=TIMEOUT_MS, exactly_once=False)
        latencies.append(clock() - began)


async def work_through_failure(client: AsyncRaftClient, payload: bytes) -> None:
    while True:
        try:
            await client.propose(1, payload, timeout_ms=TIMEOUT_MS, exactly_once=False)
        except RaftwoodError:
            await asyncio.sleep(PROBE_PAUSE_S)


async def first_ack_ms(environment: Environment, addresses: list[str], payload: bytes) -> float:
    """Start a write every 5 ms at one node after the other; when the first is acked."""
    clients = [
        AsyncRaftClient(environment, CLIENT_NETWORK, {store: address})
        for store, address in enumerate(addresses, 1)
    ]
    began = time.perf_counter()
    acked: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    async def probe(client: AsyncRaftClient) -> None:
        try:
            await client.propose(1, payload, timeout_ms=TIMEOUT_MS, exactly_once=False)
        except RaftwoodError:
            return
        if not acked.done():
            acked.set_result(time.perf_counter() - began)

    probes: list[asyncio.Task[None]] = []
    while not acked.done():
        probes.append(asyncio.create_task(probe(clients[len(probes) % len(clients)])))
        await asyncio.sleep(PROBE_PAUSE_S)
    for task in probes:
        task.cancel()
    await asyncio.wait(probes)
    for client in clients:
        await client.close()
    return acked.result() * 1000


async def load(environment: Environment, given: argparse.Namespace) -> None:
    addresses = given.addresses.split(",")
    payload = os.urandom(given.bytes)
    latencies: list[float] = []
    client = AsyncRaftClient(environment, CLIENT_NETWORK, dict(enumerate(addresses, 1)))
    async with client:
        makes = [
            work_through_failure(client, payload)
            if given.kill
            else work(client, given.groups, payload, latencies)
            for _ in range(given.in_flight)
        ]
        workers = [asyncio.create_task(each) for each in makes]
        await asyncio.sleep(given.warm)
        say("warm")
        latencies.clear()
        if given.kill:
            os.kill(given.kill, signal.SIGKILL)
            say("failover", first_ack_ms=await first_ack_ms(environment, addresses, payload))
        else:
            cpu, began = time.process_time(), time.perf_counter()
            await asyncio.sleep(given.seconds)
            elapsed, cpu = time.perf_counter() - began, time.process_time() - cpu
            say_result(latencies, elapsed_s=elapsed, cpu_s=cpu)
        for worker in workers:
            worker.cancel()
        await asyncio.wait(workers)


def main() -> None:
    flags = parser()
    flags.add_argument("--addresses", required=True)
    flags.add_argument("--groups", type=int, default=1)
    with real_environment() as environment:
        run(load(environment, flags.parse_args()))


if __name__ == "__main__":
    main()
