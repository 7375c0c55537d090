"""`raftwood tail`: the records of a logstore, the last ones or as they come."""

import os
import re
import sys
import time
from typing import Annotated, Final

from cyclopts import App, Parameter

from raftwood.app.commands.hub_target import HUB, HubTarget, Stream, stream_of
from raftwood.app.output import Format, write_line, write_records
from raftwood.app.stream_records import Choice, fields_of, line_of, plain_of
from raftwood.app.stream_tail import At, StreamTail, while_somebody_reads
from raftwood.base.errors import InvalidInput
from raftwood.base.quantities import MILLISECONDS, parse_quantity
from raftwood.base.text import escaped
from raftwood.loghub.client.hub_client import AsyncLogHubClient
from raftwood.loghub.client.pulled_batches import LogRecord
from raftwood.loghub.server.ways_in import times

app = App(name="tail", help_format="plaintext")

LAST: Final = 10
LAST_MAX: Final = 1_000_000
_STYLES: Final = {
    "trace": "dim",
    "debug": "dim",
    "notice": "cyan",
    "warning": "yellow",
    "warn": "yellow",
    "error": "red",
    "err": "red",
    "critical": "bold red",
    "fatal": "bold red",
    "alert": "bold red",
    "emergency": "bold red",
}


@app.default
def tail(
    stream: Stream,
    *,
    follow: Annotated[
        bool, Parameter(name=["--follow", "-f"], negative="", help="Wait for what comes.")
    ] = False,
    last: Annotated[
        int | None,
        Parameter(
            name=["--last", "-n"], help="Begin with so many records; 10 where nothing is said."
        ),
    ] = None,
    begin: Annotated[
        str | None,
        Parameter(
            name="--from",
            help='Begin at the "begin", at the "end", or with what was received since a time: '
            '2026-01-31T10:00:00Z, seconds since 1970, or so long ago, as "15min".',
        ),
    ] = None,
    shard: Annotated[int | None, Parameter(help="One shard alone.")] = None,
    grep: Annotated[
        str | None, Parameter(help="Records with a value in which this pattern is found.")
    ] = None,
    where: Annotated[
        tuple[str, ...],
        Parameter(negative="", help="Records whose NAME=VALUE is so; repeatable."),
    ] = (),
    fields: Annotated[
        str | None,
        Parameter(
            help="Show these alone, NAME[,NAME]; __time__, __topic__, __source__, __tag__:NAME, "
            "__shard__ and __position__ are names too."
        ),
    ] = None,
    hub: HubTarget = HUB,
) -> int:
    """Show records of a logstore, a line each: the last ones, or all from a place on.

    The records of a key come in their order, those of a shard that was split before those of the
    shards that took over.
    """
    project, logstore = stream_of(stream)
    choice = Choice(pattern=_pattern(grep), where=tuple(map(_pair, where)))
    names = [each for each in (fields or "").split(",") if each]
    if begin is not None and last is not None:
        raise InvalidInput("give --from or --last, not both")
    if last is not None and not 0 <= last <= LAST_MAX:
        raise InvalidInput(f"--last {last}: give 0 to {LAST_MAX}")
    at = None if begin is None else place_of(begin, now_s=time.time())
    printer = Printer(names, hub.output)

    async def work(client: AsyncLogHubClient) -> int:
        stream_tail = StreamTail(
            client, choice, warn, project=project, logstore=logstore, shard=shard
        )
        count = LAST if last is None else last
        await while_somebody_reads(
            stream_tail.show(printer.write, at=at, last=count, follow=follow)
        )
        return 0

    return hub.run(work)


class Printer:
    """Writes records as they are asked for, in colours on a terminal."""

    def __init__(self, names: list[str], output: Format) -> None:
        self._names = names
        self._output = output
        self._styles = _rendering() if output == "text" and not names else {}

    def write(self, records: list[LogRecord]) -> None:
        if self._names:
            rows = (fields_of(each, self._names) for each in records)
            write_records(rows, self._names, self._output)
        elif self._output == "json":
            write_records((plain_of(each) for each in records), (), "json")
        else:
            for each in records:
                write_line(self._line(each))
            sys.stdout.flush()

    def _line(self, record: LogRecord) -> str:
        moment, level, rest = line_of(record)
        line = "  ".join(part for part in (moment, level, rest) if part)
        before, after = self._styles.get(level.lower(), ("", ""))
        return f"{before}{line}{after}"


def _rendering() -> dict[str, tuple[str, str]]:
    """By level, what goes before a line and after it; nothing where there are no colours."""
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
        return {}
    # Loaded only where it is seen.
    from rich.console import Console  # noqa: PLC0415
    from rich.style import Style  # noqa: PLC0415

    console = Console(file=sys.stdout)
    if console.color_system is None:
        return {}
    found = {}
    for level, style in _STYLES.items():
        before, _, after = Style.parse(style).render("\0").partition("\0")
        found[level] = (before, after)
    return found


def warn(text: str) -> None:
    sys.stderr.write(f"warning: {escaped(text)}\n")


def place_of(text: str, *, now_s: float) -> At:
    """Where to begin, from what a user writes."""
    if text == "begin":
        return "begin"
    if text == "end":
        return "end"
    moment_ns = times.from_any(text)
    if moment_ns is not None:
        return moment_ns // 1_000_000_000
    try:
        ago_ms = parse_quantity(text, MILLISECONDS)
    except ValueError as error:
        raise InvalidInput(
            f"--from {text[:60]!r} is no place: give begin, end, a time as 2026-01-31T10:00:00Z, "
            "seconds since 1970, or so long ago, as 15min"
        ) from error
    return max(0, int(now_s - ago_ms / 1000))


def _pattern(text: str | None) -> re.Pattern[str] | None:
    try:
        return None if text is None else re.compile(text)
    except re.error as error:
        raise InvalidInput(f"--grep {text!r} is no pattern: {error}") from error


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise InvalidInput(f"--where {text[:60]!r} is no choice: write NAME=VALUE")
    return name, value
