"""What was written, what was called done, and whether the replicas agree with it in the end."""

from collections.abc import Iterable

from raftwood.zeppelin.model import NodeId, PartitionId
from raftwood.zeppelin.node.seams import Record, Value
from raftwood.zeppelin.replication.epochs import epoch_at
from tests.simulation.zeppelin.meta import ScriptedMeta
from tests.zeppelin_kit.image_store import Content, ImageStore, Origin
from tests.zeppelin_kit.violations import Broken, Harm


class Oracle:
    """Sees everything, and is asked at the end."""

    def __init__(self, meta: ScriptedMeta) -> None:
        self._meta = meta
        self._records: dict[tuple[PartitionId, int, int], Record] = {}
        self.done: dict[tuple[PartitionId, Origin], None] = {}

    def written(self, partition: PartitionId, record: Record) -> None:
        """A master wrote a record."""
        key = (partition, record.epoch, record.sequence)
        if key in self._records:
            raise Broken(Harm.DIFFERENT_RECORDS, f"{self._records[key]} and {record}")
        self._records[key] = record

    def called_done(self, node: NodeId, partition: PartitionId, origin: Origin) -> None:
        """A node told a client that a write is done."""
        master = self._meta.known(partition).master
        if master != node:
            raise Broken(Harm.TWO_MASTERS, f"{node} calls a write done, master is {master}")
        self.done[partition, origin] = None

    def check(
        self, partition: PartitionId, stores: Iterable[tuple[str, ImageStore]], *, now_ms: int
    ) -> None:
        """All replicas have what the master's binlog leads to, and in that is all that was done."""
        named = [*stores]
        lineage = self._lineage(partition, named[0][1])
        expected = Content()
        seen: dict[Origin, int] = {}
        for record in lineage:
            expected.apply(record)
            if record.origin is not None:
                if record.origin in seen:
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

    def _lineage(self, partition: PartitionId, store: ImageStore) -> list[Record]:
        """The records that a binlog is made of, those that it has purged too."""
        return [
            self._records[partition, epoch_at(store.epochs, sequence), sequence]
            for sequence in range(1, store.last_sequence + 1)
        ]


def _visible(content: Content, now_ms: int) -> dict[bytes, Value]:
    return {key: value for key, value in content.keys.items() if not 0 < value.expires_ms <= now_ms}
