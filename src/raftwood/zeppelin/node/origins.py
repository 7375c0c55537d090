"""Which requests a partition has carried out already: (who sent it, its number) → its record.

They are kept as long as the record is in the binlog, and a bounded number of the latest; of those
that are older, the last ones of each producer: whoever writes little may come back late and is
known, however much others wrote meanwhile. The engine holds them beside the keys, so that a copy of
the engine knows them too.
"""

from collections import Counter, deque
from collections.abc import Mapping
from typing import Final, TypeAlias

import msgspec

from raftwood.base.errors import StoreDamaged
from raftwood.base.seams import DeleteRange, KvEngine, Mutation, Put
from raftwood.zeppelin.node.values import ORIGINS_END, ORIGINS_START

Origin: TypeAlias = tuple[bytes, int]
ORIGINS_MAX: Final = 100_000
"""Of the latest, and as many of the older ones."""
KEPT_OF_PRODUCER: Final = 64
PURGED_MAX: Final = 10_000
"""Of the older ones, those whose records are purged."""
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(tuple[bytes, int])


class Origins:
    """In memory; the functions below are what makes the engine follow."""

    def __init__(self) -> None:
        self._sequences: dict[Origin, int] = {}
        self._older: deque[tuple[int, Origin]] = deque()
        self._latest: deque[tuple[int, Origin]] = deque()
        self._last: dict[bytes, int] = {}
        """The largest number of each producer; some may be forgotten by now."""
        self._known: Counter[bytes] = Counter()
        """How many are whose."""
        self._of_producer: Counter[bytes] = Counter()
        """How many of the latest are whose."""

    @classmethod
    def load(cls, engine: KvEngine) -> "Origins":
        origins = cls()
        for key, value in engine.scan(ORIGINS_START, ORIGINS_END):
            try:
                origins.add(_decoder.decode(value), int.from_bytes(key[1:], "big"))
            except (msgspec.MsgspecError, ValueError) as error:
                raise StoreDamaged(
                    f"the origin of a record cannot be read ({error}): restore the partition from "
                    "a replica"
                ) from error
        return origins

    def sequence_of(self, origin: Origin) -> int | None:
        return self._sequences.get(origin)

    def last_number(self, producer: bytes) -> int | None:
        """The largest one of a producer that is known; None where there is none."""
        last = self._last.get(producer)
        if last is not None and (producer, last) not in self._sequences:
            # What came last of it is forgotten, which is rare: it is looked for when it is asked.
            last = max(number for name, number in self._sequences if name == producer)
            self._last[producer] = last
        return last

    def add(self, origin: Origin, sequence: int) -> None:
        producer, number = origin
        if origin not in self._sequences:
            self._known[producer] += 1
        self._sequences[origin] = sequence
        if number >= self._last.get(producer, number):
            self._last[producer] = number
        self._latest.append((sequence, origin))
        self._of_producer[origin[0]] += 1
        if len(self._latest) > ORIGINS_MAX:
            self._grow_old()

    def _grow_old(self) -> None:
        """The first of the latest is that no more; it stays if its producer wrote little since."""
        sequence, origin = self._latest.popleft()
        if self._one_less(origin[0]) >= KEPT_OF_PRODUCER:
            self._forget(sequence, origin)
            return
        self._older.append((sequence, origin))
        if len(self._older) > ORIGINS_MAX:
            self._forget(*self._older.popleft())

    def _one_less(self, producer: bytes) -> int:
        left = self._of_producer[producer] = self._of_producer[producer] - 1
        if not left:
            del self._of_producer[producer]
        return left

    def forget_before(self, sequence: int) -> dict[int, Origin] | None:
        """Their records are purged; those of them that stay, None where all do."""
        before = len(self._older) + len(self._latest)
        while self._latest and self._latest[0][0] < sequence:
            self._grow_old()
        while len(self._older) > PURGED_MAX and self._older[0][0] < sequence:
            self._forget(*self._older.popleft())
        if len(self._older) + len(self._latest) == before:
            return None
        return {place: origin for place, origin in self._older if place < sequence}

    def forget_after(self, sequence: int) -> None:
        """Their records did not happen."""
        while self._latest and self._latest[-1][0] > sequence:
            self._one_less(self._latest[-1][1][0])
            self._forget(*self._latest.pop())
        while self._older and self._older[-1][0] > sequence:
            self._forget(*self._older.pop())

    def _forget(self, sequence: int, origin: Origin) -> None:
        if self._sequences.get(origin) == sequence:
            del self._sequences[origin]
            producer = origin[0]
            self._known[producer] -= 1
            if not self._known[producer]:
                del self._known[producer], self._last[producer]


def mutation_of(origin: Origin, sequence: int) -> Mutation:
    """What the engine has to note of a record's origin."""
    return Put(_key(sequence), _encoder.encode(origin))


def mutations_before(sequence: int, kept: Mapping[int, Origin]) -> list[Mutation]:
    """Take those before a sequence out, but for those that are kept."""
    puts = [mutation_of(origin, place) for place, origin in kept.items()]
    return [DeleteRange(ORIGINS_START, _key(sequence)), *puts]


def mutation_after(sequence: int) -> Mutation:
    return DeleteRange(_key(sequence + 1), ORIGINS_END)


def _key(sequence: int) -> bytes:
    return ORIGINS_START + sequence.to_bytes(8, "big")
