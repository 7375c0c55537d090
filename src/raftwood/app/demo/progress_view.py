"""A demo's steps and progress on the terminal."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from raftwood.app.demo.story import StoryListener


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
