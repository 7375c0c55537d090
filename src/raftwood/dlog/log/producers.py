"""`DlogProducers`: where each producer's last sequences are, so that none is stored twice.

For its last `WINDOW` sequences, which may come in any order, the table has the position of each; an
older one is refused. The table is in the log itself: see `entries`.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from raftwood.base.errors import SequenceForgotten, StoreDamaged
from raftwood.base.position import Position

WINDOW: Final = 1024
"""How many messages a producer may have under way."""
PRODUCERS_MAX: Final = 16_384
RUNS_MAX: Final = 1 << 16
"""The limit over all producers; beyond it, the one unused for longest is forgotten."""
NEXT_BATCH: Final = 1
NEXT_ENTRY: Final = 1 << 16
_LOW: Final = (1 << 64) - 1


class SequenceRun(msgspec.Struct, array_like=True, gc=False):
    """Consecutive sequences whose positions are a step apart."""

    first: int
    last: int
    ledger: int
    low: int
    """The lower 64 bits of the first sequence's position."""
    step: int = 0

    def position(self, sequence: int) -> Position:
        return Position((self.ledger << 64 | self.low) + (sequence - self.first) * self.step)


class _Producer(msgspec.Struct, array_like=True):
    name: bytes
    top: int
    runs: list[SequenceRun] = []


_DECODER: Final = msgspec.msgpack.Decoder(list[_Producer])
_ENCODER: Final = msgspec.msgpack.Encoder()


def _first(run: SequenceRun) -> int:
    return run.first


class DlogProducers:
    """All producers of a log, in the order in which they last wrote."""

    def __init__(self) -> None:
        self._known: dict[bytes, _Producer] = {}
        self._runs = 0

    def __len__(self) -> int:
        return len(self._known)

    def find(self, name: bytes, sequence: int) -> Position | None:
        """Its position; None if it has not come yet, `SequenceForgotten` if it is too old."""
        producer = self._known.get(name)
        if producer is None:
            return None
        if sequence > producer.top:
            return None
        if sequence <= producer.top - WINDOW:
            raise SequenceForgotten(
                f"sequence {sequence} of producer {name.decode(errors='replace')!r} is more than "
                f"{WINDOW} behind its last one, {producer.top}: it is not known any more whether "
                "it was stored"
            )
        runs = producer.runs
        place = bisect_right(runs, sequence, key=_first) - 1
        if place < 0 or sequence > runs[place].last:
            return None
        return runs[place].position(sequence)

    def add(self, name: bytes, sequence: int, position: Position) -> None:
        producer = self._known.pop(name, None)
        if producer is None:
            producer = _Producer(name, sequence)
        self._known[name] = producer
        runs = producer.runs
        if sequence < producer.top:
            runs.insert(bisect_right(runs, sequence, key=_first), _single(sequence, position))
            self._runs += 1
        else:
            producer.top = sequence
            if not (runs and _extend(runs[-1], sequence, position)):
                runs.append(_single(sequence, position))
                self._runs += 1
                self._forget_old(producer)
        while self._runs > RUNS_MAX or len(self._known) > PRODUCERS_MAX:
            if len(self._known) == 1:
                return  # A single producer has at most a window's worth of runs.
            oldest = self._known.pop(next(iter(self._known)))
            self._runs -= len(oldest.runs)

    def remove(self, name: bytes, sequence: int) -> None:
        """Removes a sequence that was not stored after all. The highest sequence stays: what is too
        far below it was forgotten, and must not pass for new.
        """
        producer = self._known.get(name)
        if producer is None:
            return
        runs = producer.runs
        place = bisect_right(runs, sequence, key=_first) - 1
        if place < 0 or sequence > runs[place].last:
            return
        run = runs[place]
        left = [_part(run, run.first, sequence - 1), _part(run, sequence + 1, run.last)]
        runs[place : place + 1] = [each for each in left if each.first <= each.last]
        self._runs += sum(each.first <= each.last for each in left) - 1

    def _forget_old(self, producer: _Producer) -> None:
        floor, runs = producer.top - WINDOW, producer.runs
        dropped = 0
        while runs[dropped].last <= floor:
            dropped += 1
        del runs[:dropped]
        self._runs -= dropped

    def pieces(self, bytes_max: int) -> Iterator[bytes]:
        """Yields the table as bytes, in pieces not much larger than `bytes_max`; at least one."""
        group: list[_Producer] = []
        size = 0
        for producer in self._known.values():
            group.append(producer)
            size += 32 + len(producer.name) + 24 * len(producer.runs)
            if size >= bytes_max:
                yield _ENCODER.encode(group)
                group, size = [], 0
        if group or not self._known:
            yield _ENCODER.encode(group)

    def load(self, pieces: Sequence[bytes | memoryview]) -> None:
        """Replaces the table by that of a snapshot."""
        self._known.clear()
        for piece in pieces:
            for producer in decode_piece(piece):
                self._known[producer.name] = producer
        self._runs = sum(len(producer.runs) for producer in self._known.values())


def decode_piece(piece: bytes | memoryview) -> list[_Producer]:
    try:
        producers = _DECODER.decode(piece)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StoreDamaged("a snapshot of producers cannot be read: it is damaged") from error
    return producers


def _single(sequence: int, position: Position) -> SequenceRun:
    return SequenceRun(sequence, sequence, position >> 64, position & _LOW)


def _part(run: SequenceRun, first: int, last: int) -> SequenceRun:
    low = run.low + (first - run.first) * run.step
    return SequenceRun(first, last, run.ledger, low, run.step if first < last else 0)


def _extend(run: SequenceRun, sequence: int, position: Position) -> bool:
    """Extends a run if the sequence and its position continue it; returns whether they do."""
    if sequence != run.last + 1 or position >> 64 != run.ledger:
        return False
    step = (position & _LOW) - (run.low + (run.last - run.first) * run.step)
    if run.first == run.last and step in (NEXT_BATCH, NEXT_ENTRY):
        run.step = step
    elif step != run.step:
        return False
    run.last = sequence
    return True
