"""What commands print: tables for people, JSON for machines, and progress on a terminal.

    write_rows([{"shard": 3, "bytes": 10}], {"shard": "shard", "bytes": "bytes"}, "text")

Rows are plain data. As JSON, each row is printed whole; as text, the named columns under their
titles. A pipe gets aligned columns without frames; NO_COLOR is honoured.
"""

import os
import sys
import textwrap
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Self

import msgspec

from raftwood.base.text import escaped

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID
    from rich.status import Status

Format = Literal["text", "json"]
_WIDTH: Final = 80


def write_line(text: str) -> None:
    """Print a text that is ours."""
    sys.stdout.write(text + "\n")


def size_text(count: int) -> str:
    """A number of bytes as people read it."""
    size, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size /= 1024
        del units[0]
    return f"{size:.3g} {units[0]}" if size < 1000 else f"{size:.0f} {units[0]}"


def time_text(seconds: float) -> str:
    """A time since 1970 as people read it."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def write_json(value: Any) -> None:
    """Print plain data whole, for machines that people look over the shoulder of."""
    write_line(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def write_rows(
    rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str], output: Format
) -> None:
    """Print rows as a table, or as a JSON list."""
    if output == "json":
        write_json(rows)
        return
    cells = [[_cell(row.get(column)) for column in columns] for row in rows]
    titles = list(columns.values())
    if sys.stdout.isatty():
        _write_table(titles, cells)
    else:
        _write_aligned(titles, cells)


def write_record(record: Mapping[str, Any], columns: Sequence[str], output: Format) -> None:
    """Print one of many that come one by one, as a line that is seen at once."""
    write_records([record], columns, output)


def write_records(
    records: Iterable[Mapping[str, Any]], columns: Sequence[str], output: Format
) -> None:
    """As `write_record`, for some that came together."""
    for record in records:
        if output == "json":
            write_line(msgspec.json.encode(record).decode())
        else:
            write_line("  ".join(_cell(record.get(column)) for column in columns))
    sys.stdout.flush()


def write_wrapped(rows: Sequence[Sequence[str]]) -> None:
    """Print rows of texts without titles; the last column is wrapped, 80 columns wide in all."""
    widths = [max(map(len, column)) for column in list(zip(*rows, strict=True))[:-1]]
    for row in rows:
        padded = (cell.ljust(width) for cell, width in zip(row, widths, strict=False))
        write_line(
            textwrap.fill(
                escaped(row[-1]),
                _WIDTH,
                initial_indent="".join(f"{each}  " for each in padded),
                subsequent_indent=" " * sum(width + 2 for width in widths),
                break_long_words=False,
                break_on_hyphens=False,
            )
        )


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, str):
        return escaped(value)
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {_cell(each)}" for key, each in value.items()) or "-"
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return ", ".join(map(_cell, value)) or "-"
    return msgspec.json.encode(value).decode()


def _write_aligned(titles: list[str], cells: list[list[str]]) -> None:
    lines = [titles, *cells]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        padded = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        write_line("  ".join(padded).rstrip())


def _write_table(titles: list[str], cells: list[list[str]]) -> None:
    # Loaded only where it is seen.
    from rich.box import SIMPLE_HEAD  # noqa: PLC0415
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for number, title in enumerate(titles):
        table.add_column(title, style="bold" if number == 0 else None, overflow="fold")
    for line in cells:
        table.add_row(*(Text(cell) for cell in line))
    Console(file=sys.stdout, color_system=None if os.environ.get("NO_COLOR") else "auto").print(
        table
    )


class StatusLine:
    """Use it as a context manager; the line is gone at its end."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._status: Status | None = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            # Loaded only where it is seen.
            from rich.console import Console  # noqa: PLC0415

            self._status = Console(stderr=True).status(self._text)
            self._status.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def say(self, text: str) -> None:
        """Another text in place of the last one."""
        if self._status is not None and text != self._text:
            self._text = text
            self._status.update(text)


class ProgressBar:
    """Use it as a context manager; the bar is gone at its end."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._began = time.monotonic()
        self._first_bytes: int | None = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            # Loaded only where it is seen.
            from rich.console import Console  # noqa: PLC0415
            from rich.progress import (  # noqa: PLC0415
                BarColumn,
                Progress,
                TextColumn,
                TimeRemainingColumn,
            )

            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.fields[text]}"),
                TimeRemainingColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._task = self._progress.add_task(self._title, total=None, text="")
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def show(self, done: int, total: int, text: str, size: int) -> None:
        """So many parts of all, and so many bytes so far, which tell the rate."""
        if self._progress is None or self._task is None:
            return
        if self._first_bytes is None:
            self._first_bytes = size
        elapsed_s = time.monotonic() - self._began
        rate = (size - self._first_bytes) / elapsed_s if elapsed_s > 0 else 0.0
        self._progress.update(
            self._task, completed=done, total=total, text=f"{text}, {size_text(round(rate))}/s"
        )


def redis_command(address: str, user: str, password: str) -> str:
    """How to log in with Redis's own tool."""
    host, _, port = address.rpartition(":")
    who = "" if user == "default" else f"--user {user} "
    return f"redis-cli -c -h {host} -p {port} {who}--pass {password} --no-auth-warning"
