"""A load of Raftwood from one client process; prints what `system` describes."""

import argparse
import asyncio
import json
import os
import random
import signal
import time
from typing import Any

from benchmarks.raft_cluster.raftwood_node import CLIENT_NETWORK
from raftwood.app.event_loop import run
from raftwood.base.environment import Environment
from raftwood.base.errors import RaftwoodError
from raftwood.disk.real_environment import real_environment
from raftwood.raft.remote.client import AsyncRaftClient

TIMEOUT_MS = 20_000
PROBE_PAUSE_S = 0.005


def say(event: str, **fields: Any) -> None:
    print(json.dumps({"event": event, **fields}), flush=True)


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
            ordered = sorted(latencies)
            say(
                "result",
                count=len(ordered),
                elapsed_s=elapsed,
                p50_ms=ordered[len(ordered) // 2] * 1000,
                p99_ms=ordered[int(len(ordered) * 0.99)] * 1000,
                client_cpu_s=cpu,
            )
        for worker in workers:
            worker.cancel()
        await asyncio.wait(workers)


def seconds(text: str) -> float:
    return float(text.removesuffix("s"))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--addresses", required=True)
    parser.add_argument("--groups", type=int, default=1)
    parser.add_argument("--in-flight", type=int, required=True)
    parser.add_argument("--bytes", type=int, required=True)
    parser.add_argument("--warm", type=seconds, required=True)
    parser.add_argument("--seconds", type=seconds, required=True)
    parser.add_argument("--kill", type=int)
    given = parser.parse_args()
    with real_environment() as environment:
        run(load(environment, given))


if __name__ == "__main__":
    main()
