"""What a demo tells while it runs: steps, each with the time and with what was acked by then.

On a terminal it is shown with progress.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn


class StoryStep(msgspec.Struct, frozen=True):
    """Something that was done or seen, and what came of it."""

    at_s: float
    text: str
    acked: int
    """Writes acked so far."""


class Story:
    """Keeps all steps; `on_step` hears each at once, `acked` says how many writes were acked."""

    def __init__(self, on_step: Callable[[StoryStep], None], acked: Callable[[], int]) -> None:
        self._on_step = on_step
        self._acked = acked
        self._began = time.perf_counter()
        self.steps: list[StoryStep] = []

    @property
    def elapsed_s(self) -> float:
        return time.perf_counter() - self._began

    def tell(self, text: str) -> None:
        step = StoryStep(self.elapsed_s, text, self._acked())
        self.steps.append(step)
        self._on_step(step)


class StoryListener(msgspec.Struct, frozen=True):
    """Hears how it goes on."""

    on_step: Callable[[str], None]
    """A step is done: what came of it."""
    on_progress: Callable[[str, int, int], None]
    """A step's name, how much of it is done, and how much it is in all, or 0."""


@contextmanager
def shown_on(console: Console) -> Iterator[StoryListener]:
    """Each step stays, with the time since the beginning; below them goes what is under way."""
    columns = (
        TextColumn("{task.description:<20}"),
        BarColumn(),
        TextColumn("{task.fields[count]}"),
        TimeElapsedColumn(),
    )
    began = time.perf_counter()
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=None, count="")

        def show_step(text: str) -> None:
            elapsed_s = time.perf_counter() - began
            progress.console.print(f"{elapsed_s:6.1f} s  {text}", markup=False, soft_wrap=True)

        def show_progress(part: str, done: int, total: int) -> None:
            count = f"{done:,} of {total:,}" if total else f"{done:,} rows" if done else ""
            progress.update(
                task, description=part, completed=done, total=total or None, count=count
            )

        yield StoryListener(on_step=show_step, on_progress=show_progress)
