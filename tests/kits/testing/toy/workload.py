"""Clients that read and write at random and write down what they saw."""

import asyncio
import random
from collections.abc import Sequence

import msgspec

from raftwood.base.environment import Environment
from raftwood.base.errors import RaftwoodError
from raftwood.testing import History
from tests.kits.testing.toy.register import Registers
from tests.kits.testing.toy.replica import ReplicaAddress

KEYS = 3
"""Keys in use at a time: few, so that clients meet."""
GENERATION_S = 8.0
"""After so long, other keys: the checker's work grows faster than a key's history."""
WORKERS = 4
_PREVIOUS_SHARE = 0.15
_RETRY_S = 0.2


class Load(msgspec.Struct, frozen=True):
    """How long to go on, by the loop's clock, and how fast each worker asks for what."""

    until: float
    pause_s: float
    read_share: float = 0.5


async def run_client(
    environment: Environment,
    name: str,
    replicas: Sequence[ReplicaAddress],
    history: History,
    load: Load,
) -> None:
    """Several workers over one set of connections, each a client of its own to the checker."""
    async with Registers(environment, name, replicas) as registers, asyncio.TaskGroup() as group:
        for number in range(WORKERS):
            source = random.Random(environment.random.getrandbits(64))
            group.create_task(_work(registers, f"{name}.{number}", source, history, load))


async def _work(
    registers: Registers, name: str, source: random.Random, history: History, load: Load
) -> None:
    loop = asyncio.get_running_loop()
    sequence = 0
    while loop.time() < load.until:
        await asyncio.sleep(source.uniform(0, 2 * load.pause_s))
        generation = int(loop.time() / GENERATION_S)
        if source.random() < _PREVIOUS_SHARE:
            generation = max(0, generation - 1)
        key = generation * KEYS + source.randrange(KEYS)
        if source.random() < load.read_share:
            await history.run(name, "read", registers.read(key), key=str(key))
        else:
            sequence += 1
            value = f"{name}-{sequence}"
            work = registers.write(key, value)
            await history.run(name, "write", work, given=value, key=str(key))


async def audit(
    environment: Environment,
    replicas: Sequence[ReplicaAddress],
    history: History,
    *,
    timeout_s: float,
) -> None:
    """After the faults: every key can be read, twice, and all replicas come to agree on it."""
    keys = sorted({int(event.key) for event in history.events})
    async with (
        asyncio.timeout(timeout_s),
        Registers(environment, "auditor", replicas) as registers,
    ):
        for key in [*keys, *keys]:
            await _read_in_the_end(registers, key, history)
        for key in keys:
            await _repaired(registers, key)


async def _read_in_the_end(registers: Registers, key: int, history: History) -> None:
    while True:
        found = await history.run("auditor", "read", registers.read(key), key=str(key))
        if found is not None:
            return
        await asyncio.sleep(_RETRY_S)


async def _repaired(registers: Registers, key: int) -> None:
    while True:
        try:
            await registers.repair(key)
        except RaftwoodError:
            await asyncio.sleep(_RETRY_S)
        else:
            return
