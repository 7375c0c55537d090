"""What one run of the model is like: drawn from its seed, so that runs differ in kind."""

import random
from dataclasses import dataclass


@dataclass(frozen=True)
class Profile:
    """Sizes, and how likely each thing is when its turn comes."""

    files: int
    servers: int
    in_flight_max: int
    waiting_max: int
    """Batches of a file that wait, at the most."""
    lost: float
    """That a batch, or its answer, does not arrive."""
    doubled: float
    """That an answer arrives twice."""
    hasty: float
    """That a shipper gives up what is still to be answered."""
    busy: float
    """That a server takes no batch now."""
    unsendable: float
    refused: float
    spooled: float
    rare: float
    """Of all events: places that move, rings that change, batches dropped or let go of."""

    @classmethod
    def choose(cls, seed: int) -> "Profile":
        source = random.Random(f"clogs shipping model {seed}")
        return cls(
            files=source.choice((1, 2, 4, 8)),
            servers=source.choice((1, 2, 3, 5)),
            in_flight_max=source.choice((1, 1, 2, 3)),
            waiting_max=source.choice((1, 3, 20)),
            lost=source.choice((0.0, 0.05, 0.3)),
            doubled=source.choice((0.0, 0.1)),
            hasty=source.choice((0.0, 0.1, 0.5)),
            busy=source.choice((0.0, 0.05, 0.3)),
            unsendable=source.choice((0.0, 0.05, 0.3)),
            refused=source.choice((0.0, 0.02)),
            spooled=source.choice((0.0, 0.2, 0.8)),
            rare=source.choice((0.002, 0.02, 0.1)),
        )
