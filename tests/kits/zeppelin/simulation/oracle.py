"""What was written, what was called done, and whether the replicas agree with it in the end."""

from collections.abc import Iterable, Sequence

import msgspec

from raftwood.base.files import Buffer
from raftwood.testing import Simulation
from raftwood.zeppelin.model import Parent, PartitionId, TableConfig
from raftwood.zeppelin.node.stored_partition import StoredPartition
from raftwood.zeppelin.records import (
    BinlogPosition,
    BinlogRecord,
    EpochStart,
    KeyWrite,
    PartitionStore,
    Value,
)
from raftwood.zeppelin.replication.epochs import epoch_at
from raftwood.zeppelin.slots import slot_of
from tests.kits.models import Violation
from tests.kits.zeppelin.harms import Harm
from tests.kits.zeppelin.simulation.meta import SETTINGS, MetaGroup

Origin = tuple[bytes, int]
Mark = Origin | bytes
"""What a write is known by: the name of its request, or the key that nobody else writes."""
LATE_S = 3 * SETTINGS.down_ms / 1000
"""With one replica alone to ack, a write may be lost if the master is so soon after it."""


class Done(msgspec.Struct, frozen=True):
    """A write that a client was told is done."""

    partition: PartitionId
    mark: Mark
    at: float
    harm: Harm = Harm.LOST
    """What it is where the write is gone."""


