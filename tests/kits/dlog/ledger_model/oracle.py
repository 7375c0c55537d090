"""What must hold at every moment of a ledger's life, and at its end."""

from raftwood.dlog.ledgers.metadata import BookieId, LedgerConfig, LedgerMetadata, Segment
from raftwood.dlog.ledgers.rules import is_covered
from tests.kits.dlog.harms import Harm
from tests.kits.dlog.ledger_model.bookies import LEDGER, ModelBookie
from tests.kits.models import Violation


def data_of(entry: int) -> bytes:
    return b"%d" % entry


class Oracle:
    """Sees all bookies, and all that was acked, read and closed."""

    def __init__(self, bookies: dict[BookieId, ModelBookie]) -> None:
        self._bookies = bookies
        self.acked = -1
        self.seen = -1
        """How far readers were told that they may read."""
        self.closed: LedgerMetadata | None = None
        self.fenced: Segment | None = None
        """The last one of the writer, once some recovery has ended its first round."""

    def entry_acked(self, entry: int) -> None:
        if entry != self.acked + 1:
            raise Violation(Harm.ACKS_OUT_OF_ORDER, f"entry {entry} after {self.acked}")
        if self.closed is not None and entry > self.closed.last_entry:
            raise Violation(Harm.ACKED_BEHIND_THE_END, f"entry {entry}")
        self.acked = entry

    def check_seen(self, metadata: LedgerMetadata) -> None:
        """Whichever bookies of the last segment a reader asks: all that was acked is among what it
        sees, and it sees nothing that is taken back, as `ledger_closed` checks.

        A bookie whose last entry is damaged, or that began anew, does not count as an answer.
        """
        segment = metadata.segments[-1]
        ignorant = 0
        for place, bookie in enumerate(segment.bookies):
            found = self._bookies[bookie]
            self.seen = max(self.seen, found.last_confirmed)
            answers = (
                max(found.entries, default=-1) not in found.damaged
                and found.limbo.doubt(LEDGER, -1) is None
            )
            if answers and max(segment.first - 1, found.last_confirmed) < self.acked:
                ignorant |= 1 << place
        if not metadata.is_closed and is_covered(metadata.config, ignorant):
            raise Violation(Harm.ACKED_AND_UNSEEN, f"entry {self.acked}")

    def stored_by_writer(self, entry: int, config: LedgerConfig, bookie: BookieId) -> None:
        """Once recoveries decide, no entry can be acked that no fenced bookie has."""
        if self.fenced is None or entry < self.fenced.first:
            return
        holders = [self.fenced.bookies[place] for place in config.places(entry)]
        copies = [each for each in holders if entry in self._bookies[each].from_writer]
        if (
            bookie in holders
            and len(copies) >= config.ack_quorum
            and not any(self._bookies[each].is_fenced for each in copies)
        ):
            raise Violation(Harm.UNFENCED_ACK, f"entry {entry}")

    def ledger_closed(self, metadata: LedgerMetadata) -> None:
        if self.closed is not None and self.closed != metadata:
            raise Violation(Harm.CLOSED_OTHERWISE, f"{metadata}, before {self.closed}")
        self.closed = metadata
        last = metadata.last_entry
        if last < self.acked:
            raise Violation(Harm.CLOSED_BEFORE_ACKED, f"behind {last}, {self.acked} was acked")
        if last < self.seen:
            raise Violation(Harm.CLOSED_BEFORE_SEEN, f"behind {last}, {self.seen} was read")
        length_bytes = sum(len(data_of(each)) for each in range(last + 1))
        if metadata.length_bytes != length_bytes:
            raise Violation(
                Harm.WRONG_LENGTH, f"{metadata.length_bytes} bytes instead of {length_bytes}"
            )

    def check_copies(self) -> None:
        """Every entry is where its segment says, as often as its ack promised."""
        assert self.closed is not None
        config = self.closed.config
        for entry in range(self.closed.last_entry + 1):
            bookies = self.closed.segment_of(entry).bookies
            holders = [self._bookies[bookies[place]] for place in config.places(entry)]
            copies = [each.entries[entry][0] for each in holders if entry in each.entries]
            needed = config.ack_quorum - any(each.is_wiped for each in holders)
            if len(copies) < needed or set(copies) != {data_of(entry)}:
                raise Violation(Harm.TOO_FEW_COPIES, f"entry {entry}: {copies}")
