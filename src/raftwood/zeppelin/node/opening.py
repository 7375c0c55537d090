"""Opening a partition: its engine is rolled forward from the binlog."""

from raftwood.base.environment import Clock
from raftwood.base.errors import StoreDamaged
from raftwood.zeppelin.node.binlog import Binlog
from raftwood.zeppelin.node.binlog_format import decode_records, decode_run
from raftwood.zeppelin.node.engine_home import EngineHome
from raftwood.zeppelin.node.partition_engine import PartitionEngine
from raftwood.zeppelin.node.store_settings import StoreSettings
from raftwood.zeppelin.node.stored_partition import StoredPartition

_READ_BYTES = 1 << 20


async def open_partition(
    *,
    name: str,
    group: int,
    binlog: Binlog,
    home: EngineHome,
    clock: Clock,
    settings: StoreSettings,
    engine: PartitionEngine | None = None,
) -> StoredPartition:
    """`StoreDamaged` where engine and binlog do not fit together; `engine` may be open already."""
    if engine is None:
        engine = PartitionEngine(await home.open(home.folder))
    try:
        await _roll_forward(engine, binlog, name=name, group=group, clock=clock)
    except BaseException:
        await engine.close()
        raise
    return StoredPartition(
        name=name,
        group=group,
        binlog=binlog,
        engine=engine,
        home=home,
        clock=clock,
        settings=settings,
    )


async def _roll_forward(
    engine: PartitionEngine, binlog: Binlog, *, name: str, group: int, clock: Clock
) -> None:
    """Opening the log has made durable what was found of it, so the engine stays behind it."""
    log = binlog.log
    bounds = log.bounds(group)
    if not bounds.head - 1 <= engine.state.sequence < bounds.next_index:
        raise StoreDamaged(
            f"{name}: the engine ends at record {engine.state.sequence}, and the binlog has "
            f"{bounds.head} to {bounds.next_index - 1}; it is taken anew from its master once "
            "another node is that; where none can be, restore the table with 'raftwood kv restore'"
        )
    while (sequence := engine.state.sequence + 1) < bounds.next_index:
        for stored in await log.read(group, sequence, bytes_max=_READ_BYTES):
            run = decode_run(stored.payload)
            records = decode_records(run)[max(0, sequence - run.first_sequence) :]
            keys = [write.key for record in records for write in record.writes]
            await engine.fetch(engine.look_up(keys))
            engine.apply(records, now_ms=clock.wall_ns() // 1_000_000)
            sequence = engine.state.sequence + 1
