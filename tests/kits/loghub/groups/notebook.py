"""What was put and what was read, and the rules that it has to keep."""

from collections import Counter

from tests.kits.models import Violation


class Notebook:
    """Values are numbered per key, from 1 on, and put one after the other."""

    def __init__(self) -> None:
        self.put: dict[int, int] = {}
        self.read: Counter[tuple[int, int]] = Counter()
        self._read_to: Counter[int] = Counter()
        self._at_work: dict[int, str] = {}

    def begin(self, shard: int, consumer: str) -> None:
        other = self._at_work.get(shard)
        if other is not None:
            raise Violation(f"{consumer} reads shard {shard}, where {other} is at work")
        self._at_work[shard] = consumer

    def end(self, shard: int) -> None:
        del self._at_work[shard]

    def note(self, key: int, number: int) -> None:
        if number > self._read_to[key] + 1:
            raise Violation(f"{key}-{number} is read before {key}-{self._read_to[key] + 1}")
        self._read_to[key] = max(number, self._read_to[key])
        self.read[key, number] += 1

    @property
    def doubles(self) -> int:
        return sum(count - 1 for count in self.read.values())

    def is_all_read(self) -> bool:
        return all(self._read_to[key] == number for key, number in self.put.items())
