"""Acks of a master that a test plays the slaves of."""

from raftwood.zeppelin.model import NodeId, TableConfig
from raftwood.zeppelin.records import Acks, PartitionStore
from raftwood.zeppelin.replication.master import reached_of
from raftwood.zeppelin.replication.progress import Reached, SlaveProgress


class StaticAcks(Acks):
    """Of a tenure that began before the first record."""

    def __init__(self, store: PartitionStore, config: TableConfig) -> None:
        self._progress = SlaveProgress(ack=config.ack, min_replicas=config.min_replicas, begins=1)
        self._store = store
        super().__init__(
            is_immediate=config.ack == "memory" and config.min_replicas == 1,
            count=self._progress.count,
        )
        store.listen(self._heard)
        self._heard()

    def replica_has(self, slave: NodeId, sequence: int) -> None:
        reached = Reached(sequence, sequence, sequence)
        self._progress.acked(slave, reached, is_whole=True)
        self._heard()

    def replica_left(self, slave: NodeId) -> None:
        self._progress.lost(slave)

    def _heard(self) -> None:
        done = self._progress.done(reached_of(self._store))
        if done > self.reached:
            self.reach(done)
