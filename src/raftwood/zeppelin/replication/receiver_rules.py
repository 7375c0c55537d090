"""What a slave takes, and from whom. No I/O.

Only from its current master, within the session that they agreed on, in exact sequence, and never
an epoch below the last one. What it has already is known and passed over. A session that breaks any
of this is over: the slave offers its position anew.
"""

from enum import Enum

from msgspec.structs import replace

from raftwood.zeppelin.model import NodeId
from raftwood.zeppelin.node.seams import Record, Write


class Verdict(Enum):
    """What becomes of a record."""

    TAKE = 1
    KNOWN = 2
    RESYNC = 3
    """Something between was lost, or this is no continuation: begin anew."""


class ReceiverRules:
    """One partition of a slave."""

    def __init__(self, *, master: NodeId) -> None:
        self.master = master
        self.session = 0
        """Proposed or agreed on; 0: none. What it brings may overtake the master's answer."""
        self._epoch = 0
        self._last = 0

    def propose(self, session: int, *, epoch: int, last: int) -> None:
        """A new session, from what is stored now; no other has ever had its number."""
        self._epoch, self._last = epoch, last
        self.session = session

    def follow(self, master: NodeId) -> None:
        """Another master: sessions with the last one are over."""
        self.master = master
        self.session = 0

    def hears(self, *, source: NodeId, session: int) -> bool:
        return source == self.master and self.session != 0 and session == self.session

    def judge(self, record: Record) -> Verdict:
        """One record of a session that is heard."""
        if record.sequence <= self._last:
            return Verdict.KNOWN
        if record.sequence > self._last + 1 or record.epoch < self._epoch:
            self.session = 0
            return Verdict.RESYNC
        self._last, self._epoch = record.sequence, record.epoch
        return Verdict.TAKE


def as_arrived(record: Record, *, now_ms: int) -> Record:
    """What the keys get of a record: a write that has expired on the way deletes."""
    for write in record.writes:
        if write.expires_ms and write.expires_ms <= now_ms:
            break
    else:
        return record
    return replace(
        record,
        writes=tuple(
            Write(each.key, None) if each.expires_ms and each.expires_ms <= now_ms else each
            for each in record.writes
        ),
    )
