"""A load of Logservice from one client process; prints what `system` describes.

A record at a time: each of the appends in flight sends its next record when the last one is acked.
Batched: 500 records make one record of the log, their lengths before them; as many batches as the
bound allows are under way.
"""

import argparse
import asyncio
import os
import signal
import struct
import time
from collections.abc import Sequence

from benchmarks.harness.load import parser, say, say_result
from benchmarks.logservice.logservice_system import CLIENT_NETWORK
from raftwood.base.environment import Environment
from raftwood.base.errors import RaftwoodError
from raftwood.disk.real_environment import real_environment
from raftwood.logservice.client.log_client import AsyncLogClient
from raftwood.net.stores import Stores
from raftwood.server.event_loop import run

TIMEOUT_MS = 40_000
PROBE_PAUSE_S = 0.005
BATCH = 500


async def work(clients: Sequence[AsyncLogClient], payload: bytes, latencies: list[float]) -> None:
    """Keep one append in flight, for ever, at one shard after the other if several are given."""
    clock = time.perf_counter
    while True:
        for client in clients:
            began = clock()
            await client.append(payload)
            latencies.append(clock() - began)


async def work_batched(
    clients: Sequence[AsyncLogClient], records: list[bytes], latencies: list[float]
) -> None:
    """As `work`, with batches that are made of single records each time."""
    clock = time.perf_counter
    while True:
        for client in clients:
            began = clock()
            await client.append(encode_batch(records))
            latencies.append(clock() - began)


def encode_batch(records: list[bytes]) -> bytes:
    count = len(records)
    return b"".join([struct.pack(f"<I{count}I", count, *map(len, records)), *records])


async def first_ack_ms(client: AsyncLogClient, payload: bytes) -> float:
    """Start an append every 5 ms; when the first of them is acked."""
    began = time.perf_counter()
    acked: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    async def probe() -> None:
        try:
            await client.append(payload)
        except RaftwoodError:
            return
        if not acked.done():
            acked.set_result(time.perf_counter() - began)

    probes: list[asyncio.Task[None]] = []
    while not acked.done():
        probes.append(asyncio.create_task(probe()))
        await asyncio.sleep(PROBE_PAUSE_S)
    for task in probes:
        task.cancel()
    await asyncio.wait(probes)
    return acked.result() * 1000


async def load(environment: Environment, given: argparse.Namespace) -> None:
    stores = Stores(environment, CLIENT_NETWORK, dict(enumerate(given.addresses.split(","), 1)))
    clients = [
        await AsyncLogClient.attach(environment, stores, shard=shard, timeout_ms=TIMEOUT_MS)
        for shard in range(1, given.shards + 1)
    ]
    payload = os.urandom(given.bytes)
    latencies: list[float] = []
    workers = []
    for number in range(max(1, given.in_flight // (BATCH if given.batched else 1))):
        first = number % len(clients)
        # Where there are enough, each stays with its shard: else all would pile up at a slow one.
        is_spread = given.in_flight >= len(clients)
        turns = [clients[first]] if is_spread else clients[first:] + clients[:first]
        made = (
            work_batched(turns, [payload] * BATCH, latencies)
            if given.batched
            else work(turns, payload, latencies)
        )
        workers.append(asyncio.create_task(made))
    await asyncio.sleep(given.warm)
    say("warm")
    latencies.clear()
    if given.kill:
        os.kill(given.kill, signal.SIGKILL)
        say("failover", first_ack_ms=await first_ack_ms(clients[0], payload))
    else:
        cpu, began = time.process_time(), time.perf_counter()
        await asyncio.sleep(given.seconds)
        elapsed, cpu = time.perf_counter() - began, time.process_time() - cpu
        count = len(latencies) * (BATCH if given.batched else 1)
        say_result(latencies, elapsed_s=elapsed, cpu_s=cpu, count=count)
    for worker in workers:
        worker.cancel()
    await asyncio.wait(workers)
    for client in clients:
        await client.close()
    await stores.close()


def main() -> None:
    flags = parser()
    flags.add_argument("--addresses", required=True)
    with real_environment() as environment:
        run(load(environment, flags.parse_args()))


if __name__ == "__main__":
    main()
