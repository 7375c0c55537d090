"""What a ledger holds whose writer is gone: fence, then decide entry by entry where it ends.

`Fencing` ends once no ack quorum can be formed without a bookie that was fenced. `Finding` then
asks for the entries behind the last confirmed one, several at once. Each of these reads fences as
well: a bookie that the first round did not reach could otherwise say that it lacks an entry, and
take it from the old writer afterwards.

An entry is there if anybody has it, and absent only if so many say that they lack it that it cannot
have been acked. Silence and damaged copies say nothing. The first absent entry ends the ledger:
acks are in order.
"""

from raftwood.dlog.ledgers.digests import Unpacked
from raftwood.dlog.ledgers.model import LedgerConfig
from raftwood.dlog.ledgers.rules.quorums import is_covered, misses_needed, write_sets


class Fencing:
    """The first round, over the ensemble of the last segment."""

    def __init__(self, config: LedgerConfig, *, first: int) -> None:
        self._config = config
        # A segment begins behind what was confirmed when it was made.
        self.last_confirmed = first - 1
        self._fenced = 0
        self._failed = 0

    def fenced(self, place: int, last_confirmed: int) -> None:
        """A bookie refuses the writer from now on; what the head of its last entry says."""
        self._fenced |= 1 << place
        self.last_confirmed = max(self.last_confirmed, last_confirmed)

    def failed(self, place: int) -> None:
        """It may not be fenced."""
        self._failed |= 1 << place

    @property
    def is_done(self) -> bool:
        return is_covered(self._config, self._fenced)

    @property
    def is_lost(self) -> bool:
        """Whether the answers that are still awaited cannot be enough."""
        everybody = (1 << self._config.ensemble) - 1
        return not is_covered(self._config, everybody & ~self._failed)


class Found:
    """An entry that somebody has, as it was packed."""

    __slots__ = ("entry", "packed", "unpacked")

    def __init__(self, entry: int, packed: bytes, unpacked: Unpacked) -> None:
        self.entry = entry
        self.packed = packed
        self.unpacked = unpacked


class _Question:
    """What the bookies have said of one entry."""

    __slots__ = ("found", "missing", "unknown")

    def __init__(self) -> None:
        self.found: Found | None = None
        self.missing = 0
        self.unknown = 0


class Finding:
    """The second round: entries in order, read ahead by a window."""

    def __init__(self, config: LedgerConfig, *, first: int, window: int) -> None:
        self._ensemble = config.ensemble
        self._write_sets = write_sets(config)
        self._misses_needed = misses_needed(config)
        self._window = window
        self._questions: dict[int, _Question] = {}
        self._next_read = first
        self._next_found = first
        self.is_ended = False
        """The entry that would come next is absent."""
        self.undecidable: int | None = None
        """An entry that all were asked for, and nobody could tell."""

    def next_read(self) -> int | None:
        """An entry to ask all of its bookies for, unless enough is under way."""
        entry = self._next_read
        if self._is_settled or entry - self._next_found >= self._window:
            return None
        self._next_read += 1
        self._questions[entry] = _Question()
        return entry

    @property
    def _is_settled(self) -> bool:
        return self.is_ended or self.undecidable is not None

    def found(self, place: int, found: Found) -> None:  # noqa: ARG002
        question = self._questions.get(found.entry)
        if question is not None and question.found is None:
            question.found = found

    def missing(self, place: int, entry: int) -> None:
        """The bookie itself says that it lacks the entry, and is fenced."""
        if entry in self._questions:
            self._questions[entry].missing |= 1 << place

    def unknown(self, place: int, entry: int) -> None:
        """No answer, or a damaged copy: which is not a missing one."""
        if entry in self._questions:
            self._questions[entry].unknown |= 1 << place

    def next_found(self) -> Found | None:
        """The next entry in order, if it is decided that it is there."""
        question = self._questions.get(self._next_found)
        if question is None or self._is_settled:
            return None
        if question.found is not None:
            del self._questions[self._next_found]
            self._next_found += 1
            return question.found
        if question.missing.bit_count() >= self._misses_needed:
            self.is_ended = True
        else:
            asked = self._write_sets[self._next_found % self._ensemble]
            if asked & ~(question.missing | question.unknown) == 0:
                self.undecidable = self._next_found
        return None

    def is_decided(self, entry: int) -> bool:
        """Whether further answers for an entry make no difference."""
        question = self._questions.get(entry)
        return (
            self._is_settled
            or question is None
            or question.found is not None
            or question.missing.bit_count() >= self._misses_needed
        )
