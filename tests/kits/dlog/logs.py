"""Logs on ledgers in memory and a metastore in a simulated folder."""

import asyncio
from collections.abc import Awaitable, Callable

from raftwood.base.environment import Environment
from raftwood.base.position import Position
from raftwood.dlog.log.dlogs import Dlogs
from raftwood.dlog.log.log_reader import LogReader, StoredMessage
from raftwood.dlog.settings import DlogSettings
from raftwood.metastore.file_store import FileMetaStore
from raftwood.metastore.rules import REMOVALS_KEPT
from raftwood.testing import Simulation, simulate
from tests.kits.dlog.memory_ledgers import MemoryLedgerStore

BEGIN = Position(0)


class Kit:
    def __init__(
        self, environment: Environment, metastore: FileMetaStore, ledgers: MemoryLedgerStore
    ) -> None:
        self.environment = environment
        self.metastore = metastore
        self.ledgers = ledgers

    def dlogs(self, settings: DlogSettings | None = None) -> Dlogs:
        """As another process has them."""
        return Dlogs(self.environment, self.metastore, self.ledgers, settings)


def run_logs(
    scenario: Callable[[Kit], Awaitable[None]],
    *,
    seed: int = 1,
    delay_ms: float = 1,
    removals_kept: int = REMOVALS_KEPT,
) -> None:
    async def main(simulation: Simulation) -> None:
        metastore = await FileMetaStore.open(
            simulation.environment, "meta", removals_kept=removals_kept
        )
        ledgers = MemoryLedgerStore(seed=seed, delay_ms=delay_ms)
        await scenario(Kit(simulation.environment, metastore, ledgers))
        await ledgers.close()
        await metastore.close()
        await asyncio.sleep(0)

    simulate(seed, main)


async def read_all(reader: LogReader, start: Position = BEGIN) -> list[StoredMessage]:
    found: list[StoredMessage] = []
    while True:
        messages, following = await reader.read(start, bytes_max=1 << 20)
        found += messages
        if following == start:
            return found
        start = following
