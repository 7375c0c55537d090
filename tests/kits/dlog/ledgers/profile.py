"""Which faults a run has, and how often: each seed picks its own."""

import random
from dataclasses import dataclass

from raftwood.dlog.ledgers.model import LedgerConfig

_QUORUMS = [(3, 3, 2)] * 4 + [(3, 2, 2), (5, 3, 2), (4, 3, 3), (3, 3, 1), (4, 4, 2), (1, 1, 1)]


@dataclass(frozen=True)
class Profile:
    """The weather of one run."""

    quorums: tuple[int, int, int]
    spare_bookies: int
    appends: int
    burst: int
    recoverers: int
    recover_after_ms: int
    delay_ms_max: float
    stutters: float
    stutter_ms: float
    lost_answers: float
    faults: int
    is_corrupt: bool
    writer_pause_ms: float

    @classmethod
    def choose(cls, seed: int | str) -> "Profile":
        chance = random.Random(f"ledgers/{seed}")
        quorums = chance.choice(_QUORUMS)
        return cls(
            quorums=quorums,
            spare_bookies=chance.randint(0, 2),
            appends=chance.randint(5, 60),
            burst=chance.choice([1, 3, 10]),
            recoverers=chance.randint(1, 3),
            recover_after_ms=chance.choice([200, 1_000, 4_000]),
            delay_ms_max=chance.choice([0.5, 5, 30]),
            stutters=chance.choice([0, 0.02, 0.1]),
            stutter_ms=chance.choice([20, 100, 1000]),
            lost_answers=chance.choice([0, 0, 0.1]),
            faults=chance.choice([0, 6, 20]),
            is_corrupt=quorums[2] > 1 and chance.random() < 0.3,
            writer_pause_ms=chance.choice([1, 20, 100]),
        )

    @property
    def config(self) -> LedgerConfig:
        ensemble, write_quorum, ack_quorum = self.quorums
        return LedgerConfig(
            ensemble=ensemble, write_quorum=write_quorum, ack_quorum=ack_quorum, password=b"p"
        )
