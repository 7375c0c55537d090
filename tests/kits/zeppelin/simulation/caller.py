"""A program that uses a simulated table by Raftwood's own client, which is never to give up."""

import asyncio
import random
from contextlib import suppress
from typing import TYPE_CHECKING

from raftwood.base.environment import Environment
from raftwood.base.errors import RaftwoodError
from raftwood.zeppelin.client import AnswerLost, AsyncKv
from raftwood.zeppelin.model import PartitionId
from raftwood.zeppelin.slots import slot_of
from tests.kits.models import Violation
from tests.kits.zeppelin.harms import Harm
from tests.kits.zeppelin.simulation.clients import PASSWORD
from tests.kits.zeppelin.simulation.node import DATA_PORT

if TYPE_CHECKING:
    from tests.kits.zeppelin.simulation.world import World

_COUNTERS = 4
_PAUSE_S = (0.005, 0.03)


class Caller:
    """Counts, and remembers how far it came."""

    def __init__(self, world: "World", number: int, table: str) -> None:
        self._world = world
        self._table = table
        self._random = random.Random(f"{world.simulation.seed}/caller {number}")
        self._machine = world.simulation.add_node(f"caller{number}")
        self.counts = {f"caller{number}/{each}": 0 for each in range(_COUNTERS)}
        self.slowest_s = 0.0
        self.refused: str | None = None

    def start(self) -> None:
        self._machine.start(self._program)

    @property
    def is_done(self) -> bool:
        return not self._machine.running

    async def _program(self, environment: Environment) -> None:
        try:
            async with await AsyncKv.connect(
                [f"{name}:{DATA_PORT}" for name in self._world.nodes],
                user=self._table,
                password=PASSWORD,
                environment=environment,
            ) as kv:
                while self._world.is_writing:
                    await self._call(kv)
                    await asyncio.sleep(self._random.uniform(*_PAUSE_S))
        except RaftwoodError as error:
            self.refused = repr(error)

    async def _call(self, kv: AsyncKv) -> None:
        key = self._random.choice([*self.counts])
        began = self._world.simulation.now
        with suppress(AnswerLost):  # it is done, and the count is not told
            await kv.incr(key)
        self.counts[key] += 1
        self.slowest_s = max(self.slowest_s, self._world.simulation.now - began)

    def check(self, *, may_lose: bool) -> None:
        """In the end; with one replica alone to ack, failures may have lost something."""
        if self.refused is not None:
            raise Violation(Harm.REFUSED, self.refused)
        for key, count in self.counts.items():
            found = self._found(key)
            if found > count:
                raise Violation(Harm.TWICE, f"{key} was counted up {count} times and is {found}")
            if found < count and not may_lose:
                raise Violation(Harm.LOST, f"{key} was counted up {count} times and is {found}")

    def check_speed(self, seconds_max: float) -> None:
        if self.slowest_s > seconds_max:
            raise Violation(Harm.FROZEN, f"a call took {self.slowest_s:.2f} s")

    def _found(self, key: str) -> int:
        world = self._world
        table = world.meta.topology.tables[self._table]
        number = table.partition_of_slot(slot_of(key.encode()))
        partition = PartitionId(table.incarnation, number)
        master = world.meta.machine_of(partition)
        replica = None if master is None else world.nodes[master].replica(partition)
        assert replica is not None
        for found, value in replica.store.scan(after=None, now_ms=0):
            if found == key.encode():
                return int(value.data)
        return 0
