"""What clients of one log shard were told, and whether the log can have answered so. No I/O.

    history = History()
    append = history.append(client=1, payload=b"...", now=time())
    append.acked(lsn, now=time())           # or refused(), or neither: its fate is unknown
    read = history.read(first_lsn, now=time())
    read.answered([(lsn, payload), ...], next_lsn, now=time())
    check_history(history, [(lsn, payload), ...])

Every payload is another, and the calls of one client are noted in their order. The times only need
to grow as the events of the whole history do.
"""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise

import msgspec

Stored = tuple[int, bytes]
"""LSN and payload."""


class HistoryWrong(AssertionError):
    """The answers cannot all be right."""


class Append(msgspec.Struct):
    """One record that a client asked to have appended."""

    client: int
    payload: bytes
    called: float
    returned: float | None = None
    lsn: int | None = None
    is_refused: bool = False
    """It is certain that nothing was written."""

    def acked(self, lsn: int, *, now: float) -> None:
        self.lsn, self.returned = lsn, now

    def refused(self) -> None:
        self.is_refused = True


class Read(msgspec.Struct):
    """One read, of which nothing counts before it was answered."""

    first: int
    called: float
    returned: float | None = None
    records: list[Stored] = []
    next: int = 0

    def answered(self, records: Sequence[Stored], next_lsn: int, *, now: float) -> None:
        self.records, self.next, self.returned = list(records), next_lsn, now


class History:
    """All that was asked of a shard, in the order of the calls."""

    def __init__(self) -> None:
        self.appends: list[Append] = []
        self.reads: list[Read] = []

    def append(self, *, client: int, payload: bytes, now: float) -> Append:
        self.appends.append(Append(client, payload, now))
        return self.appends[-1]

    def read(self, first: int, *, now: float) -> Read:
        self.reads.append(Read(first, now))
        return self.reads[-1]

    def acked(self) -> list[Append]:
        return [each for each in self.appends if each.lsn is not None]


def check_history(history: History, stored: Sequence[Stored], *, first: int = 1) -> None:
    """`stored` is all that the log held in the end, from the LSN `first` on."""
    _check_stored(history, stored)
    _check_acked(history, dict(stored), first)
    places = {payload: lsn for lsn, payload in stored}
    _check_time(history, places)
    _check_clients(history, places)
    lsns = [lsn for lsn, _ in stored]
    latest = _Latest(history)
    for read in history.reads:
        if read.returned is not None:
            _check_read(read, stored, lsns, first, latest)


def _check_stored(history: History, stored: Sequence[Stored]) -> None:
    known = {each.payload: each for each in history.appends}
    _demand(len(known) == len(history.appends), "two appends have the same payload")
    for (lsn, _), (after, _) in pairwise(stored):
        _demand(lsn < after, f"LSN {after} comes after {lsn}")
    seen: dict[bytes, int] = {}
    for lsn, payload in stored:
        _demand(payload in known, f"nobody appended what is at LSN {lsn}: {payload[:60]!r}")
        _demand(
            payload not in seen, f"{payload[:60]!r} is there twice: at {seen.get(payload)}, {lsn}"
        )
        _demand(not known[payload].is_refused, f"what is at LSN {lsn} was refused")
        seen[payload] = lsn


def _check_acked(history: History, by_lsn: dict[int, bytes], first: int) -> None:
    told: dict[int, bytes] = {}
    for append in history.acked():
        lsn, payload = append.lsn, append.payload
        assert lsn is not None
        _demand(lsn not in told, f"LSN {lsn} was told for two records")
        told[lsn] = payload
        if lsn >= first:
            found = by_lsn.get(lsn)
            _demand(found is not None, f"what was acked at LSN {lsn} is gone: {payload[:60]!r}")
            _demand(found == payload, f"at LSN {lsn} is {found!r:.60}, acked was {payload[:60]!r}")


def _check_time(history: History, places: dict[bytes, int]) -> None:
    """What was acked before another append began stands before that."""
    ended = sorted((each for each in history.acked()), key=lambda each: each.returned or 0.0)
    highest, position = 0, 0
    for append in sorted(history.appends, key=lambda each: each.called):
        while position < len(ended) and (ended[position].returned or 0.0) < append.called:
            highest = max(highest, ended[position].lsn or 0)
            position += 1
        lsn = places.get(append.payload) if append.lsn is None else append.lsn
        _demand(
            lsn is None or lsn > highest,
            f"an append was written at {lsn} though {highest} was acked before it began",
        )


def _check_clients(history: History, places: dict[bytes, int]) -> None:
    """A client's records stand in the order of its calls.

    One of unknown fate stands behind all that was acked of those before it; it may stand behind
    later ones, which the client then sent as another producer.
    """
    highest: dict[int, int] = {}
    for append in history.appends:
        lsn = places.get(append.payload) if append.lsn is None else append.lsn
        if lsn is None:
            continue
        before = highest.get(append.client, 0)
        _demand(
            lsn > before, f"client {append.client} has LSN {lsn} for what came after LSN {before}"
        )
        if append.lsn is not None:
            highest[append.client] = lsn


class _Latest:
    """The highest LSN that was acked before a moment."""

    def __init__(self, history: History) -> None:
        acked = sorted((each.returned or 0.0, each.lsn or 0) for each in history.acked())
        self._moments = [moment for moment, _ in acked]
        self._highest: list[int] = []
        for _, lsn in acked:
            self._highest.append(max(lsn, self._highest[-1] if self._highest else 0))

    def before(self, moment: float) -> int:
        position = bisect_left(self._moments, moment)
        return self._highest[position - 1] if position else 0


def _check_read(
    read: Read, stored: Sequence[Stored], lsns: list[int], first: int, latest: _Latest
) -> None:
    what = f"a read of {read.first} up to {read.next}"
    _demand(read.next >= read.first, f"{what} goes backwards")
    if read.next == read.first:
        newest = latest.before(read.called)
        _demand(newest < read.first, f"{what} missed LSN {newest}, which was acked before")
    begin, end = bisect_left(lsns, max(read.first, first)), bisect_left(lsns, read.next)
    expected = list(stored[begin:end])
    found = [each for each in read.records if each[0] >= first]
    if found != expected:
        missing = [each for each in expected if each not in found][:3]
        surplus = [each for each in found if each not in expected][:3]
        raise HistoryWrong(f"{what} lacks {missing}, and has {surplus} that the log has not")


def _demand(is_right: bool, otherwise: str) -> None:
    if not is_right:
        raise HistoryWrong(otherwise)
