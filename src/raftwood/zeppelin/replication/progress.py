"""How far the replicas of a partition are, and what that lets a master say.

No I/O. A master says that a write is done once it and `min_replicas - 1` slaves have it as the
table asks (in memory, written or synced). A slave that repairs does not count: should it be needed
to take over, it could not. Nor does anything count before the first record of the master's own
epoch has got there: a record of an earlier one may still be cut by a later master that has not got
it (raft §5.4.2); so a master begins its epoch with an empty record.
"""

from collections.abc import Sequence

import msgspec

from raftwood.zeppelin.model import Ack, Gap, NodeId
from raftwood.zeppelin.records import BinlogPosition


class Reached(msgspec.Struct, frozen=True, array_like=True):
    """The last sequences that a replica has, by how well it has them."""

    memory: int = 0
    written: int = 0
    synced: int = 0

    def by(self, ack: Ack) -> int:
        return self.memory if ack == "memory" else self.written if ack == "written" else self.synced


class SlaveProgress:
    """What a master knows of its slaves, by what they acked in their present sessions."""

    def __init__(self, *, ack: Ack, min_replicas: int, begins: int) -> None:
        """`begins` is the sequence of the first record of the master's epoch."""
        self._ack = ack
        self._others = min_replicas - 1
        self._begins = begins
        self._slaves: dict[NodeId, int] = {}

    def take_over(self, earlier: "SlaveProgress", slaves: Sequence[NodeId]) -> None:
        """The same master begins another epoch: what these slaves have is still what they have."""
        self._slaves = {node: earlier._slaves[node] for node in slaves if node in earlier._slaves}

    def acked(self, slave: NodeId, reached: Reached, *, is_whole: bool) -> None:
        self._slaves[slave] = reached.by(self._ack) if is_whole else 0

    def lost(self, slave: NodeId) -> None:
        """It is no slave any more, or begins a new session and will say what it has."""
        self._slaves.pop(slave, None)

    def done(self, own: Reached) -> int:
        """Writes up to this sequence may be called done; 0: none yet."""
        sequence = own.by(self._ack)
        if self._others:
            slaves = sorted(self._slaves.values(), reverse=True)
            if len(slaves) < self._others:
                return 0
            sequence = min(sequence, slaves[self._others - 1])
        return sequence if sequence >= self._begins else 0

    def count(self, sequence: int) -> int:
        """How many slaves have a write, as WAIT asks."""
        return sum(reached >= sequence for reached in self._slaves.values())


class PartitionReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a replica says of itself; the meta server chooses masters by it."""

    position: BinlogPosition
    """Of a master its last record; of others the last one that they ack."""
    is_whole: bool = True
    """False while it repairs, or takes no records: it must not be master."""
    lag_bytes: int = 0
    """Of a slave: about how far its master was ahead when it was heard last."""
    contact_ms: int | None = None
    """Of a slave: so long ago its present master said how far it is; None: never yet."""
    is_streaming: bool = False
    """Of a slave: its master sends it records as they come."""
    copied_bytes: int = 0
    """Of a whole copy that is under way to it: so much has come."""
    copy_bytes: int = 0
    """Of so much; 0: none is under way."""
    gap: Gap | None = None
    """Of a slave: what was between it and its master when that was heard last."""
