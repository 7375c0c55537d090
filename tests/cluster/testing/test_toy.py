"""The replicated toy is linearizable on real loops, files and sockets too, while it is killed."""

import asyncio
import math
from pathlib import Path

import pytest
import uvloop

from raftwood.disk.real_environment import real_environment
from raftwood.testing import History, check_registers
from tests.kits.testing.toy.processes import RealReplicas
from tests.kits.testing.toy.workload import Load, audit, run_client

OPERATIONS = 60
"""Answered before each step."""
WAIT_S = 60.0


async def answered(history: History, count: int) -> None:
    """Wait for so many more operations to be answered."""
    wanted = sum(event.outcome == "ok" for event in history.events) + count
    async with asyncio.timeout(WAIT_S):
        while sum(event.outcome == "ok" for event in history.events) < wanted:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def under_kills(replicas: RealReplicas) -> History:
    loop = asyncio.get_running_loop()
    history = History(loop.time)
    addresses = replicas.addresses
    with real_environment() as environment:
        load = Load(until=math.inf, pause_s=0.02)
        clients = [
            loop.create_task(run_client(environment, name, addresses, history, load))
            for name in ("c1", "c2")
        ]
        await answered(history, OPERATIONS)
        for number in (1, 3):
            replicas.kill(number)
            await answered(history, OPERATIONS)
            replicas.start(number)
            # Only then both others answer: the next kill leaves a majority.
            await audit(environment, addresses, history, timeout_s=WAIT_S)
            await answered(history, OPERATIONS)
        for client in clients:
            client.cancel()
        await asyncio.wait(clients)
        await audit(environment, addresses, history, timeout_s=WAIT_S)
    return history


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_the_same_code_is_linearizable_on_a_real_loop_under_kills(
    tmp_path: Path, loop: str
) -> None:
    replicas = RealReplicas(tmp_path, loop)
    with replicas.running():
        run = uvloop.run if loop == "uvloop" else asyncio.run
        history = run(under_kills(replicas))
    assert check_registers(history.events, initial="") is None
