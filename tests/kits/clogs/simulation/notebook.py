"""What was given and what was promised of each line, held against what is stored in the end."""

from collections import Counter
from collections.abc import Sequence
from enum import StrEnum

from raftwood.base.errors import RaftwoodError
from raftwood.clogs.client.status import Counters
from raftwood.clogs.errors import LinesDropped
from raftwood.delivery.deliveries import Delivery
from tests.kits.models import Violation


class Harm(StrEnum):
    """A promise that was broken."""

    LOST = "a line that was promised is not stored"
    TWICE = "a line is stored twice"
    ORDER = "lines of a file are out of order"
    DROPPED = "a line was dropped that should not be, or is stored all the same"
    MISCOUNTED = "counters do not add up"
    STUCK = "lines wait though all is well"
    ISOLATED = "a server that is well stays isolated"
    FORGOTTEN = "a new configuration made a shipper forget who is isolated"


class Life:
    """One process of a shipper."""

    def __init__(self, shipper: str, number: int) -> None:
        self.shipper = shipper
        self.number = number
        self.counters: Counters | None = None
        self.dropped = 0
        self.next = 0
        self.is_promised: dict[bytes, bool] = {}
        """Each line that was given, and whether it is durable."""

    def lines(self, file: str, count: int, size: int) -> list[bytes]:
        """The next ones of a file."""
        first, self.next = self.next, self.next + count
        return [
            f"{file}|{self.number}|{number}|".encode().ljust(size, b".")
            for number in range(first, first + count)
        ]

    def give(self, lines: Sequence[bytes], delivery: Delivery[None]) -> None:
        self.is_promised.update(dict.fromkeys(lines, False))
        delivery.when_done(lambda: self._settle(lines, delivery))

    def promise(self, lines: Sequence[bytes]) -> None:
        for line in lines:
            if line in self.is_promised:
                self.is_promised[line] = True

    def _settle(self, lines: Sequence[bytes], delivery: Delivery[None]) -> None:
        try:
            delivery.result()
        except LinesDropped:
            self.dropped += len(lines)
            for line in lines:
                del self.is_promised[line]
        except RaftwoodError:
            return  # it is left to the next life
        else:
            self.promise(lines)

    def check_counters(self, held: int) -> None:
        found = self.counters
        assert found is not None
        if found.taken + found.resumed != found.acked + found.dropped + found.refused + held:
            raise Violation(Harm.MISCOUNTED, f"{found}, {held} are held")
        if found.dropped != self.dropped:
            raise Violation(Harm.MISCOUNTED, f"{self.dropped} were dropped, not {found.dropped}")
        if found.refused:
            raise Violation(Harm.MISCOUNTED, f"{found.refused} were refused")


def check_stored(lives: list[Life], stored: dict[str, list[bytes]], *, may_drop: bool) -> None:
    """Each promised line is there once, no line twice, and those of a life in order."""
    counts = Counter(line for lines in stored.values() for line in lines)
    for line, count in counts.items():
        if count > 1:
            raise Violation(Harm.TWICE, f"{line[:40]!r} {count} times")
    given: set[bytes] = set()
    for life in lives:
        if life.dropped and not may_drop:
            raise Violation(Harm.DROPPED, f"{life.dropped} of {life.shipper}")
        given.update(life.is_promised)
        for line, is_promised in life.is_promised.items():
            if is_promised and not counts[line]:
                raise Violation(Harm.LOST, f"{line[:40]!r} of {life.shipper}")
    for line in counts:
        if line not in given:
            raise Violation(Harm.DROPPED, f"{line[:40]!r} is stored")
    for file, lines in stored.items():
        last: Counter[int] = Counter()
        for line in lines:
            _, life_number, number, _ = line.split(b"|")
            if int(number) < last[int(life_number)]:
                raise Violation(Harm.ORDER, f"{line[:40]!r} in {file}")
            last[int(life_number)] = int(number)