class Oracle:
    """Sees everything, and is asked at the end."""

    def __init__(self, simulation: Simulation, meta: MetaGroup) -> None:
        self._simulation = simulation
        self._meta = meta
        self._records: dict[tuple[PartitionId, int, int], tuple[BinlogRecord, int]] = {}
        """Each with the epoch of the record before it."""
        self._kept_from: dict[tuple[PartitionId, int, int], int] = {}
        """The first record that its writer had then: origins before that are forgotten."""
        self.done: list[Done] = []
        self.is_calm = False
        """Nobody fails: then nothing that was done is lost, however few replicas had it."""
        self.rewinds = 0
        self.copies = 0

    def watch(self, partition: PartitionId, store: StoredPartition) -> None:
        """See what happens to a store."""
        commit, take, rewind, restore = store.commit, store._take, store.rewind, store.restore
        is_copied = False

        def watched_commit(record: BinlogRecord, encoded: Buffer | None = None) -> None:
            nonlocal is_copied
            store._seal_record()
            is_copied = encoded is not None
            try:
                commit(record, encoded)
            finally:
                is_copied = False

        def watched_take(record: BinlogRecord, encoded: Buffer) -> None:
            take(record, encoded)
            if not is_copied:
                self._written(partition, record, epoch_at(store.epochs, record.sequence - 1))
                if self._parent(partition) is None:
                    kept_from = self._kept_from
                    kept_from[partition, record.epoch, record.sequence] = store.first_sequence

        async def watched_rewind(
            *, after: int, values: Sequence[KeyWrite], until: BinlogPosition
        ) -> None:
            self.rewinds += 1
            await rewind(after=after, values=values, until=until)

        async def watched_restore(
            folder: str, *, sequence: int, epochs: Sequence[EpochStart]
        ) -> None:
            self.copies += 1
            await restore(folder, sequence=sequence, epochs=epochs)

        store.commit = watched_commit  # type: ignore[method-assign]
        store._take = watched_take  # type: ignore[method-assign]
        store.rewind = watched_rewind  # type: ignore[method-assign]
        store.restore = watched_restore  # type: ignore[method-assign]

    def _written(self, partition: PartitionId, record: BinlogRecord, before: int) -> None:
        """A master wrote a record."""
        key = (partition, record.epoch, record.sequence)
        if key in self._records:
            raise Violation(Harm.DIFFERENT_RECORDS, f"{self._records[key]} and {record}")
        self._records[key] = record, before

    def called_done(
        self, machine: str, partition: PartitionId, mark: Mark, *, since: float
    ) -> None:
        """A client heard from a machine that a write is done, which it asked for at `since`."""
        now = self._simulation.now
        if not self._meta.was_master(partition, machine, since, now):
            raise Violation(
                Harm.TWO_MASTERS, f"{machine} calls a write done: {self._meta.masters[partition]}"
            )
        self.done.append(Done(partition, mark, now))

    def told(self, partition: PartitionId, mark: Mark) -> None:
        """A client has read what a write wrote, from the master or a slave."""
        self.done.append(Done(partition, mark, self._simulation.now, Harm.UNDONE))

    def check(
        self,
        partition: PartitionId,
        config: TableConfig,
        stores: Iterable[tuple[str, PartitionStore]],
        *,
        now_ms: int,
    ) -> None:
        """All replicas have what the master's binlog leads to, and in that is all that was done."""
        named = [*stores]
        expected: dict[bytes, Value] = {}
        seen: dict[Origin, int] = {}
        keys: dict[bytes, None] = {}
        for record in self._lineage(partition, named[0][1]):
            _apply(expected, record)
            keys.update(dict.fromkeys(write.key for write in record.writes))
            if record.origin is not None:
                key = (partition, record.epoch, record.sequence)
                # What is split off knows all that was known before, and clients come again soon.
                if record.origin in seen and seen[record.origin] >= self._kept_from.get(key, 0):
                    raise Violation(Harm.TWICE, f"{record.origin} in {partition}")
                seen[record.origin] = record.sequence
        for done in self.done:
            if done.partition != partition or done.mark in seen or done.mark in keys:
                continue
            is_sure = self.is_calm or config.min_replicas > 1
            if is_sure or not self._was_replaced(partition, done.at):
                raise Violation(done.harm, f"{done} of {self._meta.masters[partition]}")
        table = self._meta.table(partition.incarnation)
        assert table is not None
        slots = table.slots_of(partition.number)
        visible = {
            key: value for key, value in _visible(expected, now_ms).items() if slot_of(key) in slots
        }
        for name, store in named:
            found = dict(store.scan(after=None, now_ms=now_ms))
            if found != visible:
                wrong = sorted(
                    key for key in {**found, **visible} if found.get(key) != visible.get(key)
                )
                raise Violation(
                    Harm.GHOST,
                    f"{name} of {partition}: "
                    + "; ".join(f"{k!r} {found.get(k)} not {visible.get(k)}" for k in wrong[:3]),
                )

    def _was_replaced(self, partition: PartitionId, at: float) -> bool:
        """Whether the master that called a write done was replaced soon after."""
        return any(at <= began <= at + LATE_S for began, _ in self._meta.masters[partition])

    def _lineage(self, partition: PartitionId, store: PartitionStore) -> list[BinlogRecord]:
        """The records that a binlog is made of, those that it has purged too."""
        lineage: list[BinlogRecord] = []
        epoch = store.epoch
        for sequence in range(store.last_sequence, 0, -1):
            # Where nobody who may lead had all, what is split off went on from before the split.
            while (
                (partition, epoch, sequence) not in self._records
                and (parent := self._parent(partition)) is not None
                and sequence <= parent.sequence
            ):
                partition = PartitionId(partition.incarnation, parent.number)
            record, epoch = self._records[partition, epoch, sequence]
            lineage.append(record)
        return lineage[::-1]

    def _parent(self, partition: PartitionId) -> Parent | None:
        table = self._meta.table(partition.incarnation)
        return None if table is None else table.partitions[partition.number].parent


def _apply(keys: dict[bytes, Value], record: BinlogRecord) -> None:
    if record.flushes:
        keys.clear()
    for write in record.writes:
        if write.data is None:
            keys.pop(write.key, None)
        else:
            keys[write.key] = Value(write.data, write.expires_ms)


def _visible(keys: dict[bytes, Value], now_ms: int) -> dict[bytes, Value]:
    return {key: value for key, value in keys.items() if not 0 < value.expires_ms <= now_ms}
