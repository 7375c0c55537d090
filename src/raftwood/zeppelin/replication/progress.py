"""How far the replicas of a partition are, and which writes of a master are done by that.

No I/O. A master says that a write is done once it and `min_replicas - 1` slaves have it as the
table asks (in memory, written or synced). A slave that repairs does not count: it cannot take over,
so that its copy protects nothing (`test_a_slave_that_repairs_does_not_count`). Nor does anything
count before the first record of the master's own epoch has got there: a later master that lacks a
record of an earlier epoch may still cut it (raft §5.4.2); so a master begins its epoch with an
empty record (`test_nothing_is_done_before_the_first_record_of_the_epoch_is`).
"""

from collections.abc import Sequence

import msgspec

from raftwood.zeppelin.model import Ack, Gap, NodeId
from raftwood.zeppelin.records import BinlogPosition


class Reached(msgspec.Struct, frozen=True, array_like=True):
    """The last sequences that a replica has: in memory, written and synced."""

    memory: int = 0
    written: int = 0
    synced: int = 0

    def by(self, ack: Ack) -> int:
        return self.memory if ack == "memory" else self.written if ack == "written" else self.synced


class SlaveProgress:
    """The positions of a master's slaves, from the acks of their present sessions.

    By session: what a slave acked before a rewind may have been cut since.
    """

    def __init__(self, *, ack: Ack, min_replicas: int, begins: int) -> None:
        """`begins` is the sequence of the first record of the master's epoch."""
        self._ack = ack
        self._others = min_replicas - 1
        self._begins = begins
        self._slaves: dict[NodeId, int] = {}

    def take_over(self, earlier: "SlaveProgress", slaves: Sequence[NodeId]) -> None:
        """Takes over the same master's former epoch: what these slaves have acked stays acked."""
        self._slaves = {node: earlier._slaves[node] for node in slaves if node in earlier._slaves}

    def acked(self, slave: NodeId, reached: Reached, *, is_whole: bool) -> None:
        self._slaves[slave] = reached.by(self._ack) if is_whole else 0

    def lost(self, slave: NodeId) -> None:
        """Forgets a slave that has left, or that begins a new session and will ack anew."""
        self._slaves.pop(slave, None)

    def done(self, own: Reached) -> int:
        """Returns the sequence up to which writes are done; 0: none yet."""
        sequence = own.by(self._ack)
        if self._others:
            slaves = sorted(self._slaves.values(), reverse=True)
            if len(slaves) < self._others:
                return 0
            sequence = min(sequence, slaves[self._others - 1])
        return sequence if sequence >= self._begins else 0

    def count(self, sequence: int) -> int:
        """Returns how many slaves have a write, for WAIT."""
        return sum(reached >= sequence for reached in self._slaves.values())


class PartitionReport(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a replica, as its node reports it; the meta server chooses masters by it."""

    position: BinlogPosition
    """The last record of a master; the last one that a slave acks."""
    is_whole: bool = True
    """False while the replica repairs, or takes no records: it must not be master."""
    lag_bytes: int = 0
    """On a slave: about how far the master was ahead in its last message."""
    contact_ms: int | None = None
    """On a slave: time since the present master's last answer; None: none yet."""
    is_streaming: bool = False
    """On a slave: the master sends it records as they come."""
    copied_bytes: int = 0
    """Bytes received of a running whole copy."""
    copy_bytes: int = 0
    """Size of that copy; 0: none is running."""
    gap: Gap | None = None
    """On a slave: the gap in the master's last message."""
