"""What the clients of a log were told, and the promises that it has to keep.

`check_log` judges appends and reads. What it does not know of is judged here: where reads end, the
order of one client's calls, truncation, required LSNs and timestamps.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import pairwise

import msgspec

from raftwood.logservice.log_rules import LeaseChange
from raftwood.logservice.records import Record, RecordKind
from raftwood.testing import Event, History, check_log
from raftwood.testing import Violation as Found
from tests.kits.models import Violation

LOG = "log"


class Cut(msgspec.Struct):
    """A truncation, as its caller saw it."""

    lsn: int
    called: float
    acked: float | None = None


class Stamps(msgspec.Struct):
    """Timestamps that somebody got: `first` up to, and not with, `end`."""

    first: int
    end: int
    called: float
    returned: float


class Notebook:
    """Written by all clients of a run."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.history = History(clock)
        self._clock = clock
        self.cuts: list[Cut] = []
        self.stamps: list[Stamps] = []
        self.refused = 0
        """Appends refused for the lease."""
        self.acked_lsns: list[int] = []
        self.broken: Violation | None = None

    def breaks(self, text: str) -> None:
        """A promise that a client saw broken at once; the first one is kept."""
        self.broken = self.broken or Violation(text)

    # Cuts

    def cut_begins(self, lsn: int) -> Cut:
        cut = Cut(lsn, self._clock())
        self.cuts.append(cut)
        return cut

    def cut_acked(self, cut: Cut) -> None:
        cut.acked = self._clock()

    @property
    def cut_max(self) -> int:
        """Up to here somebody asked to truncate."""
        return max((cut.lsn for cut in self.cuts), default=0)

    @property
    def cut_acked_max(self) -> int:
        return max((cut.lsn for cut in self.cuts if cut.acked is not None), default=0)

    def told_truncated(self, asked: int, first: int) -> None:
        """A reader was told that an LSN is truncated, and what can be read first."""
        if asked >= first:
            self.breaks(f"LSN {asked} is said to be truncated, and {first} to be readable")
        if first > self.cut_max + 1:
            self.breaks(f"all below {first} is said to be truncated: only {self.cut_max} was asked")

    # The verdict

    def check(self, final: Sequence[tuple[int, str]], *, first_lsn: int) -> None:
        """`final` is all that can be read at the end, from `first_lsn` on."""
        if self.broken is not None:
            raise self.broken
        events = self.history.events
        violation = check_log(events, final={LOG: final}, truncated_before=first_lsn)
        if violation is not None:
            raise Violation(f"{violation.rule}: {_described(violation)}")
        if first_lsn > self.cut_max + 1:
            raise Violation(f"truncated up to {first_lsn}: only {self.cut_max} was asked")
        place_of = {value: lsn for lsn, value in final}
        for event in events:
            if event.outcome == "ok" and event.operation == "append":
                place_of[event.input] = event.output
            elif event.outcome == "ok":
                place_of.update({value: lsn for lsn, value in event.output["records"]})
        self._check_acked(dict(final), first_lsn)
        _check_ends(events, sorted(place_of.values()))
        _check_order_of_calls(events, place_of)
        self._check_stamps()

    def _check_acked(self, final: dict[int, str], first_lsn: int) -> None:
        for event in self.history.events:
            is_acked = event.operation == "append" and event.outcome == "ok"
            if is_acked and event.output >= first_lsn and final.get(event.output) != event.input:
                raise Violation(f"acked and lost: {event.describe()}")

    def _check_stamps(self) -> None:
        """Nobody gets another's, and later calls get later ones."""
        ordered = sorted(self.stamps, key=lambda each: each.first)
        for one, other in pairwise(ordered):
            if other.first < one.end:
                raise Violation(f"timestamps given twice: {one} and {other}")
            if other.returned < one.called:
                raise Violation(f"timestamps out of order: {one} and {other}")


def check_leases(records: Sequence[Record], history: Sequence[LeaseChange]) -> None:
    """Who reads sees records of the holder alone, and nothing of the holder was refused."""
    for record in records:
        holder = max((each.holder for each in history if each.lsn < record.lsn), default=0)
        if record.kind is RecordKind.USER and holder not in (0, record.holder):
            raise Violation(f"{record} was written without the lease, which {holder} had")
        if record.kind is RecordKind.LEASE_REJECTED and holder in (0, record.holder):
            raise Violation(f"{record} was refused, although {holder} had the lease")


def _described(violation: Found) -> str:
    return "\n".join([violation.explanation, *(each.describe() for each in violation.events)])


def _check_ends(events: Sequence[Event], written: list[int]) -> None:
    """A read leaves out nothing up to where it says to go on: holes hold no record."""
    for event in events:
        if event.operation != "read" or event.outcome != "ok":
            continue
        records = event.output["records"]
        last = records[-1][0] if records else event.input - 1
        position = bisect_left(written, last + 1)
        if position < len(written) and written[position] < event.output["next"]:
            raise Violation(f"a read jumps over LSN {written[position]}: {event.describe()}")


def _check_order_of_calls(events: Sequence[Event], place_of: dict[str, int]) -> None:
    """Behind a client's record that was acked stands what it appended later."""
    highest: dict[str, Event] = {}
    for event in events:
        place = place_of.get(event.input) if event.operation == "append" else None
        if place is None:
            continue
        before = highest.get(event.client)
        if before is not None and place <= before.output:
            raise Violation(
                f"calls out of order: {before.describe()}\nthen {event.describe()} at {place}"
            )
        if event.outcome == "ok":
            highest[event.client] = event
