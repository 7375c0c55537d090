"""The engine of a partition that is split off another one, made of what this node has of that.

It is a copy that shares its files. A replica that is behind, or that has other records at its end,
gives one that is so, too: both partitions are then as far as the one was on this node, and their
masters know what they lack. Only where some slots are not here as records left them, the new one
begins without anything, and takes a whole copy before it counts.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from raftwood.zeppelin.node.engine_home import Engines
from raftwood.zeppelin.node.partition_engine import PartitionEngine
from raftwood.zeppelin.node.seams import BinlogPosition
from raftwood.zeppelin.node.stored_partition import StoredPartition
from raftwood.zeppelin.replication.epochs import contains


async def split_off(
    parent: StoredPartition, engines: Engines, name: str, *, at: BinlogPosition, slots: range
) -> PartitionEngine:
    """Make an engine, durably; it is open. `at` is the last record that both have."""
    folder = engines.folder(name)
    if parent.engine.state.has_all_of(slots):
        await parent.checkpoint(folder)
        async with _opened(engines, folder) as engine:
            if await _is_half(engine, at, slots):
                return engine
            await engine.close()
        await engines.remove(name)
    async with _opened(engines, folder) as engine:
        await engine.begin_lacking(at)
        return engine


async def _is_half(engine: PartitionEngine, at: BinlogPosition, slots: range) -> bool:
    """Make a copy the half that has some slots; False where it does not have all of that."""
    state = engine.state
    has_passed = contains(state.epochs, state.sequence, at)
    # A flush behind it took keys along that were not the parent's any more.
    if not state.has_all_of(slots) or (has_passed and state.flushed > at.sequence):
        return False
    await engine.split_off(at.sequence if has_passed else state.sequence, slots)
    return True


@asynccontextmanager
async def _opened(engines: Engines, folder: str) -> AsyncIterator[PartitionEngine]:
    """Closed where something fails."""
    engine = PartitionEngine(await engines.open(folder))
    try:
        yield engine
    except BaseException:
        await engine.close()
        raise
