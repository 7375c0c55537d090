"""What was written, what was called done, and whether the replicas agree with it in the end."""

from collections.abc import Iterable, Sequence

from raftwood.base.files import Buffer
from raftwood.zeppelin.model import NodeId, PartitionId
from raftwood.zeppelin.node.seams import (
    BinlogPosition,
    EpochStart,
    PartitionStore,
    Record,
    Value,
    Write,
)
from tests.simulation.zeppelin.meta import ScriptedMeta
from tests.zeppelin_kit.image_store import Content, Origin
from tests.zeppelin_kit.violations import Broken, Harm


class Oracle:
    """Sees everything, and is asked at the end."""

    def __init__(self, meta: ScriptedMeta) -> None:
        self._meta = meta
        self._records: dict[tuple[PartitionId, int, int], tuple[Record, int]] = {}
        """Each with the epoch of the record before it."""
        self._kept_from: dict[tuple[PartitionId, int, int], int] = {}
        """The first record that its writer had then: origins before that are forgotten."""
        self.done: dict[tuple[PartitionId, Origin], None] = {}
        self.rewinds = 0
        self.copies = 0

    def watch(self, partition: PartitionId, store: PartitionStore) -> None:
        """See what happens to a store."""
        commit, rewind, restore = store.commit, store.rewind, store.restore

        def watched_commit(record: Record, encoded: Buffer | None = None) -> None:
            before = store.epoch
            commit(record, encoded)
            if encoded is None:
                self._written(partition, record, before)
                self._kept_from[partition, record.epoch, record.sequence] = store.first_sequence

        async def watched_rewind(
            *, after: int, values: Sequence[Write], until: BinlogPosition
        ) -> None:
            self.rewinds += 1
            await rewind(after=after, values=values, until=until)

        async def watched_restore(
            folder: str, *, sequence: int, epochs: Sequence[EpochStart]
        ) -> None:
            self.copies += 1
            await restore(folder, sequence=sequence, epochs=epochs)

        store.commit = watched_commit  # type: ignore[method-assign]
        store.rewind = watched_rewind  # type: ignore[method-assign]
        store.restore = watched_restore  # type: ignore[method-assign]

    def _written(self, partition: PartitionId, record: Record, before: int) -> None:
        """A master wrote a record."""
        key = (partition, record.epoch, record.sequence)
        if key in self._records:
            raise Broken(Harm.DIFFERENT_RECORDS, f"{self._records[key]} and {record}")
        self._records[key] = record, before

    def called_done(self, node: NodeId, partition: PartitionId, origin: Origin) -> None:
        """A node told a client that a write is done."""
        master = self._meta.known(partition).master
        if master != node:
            raise Broken(Harm.TWO_MASTERS, f"{node} calls a write done, master is {master}")
        self.done[partition, origin] = None

    def check(
        self, partition: PartitionId, stores: Iterable[tuple[str, PartitionStore]], *, now_ms: int
    ) -> None:
        """All replicas have what the master's binlog leads to, and in that is all that was done."""
        named = [*stores]
        lineage = self._lineage(partition, named[0][1])
        expected = Content()
        seen: dict[Origin, int] = {}
        for record in lineage:
            expected.apply(record)
            if record.origin is not None:
                key = (partition, record.epoch, record.sequence)
                if seen.get(record.origin, 0) >= self._kept_from[key]:
                    raise Broken(Harm.TWICE, f"{record.origin} in {partition}")
                seen[record.origin] = record.sequence
        for done_partition, origin in self.done:
            if done_partition == partition and origin not in seen:
                raise Broken(Harm.LOST, f"{origin} in {partition}")
        visible = _visible(expected, now_ms)
        for name, store in named:
            found = dict(store.scan(after=None, now_ms=now_ms))
            if found != visible:
                keys = sorted(
                    key for key in {**found, **visible} if found.get(key) != visible.get(key)
                )
                raise Broken(
                    Harm.GHOST,
                    f"{name} of {partition}: "
                    + "; ".join(f"{k!r} {found.get(k)} not {visible.get(k)}" for k in keys[:3]),
                )

    def _lineage(self, partition: PartitionId, store: PartitionStore) -> list[Record]:
        """The records that a binlog is made of, those that it has purged too."""
        lineage: list[Record] = []
        epoch = store.epoch
        for sequence in range(store.last_sequence, 0, -1):
            record, epoch = self._records[partition, epoch, sequence]
            lineage.append(record)
        return lineage[::-1]


def _visible(content: Content, now_ms: int) -> dict[bytes, Value]:
    return {key: value for key, value in content.keys.items() if not 0 < value.expires_ms <= now_ms}
