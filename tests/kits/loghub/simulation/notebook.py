"""What the clients of a logstore were told, and the promises that it has to keep.

A record's text names its producer, its key and its number, in the order in which the producer gave
the records of that key: `producer/key/number`.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import msgspec

from raftwood.loghub.model import Shard, ShardStatus
from raftwood.loghub.shards import contains, covers_all, hash_key
from raftwood.loghub.wire import Pulled
from raftwood.testing.history import OperationOutcome
from tests.kits.loghub.simulation.link import texts

_OVERHEAD_MAX = 12
"""A record is stored with so many times the bytes of its text, at the most."""
_WRITABLE = (ShardStatus.READWRITE, ShardStatus.SEALING)


class PromiseBroken(AssertionError):
    """LogHub did what it may never do."""


class Sent(msgspec.Struct):
    """A record, and what its producer knows of it."""

    text: str
    outcome: OperationOutcome = "unknown"
    shard: int = -1
    position: int = -1


class Read(msgspec.Struct, frozen=True):
    """A pull that was answered."""

    reader: str
    shard: int
    start: int
    next: int
    records: list[tuple[int, str]]
    is_ended: bool


class Content(msgspec.Struct, frozen=True):
    """All that can be read of a shard, from a position on."""

    shard: Shard
    first: int
    records: list[tuple[int, str]]
    """By position, in order."""


class Notebook:
    """Written by all clients of a run; of one logstore."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.sent: list[Sent] = []
        self.reads: list[Read] = []
        self.ends: dict[int, str] = {}
        """Where shards end, as somebody was told first."""
        self.archive: dict[int, Content] = {}
        """What shards held before they were deleted."""
        self.counts: dict[str, int] = {}
        self.tails: dict[str, list[str]] = {}
        """What readers of the whole logstore got, in order."""
        self.is_over = False
        """No more is sent."""
        self.retained_bytes_max = 0
        """Retention may free the oldest records beyond it; 0: none at all."""
        self.broken: PromiseBroken | None = None

    @property
    def is_freed(self) -> bool:
        return self.retained_bytes_max > 0

    def breaks(self, text: str) -> None:
        """A promise that somebody saw broken at once; the first one is kept."""
        self.broken = self.broken or PromiseBroken(f"at {self._clock():.3f}: {text}")

    def count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    def is_missing(self, shard: int, who: str, error: Exception) -> None:
        """Nobody may be told that a shard is not there, unless somebody deletes it."""
        if shard not in self.archive:
            self.breaks(f"{who} is told of shard {shard}, which is there: {error!r}")

    # What clients see

    def begins(self, text: str) -> Sent:
        sent = Sent(text)
        self.sent.append(sent)
        return sent

    def acked(self, sent: Sent, shard: int, position: int) -> None:
        sent.outcome, sent.shard, sent.position = "ok", shard, position
        self.count("acked")

    def read(self, reader: str, shard: int, start: int, pulled: Pulled) -> None:
        records = texts(pulled)
        if pulled.first > start and not self.is_freed:
            self.breaks(f"{reader} is told that shard {shard} begins at {pulled.first}")
        places = [pulled.first - 1, *(each.position for each in pulled.batches), pulled.next]
        if any(one >= other for one, other in pairwise(places)) and records:
            self.breaks(f"{reader} read shard {shard} out of order: {places}")
        self.reads.append(Read(reader, shard, pulled.first, pulled.next, records, pulled.is_ended))

    def saw_shards(self, shards: Sequence[Shard]) -> None:
        writable = [(each.begin, each.end) for each in shards if each.status in _WRITABLE]
        if not covers_all(writable):
            self.breaks(f"shards that can be written do not cover all keys: {shards}")
        for shard in shards:
            end = shard.end_position
            if end is not None and self.ends.setdefault(shard.id, end) != end:
                self.breaks(f"shard {shard.id} ended at {self.ends[shard.id]}, now at {end}")

    # The verdict

    def check(self, final: Mapping[int, Content]) -> None:
        """`final` is all that can be read at the end, deleted shards as they were before."""
        if self.broken is not None:
            raise self.broken
        contents = {**self.archive, **final}
        self._check_ends(contents)
        self._check_reads(contents)
        places = self._check_once(contents)
        self._check_acked(contents, places)
        self._check_order(contents)
        for reader, tail in self.tails.items():
            _check_tail(reader, tail)

    def _check_ends(self, contents: Mapping[int, Content]) -> None:
        for number, content in contents.items():
            end = self.ends.get(number)
            if end is not None and any(place >= int(end) for place, _ in content.records):
                raise PromiseBroken(f"shard {number} has records behind its end {end}: {content}")
        for sent in self.sent:
            end = self.ends.get(sent.shard)
            if end is not None and sent.position >= int(end):
                raise PromiseBroken(f"acked behind the end {end} of its shard: {sent}")

    def _check_reads(self, contents: Mapping[int, Content]) -> None:
        """What was read of a shard is what can be read of it at the end."""
        for read in self.reads:
            content = contents.get(read.shard)
            if content is None:
                continue  # deleted by somebody who was not answered
            low, high = max(read.start, content.first), read.next
            seen = [each for each in read.records if each[0] >= low]
            there = [each for each in content.records if low <= each[0] < high]
            if seen != there:
                raise PromiseBroken(
                    f"a read of shard {read.shard} from {low} to {high} by {read.reader} had "
                    f"{seen}, at the end there is {there}"
                )
            end = self.ends.get(read.shard)
            if read.is_ended and end is not None and read.next < int(end):
                raise PromiseBroken(f"shard {read.shard} was said to be over before {end}: {read}")

    def _check_once(self, contents: Mapping[int, Content]) -> dict[str, tuple[int, int]]:
        places: dict[str, tuple[int, int]] = {}
        known = {sent.text: sent for sent in self.sent}
        for number in sorted(contents):
            for position, text in contents[number].records:
                if text not in known:
                    raise PromiseBroken(f"nothing invented: {text} at {position} of {number}")
                if known[text].outcome == "failed":
                    raise PromiseBroken(f"said not to be stored: {text} at {position} of {number}")
                if text in places:
                    raise PromiseBroken(
                        f"exactly once: {text} at {places[text]} and {(number, position)}"
                    )
                places[text] = (number, position)
        return places

    def _check_acked(
        self, contents: Mapping[int, Content], places: Mapping[str, tuple[int, int]]
    ) -> None:
        for sent in self.sent:
            if sent.outcome != "ok" or sent.shard not in contents:
                continue
            if self.is_freed and sent.position < contents[sent.shard].first:
                self._check_freed(contents[sent.shard])
                continue
            if places.get(sent.text) != (sent.shard, sent.position):
                raise PromiseBroken(f"acked and lost: {sent}, found at {places.get(sent.text)}")

    def _check_freed(self, content: Content) -> None:
        """Retention by bytes frees nothing of the last ones."""
        kept = sum(len(text) for _, text in content.records)
        if not kept * _OVERHEAD_MAX >= self.retained_bytes_max:
            raise PromiseBroken(f"of what it may keep, shard {content.shard.id} has {kept} bytes")

    def _check_order(self, contents: Mapping[int, Content]) -> None:
        """A key's shards follow one another by their numbers: a child has a higher one."""
        last: dict[str, tuple[int, str]] = {}
        for number in sorted(contents):
            shard = contents[number].shard
            for _, text in contents[number].records:
                stream, key, order = _parts(text)
                if not key:
                    continue
                if not contains(shard.begin, shard.end, hash_key(key.encode())):
                    raise PromiseBroken(f"{text} stands in shard {number}, where it does not go")
                before = last.get(stream)
                if before is not None and before[0] >= order:
                    raise PromiseBroken(f"order of a key: {text} in {number} after {before[1]}")
                last[stream] = (order, text)


def _check_tail(reader: str, tail: Sequence[str]) -> None:
    """A reader gets each record once, and those of a key in order, across all splits."""
    if len(set(tail)) != len(tail):
        raise PromiseBroken(f"{reader} got a record twice: {sorted(tail)}")
    last: dict[str, int] = {}
    for text in tail:
        stream, key, order = _parts(text)
        if key and last.get(stream, -1) >= order:
            raise PromiseBroken(f"{reader} got {text} after number {last[stream]} of its key")
        last[stream] = order


def _parts(text: str) -> tuple[str, str, int]:
    """Producer with key, key, number."""
    stream, _, number = text.rpartition("/")
    return stream, stream.partition("/")[2], int(number)
