"""What a demo tells while it runs: steps, each with the time and with what was acked by then."""

import time
from collections.abc import Callable

import msgspec


class Step(msgspec.Struct, frozen=True):
    """Something that was done or seen, and what came of it."""

    at_s: float
    text: str
    acked: int
    """Writes acked so far."""


class Story:
    """Keeps all steps; `on_step` hears each at once, `acked` says how many writes were acked."""

    def __init__(self, on_step: Callable[[Step], None], acked: Callable[[], int]) -> None:
        self._on_step = on_step
        self._acked = acked
        self._began = time.perf_counter()
        self.steps: list[Step] = []

    @property
    def elapsed_s(self) -> float:
        return time.perf_counter() - self._began

    def tell(self, text: str) -> None:
        step = Step(self.elapsed_s, text, self._acked())
        self.steps.append(step)
        self._on_step(step)


class StoryListener(msgspec.Struct, frozen=True):
    """Hears how it goes on."""

    on_step: Callable[[str], None]
    """A step is done: what came of it."""
    on_progress: Callable[[str, int, int], None]
    """A step's name, how much of it is done, and how much it is in all, or 0."""
