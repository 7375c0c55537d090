"""What clients read while their master is cut off, and dies: nothing of it is ever undone.

The history of what masters answered is linearizable; what slaves tell may be old, and stays.
"""

import asyncio
import random
from typing import Any
from unittest.mock import patch

from raftwood.testing import Simulation, SimulationReport
from raftwood.testing.checkers import check_registers
from raftwood.testing.history import History, OperationOutcome
from raftwood.zeppelin.model import PartitionId, TableConfig
from raftwood.zeppelin.node import server
from raftwood.zeppelin.slots import slot_of
from tests.kits.models import Violation, run_scenario
from tests.kits.zeppelin.decoding import AnswerError
from tests.kits.zeppelin.harms import Harm
from tests.kits.zeppelin.simulation.clients import PASSWORD, Connection
from tests.kits.zeppelin.simulation.node import DATA_PORT
from tests.kits.zeppelin.simulation.world import SAFE, TABLE, World, watched

CLIENTS = 5
TROUBLES = 4
_KEYS = ("a", "b", "c")
_READS = (
    ("GET {key}",),
    ("MGET {key} {key}",),
    ("BULK GET {key}",),
    ("GETEX {key}",),
    ("MULTI", "GET {key}", "EXEC"),
)
"""Each answers the value that a key has, by itself or as each of several."""


class ReadingWorld(World):
    """Registers that are read and written, and troubles of their master alone."""

    def __init__(self, simulation: Simulation, config: TableConfig) -> None:
        super().__init__(simulation, config)
        self.history = History(lambda: simulation.now)
        self.counts = {"reads": 0, "reads of slaves": 0, "refused": 0}

    async def run_reading(self) -> dict[str, int]:
        async with self.running(has_noise=False):
            clients = [asyncio.create_task(self._use(number)) for number in range(CLIENTS)]
            for _ in range(TROUBLES):
                await self._lose_master()
            await asyncio.sleep(1)
            self.is_writing = False
            await asyncio.gather(*clients)
            await self.become_equal()
        violation = check_registers(self.history.events)
        if violation is not None:
            raise Violation(Harm.NOT_LINEARIZABLE, str(violation))
        return self.counts

    async def _lose_master(self) -> None:
        """It is cut off from its slaves while clients use it, and then gone for a while."""
        source, network = self.random, self.simulation.network
        await asyncio.sleep(source.uniform(0.2, 0.6))
        name = self.meta.machine_of(self._partition)
        if name is None:
            return
        network.partition([name], [each for each in self.nodes if each != name])
        await asyncio.sleep(source.uniform(0.1, 0.5))
        self.nodes[name].break_down(loses_power=source.random() < 0.5)
        network.heal()
        await asyncio.sleep(source.uniform(1.5, 2.5))
        self.nodes[name].start()
        await asyncio.sleep(1)

    @property
    def _partition(self) -> PartitionId:
        return PartitionId(self.meta.topology.tables[TABLE].incarnation, 0)

    async def _use(self, number: int) -> None:
        source = random.Random(f"{self.simulation.seed}/reader {number}")
        client = _Client(self, f"r{number}", source)
        while self.is_writing:
            await client.do_something()
            await asyncio.sleep(source.uniform(0.01, 0.05))
        client.close()


class _Client:
    def __init__(self, world: ReadingWorld, name: str, source: random.Random) -> None:
        self._world, self._name, self._random = world, name, source
        self._connections: dict[tuple[str, bool], Connection] = {}
        self._number = 0

    def close(self) -> None:
        for key in [*self._connections]:
            self._connections.pop(key).close()

    async def do_something(self) -> None:
        source, world = self._random, self._world
        key = source.choice(_KEYS)
        table = world.meta.topology.tables[TABLE]
        partition = PartitionId(table.incarnation, table.partition_of_slot(slot_of(key.encode())))
        master = world.meta.machine_of(partition)
        if source.random() < 0.3:
            await self._write(key, partition, master)
        elif source.random() < 0.6:
            await self._read(key, partition, master)
        else:
            await self._read_behind(key, partition, source.choice([*world.nodes]))

    async def _write(self, key: str, partition: PartitionId, master: str | None) -> None:
        self._number += 1
        origin = (self._name.encode(), self._number)
        value = f"{self._name}/{self._number}"
        event = self._world.history.call(self._name, "write", value, key=key)
        once = ("ONCE", self._name, str(self._number))
        answer = await self._asked(master, False, once, ("SET", key, value))
        is_done = answer == "OK"
        self._world.history.finish(event, "ok" if is_done else "unknown")
        if is_done and master is not None:
            self._world.called_done(master, TABLE, partition, origin, since=event.called)

    async def _read(self, key: str, partition: PartitionId, master: str | None) -> None:
        event = self._world.history.call(self._name, "read", key=key)
        words = self._random.choice(_READS)
        commands = [tuple(each.format(key=key).split()) for each in words]
        answer = await self._asked(master, False, *commands)
        is_ok = not isinstance(answer, AnswerError)
        value = _value_of(answer) if is_ok else None
        outcome: OperationOutcome = "ok" if is_ok else "failed"
        self._world.history.finish(event, outcome, value)
        self._world.counts["reads" if is_ok else "refused"] += 1
        self._told(partition, value)

    async def _read_behind(self, key: str, partition: PartitionId, name: str) -> None:
        answer = await self._asked(name, True, ("GET", key))
        is_ok = not isinstance(answer, AnswerError)
        self._world.counts["reads of slaves" if is_ok else "refused"] += 1
        self._told(partition, _value_of(answer) if is_ok else None)

    def _told(self, partition: PartitionId, value: str | None) -> None:
        if value is not None:
            name, _, number = value.partition("/")
            self._world.oracle.told(partition, (name.encode(), int(number)))

    async def _asked(self, name: str | None, is_behind: bool, *commands: tuple[str, ...]) -> Any:
        """The last answer; an error where there is none."""
        if name is None:
            return AnswerError("nobody is master")
        try:
            async with asyncio.timeout(self._random.uniform(0.5, 8)):
                connection = self._connections.get((name, is_behind))
                if connection is None:
                    streams = await asyncio.open_connection(name, DATA_PORT)
                    connection = self._connections[name, is_behind] = Connection(*streams)
                    await connection.ask(("AUTH", TABLE, PASSWORD))
                    if is_behind:
                        await connection.ask(("READONLY",))
                return (await connection.ask(*commands))[-1]
        except (OSError, TimeoutError) as error:
            if (name, is_behind) in self._connections:
                self._connections.pop((name, is_behind)).close()
            return AnswerError(str(error))


def _value_of(answer: Any) -> str | None:
    found = answer[-1] if isinstance(answer, list) else answer
    return None if found is None else found.decode()


def run_reading(
    seed: int, *, config: TableConfig = SAFE, twice: bool = False
) -> SimulationReport[dict[str, int]]:
    """One seed; raises `Violation` where a read was undone, or fits in no order."""

    async def scenario(simulation: Simulation) -> dict[str, int]:
        world = ReadingWorld(simulation, config)
        with patch.object(server, "NodeStore", watched(world.oracle)):
            return await world.run_reading()

    return run_scenario("reading", seed, scenario, twice=twice)
