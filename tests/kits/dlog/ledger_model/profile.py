"""Which faults a ledger's life has, and how often."""

import random
from dataclasses import dataclass

_QUORUMS = [(3, 3, 2)] * 4 + [(3, 2, 2), (5, 3, 2), (4, 3, 3), (3, 3, 1), (4, 4, 2), (5, 5, 3)]


@dataclass(frozen=True)
class Profile:
    """The weather of one life; chances are per event."""

    quorums: tuple[int, int, int]
    spare_bookies: int
    lost: float
    """Of adds and of changes of metadata: done, and not answered."""
    lost_reads: float
    slow: str
    """Whom the writer's adds reach late: nobody, one, all."""
    is_one_damaged: bool
    faults: float
    appends: float
    recoveries: float

    @classmethod
    def choose(cls, chance: random.Random) -> "Profile":
        return cls(
            quorums=chance.choice(_QUORUMS),
            spare_bookies=chance.randint(0, 2),
            lost=chance.choice([0, 0.02, 0.15]),
            lost_reads=chance.choice([0, 0.02, 0.3]),
            slow=chance.choice(["nobody", "one", "all"]),
            is_one_damaged=chance.random() < 0.3,
            faults=chance.choice([0, 0.01, 0.05]),
            appends=chance.choice([0.1, 0.3]),
            recoveries=chance.choice([0.002, 0.02]),
        )
