"""What was appended, acked, read and recovered; and whether all of it agrees in the end."""

from msgspec.structs import replace

from raftwood.dlog.ledgers.metadata import LedgerMetadata
from raftwood.dlog.ledgers.seams import LedgerEntry
from tests.kits.dlog.harms import Harm
from tests.kits.dlog.memory_bookies import MemoryCluster
from tests.kits.models import Violation


class Oracle:
    """Knows everything, and changes nothing."""

    def __init__(self) -> None:
        self.appended: list[bytes] = []
        self.acked = -1
        self.seen = -1
        """The highest entry that a reader has read."""
        self.closed: LedgerMetadata | None = None
        self.recoveries = 0
        self.is_repaired = False
        """Others may hold the entries than when the ledger was closed."""

    def entry_acked(self, entry: int, data: bytes) -> None:
        if entry != self.acked + 1 or self.appended[entry] != data:
            raise Violation(Harm.ACKS_OUT_OF_ORDER, f"entry {entry} after {self.acked}")
        if self.closed is not None and entry > self.closed.last_entry:
            raise Violation(Harm.ACKED_BEHIND_THE_END, f"entry {entry}")
        self.acked = entry

    def entries_read(self, entries: list[LedgerEntry]) -> None:
        for entry in entries:
            if entry.id >= len(self.appended) or self.appended[entry.id] != entry.data:
                raise Violation(Harm.READ_UNWRITTEN, f"entry {entry.id}")
            self.seen = max(self.seen, entry.id)

    def end_seen(self, last: int, *, acked: int) -> None:
        """A reader asked where the ledger ends after an entry was acked."""
        if last < acked:
            raise Violation(Harm.ACKED_AND_UNSEEN, f"{acked} was acked, {last} is the end")
        self.seen = max(self.seen, last)

    def ledger_closed(self, metadata: LedgerMetadata) -> None:
        self.recoveries += 1
        before = self.closed
        if before is not None and self.is_repaired:
            before = replace(before, segments=metadata.segments)
        if before is not None and before != metadata:
            raise Violation(Harm.CLOSED_OTHERWISE, f"{metadata}, before {self.closed}")
        self.closed = metadata
        last = metadata.last_entry
        if last < self.acked:
            raise Violation(Harm.CLOSED_BEFORE_ACKED, f"behind {last}, {self.acked} was acked")
        if last < self.seen:
            raise Violation(Harm.CLOSED_BEFORE_SEEN, f"behind {last}, {self.seen} was read")
        length_bytes = sum(len(data) for data in self.appended[: last + 1])
        if last >= len(self.appended) or metadata.length_bytes != length_bytes:
            raise Violation(
                Harm.WRONG_LENGTH, f"{metadata.length_bytes} bytes up to {last}, not {length_bytes}"
            )

    def check_copies(self, cluster: MemoryCluster, ledger: int) -> None:
        """Every entry is where its segment says, as often as its ack promised."""
        assert self.closed is not None
        config = self.closed.config
        for entry in range(self.closed.last_entry + 1):
            bookies = self.closed.segment_of(entry).bookies
            copies = sum(
                entry in cluster.bookies_by_id[bookies[place]].entries_of(ledger)
                for place in config.places(entry)
            )
            if copies < config.ack_quorum:
                raise Violation(Harm.TOO_FEW_COPIES, f"entry {entry}: {copies}")
