"""`raftwood tail`: the records of a logstore, the last ones or as they come."""

import asyncio
import os
import re
import select
import sys
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import msgspec
from cyclopts import App, Parameter

from raftwood.base.errors import InvalidConfiguration, InvalidInput, StoreError
from raftwood.base.position import Position
from raftwood.base.text import escaped
from raftwood.cli.loghub_target import HUB, HubTarget, Stream, stream_of
from raftwood.cli.output import Format, write_line, write_records
from raftwood.loghub.arrow_batches import SOURCE, TAG_PREFIX, TIME, TOPIC
from raftwood.loghub.client.hub_client import AsyncLogHubClient
from raftwood.loghub.client.pulled_batches import LogRecord, PulledBatch
from raftwood.loghub.client.reader import AsyncReader, At, ReaderSettings, Start, start_at
from raftwood.loghub.errors import ShardNotFound

LEVELS: Final = ("level", "severity", "severity_text", "levelname", "log.level")
"""Where a record may say how bad it is."""
MESSAGES: Final = ("message", "msg", "content", "body", "log")
_NS: Final = 1_000_000_000
_PLAIN: Final = re.compile(r"[^\s\"'=]+")


def text_of(value: str | bytes) -> str:
    """What is not UTF-8, as well as it can be read."""
    return value if isinstance(value, str) else value.decode(errors="backslashreplace")


def time_of(record: LogRecord) -> str:
    """Its own, to the millisecond."""
    seconds, nanoseconds = divmod(record.time_ns, _NS)
    moment = datetime.fromtimestamp(seconds, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{nanoseconds // 1_000_000:03}Z"


_BESIDE: Final[dict[str, Callable[[LogRecord], str]]] = {
    TIME: time_of,
    TOPIC: lambda record: text_of(record.topic),
    SOURCE: lambda record: text_of(record.source),
    "__shard__": lambda record: str(record.shard),
    "__position__": lambda record: str(record.position),
}


def value_of(record: LogRecord, name: str) -> str | None:
    """A field, or what a record has beside its fields."""
    found: str | bytes | None = record.contents.get(name)
    if found is None and name.startswith(TAG_PREFIX):
        found = record.tags.get(name.removeprefix(TAG_PREFIX))
    if found is not None:
        return text_of(found)
    beside = _BESIDE.get(name)
    return None if beside is None else beside(record)


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """Which records are wanted."""

    pattern: re.Pattern[str] | None = None
    """Found in some value."""
    where: tuple[tuple[str, str], ...] = ()
    """Name and value; all have to be so."""

    def takes(self, record: LogRecord) -> bool:
        if any(value_of(record, name) != value for name, value in self.where):
            return False
        pattern = self.pattern
        return pattern is None or any(
            pattern.search(text_of(value)) for value in record.contents.values()
        )


def plain_of(record: LogRecord) -> dict[str, Any]:
    """All of it, for machines; positions are text, as JSON has no integers of 128 bits."""
    return {
        "shard": record.shard,
        "position": str(record.position),
        "time": time_of(record),
        "topic": text_of(record.topic),
        "source": text_of(record.source),
        "tags": {name: text_of(value) for name, value in record.tags.items()},
        "fields": {name: text_of(value) for name, value in record.contents.items()},
    }


def fields_of(record: LogRecord, names: Sequence[str]) -> dict[str, str | None]:
    """Those that were asked for, in that order."""
    return {name: value_of(record, name) for name in names}


def line_of(record: LogRecord) -> tuple[str, str, str]:
    """For people: the time, the level where there is one, and all the rest."""
    fields = dict(record.contents)
    level = next((fields.pop(name) for name in LEVELS if name in fields), "")
    message = next((fields.pop(name) for name in MESSAGES if name in fields), None)
    parts = [] if message is None else [escaped(text_of(message))]
    parts += [f"{escaped(name)}={_quoted(text_of(value))}" for name, value in fields.items()]
    return time_of(record), escaped(text_of(level)), " ".join(parts)


def _quoted(value: str) -> str:
    if _PLAIN.fullmatch(value):
        return escaped(value)
    return escaped(msgspec.json.encode(value).decode())


_SETTINGS: Final = ReaderSettings(skips_freed=True)
_BACK_FIRST: Final = 2
_BACK_FACTOR: Final = 4
_LOOK_S: Final = 2.0


class StreamTail:
    """Of one logstore, or one shard of it."""

    def __init__(
        self,
        client: AsyncLogHubClient,
        choice: Choice,
        warn: Callable[[str], None],
        *,
        project: str,
        logstore: str,
        shard: int | None = None,
    ) -> None:
        self._client = client
        self._choice = choice
        self._warn = warn
        self._project = project
        self._logstore = logstore
        self._shard = shard

    async def show(
        self, write: Callable[[list[LogRecord]], None], *, at: At | None, last: int, follow: bool
    ) -> None:
        """Write all from a place on, or the last ones where none is named; then what comes."""
        start: Start
        if at is not None:
            start = at
        else:
            ends = await self._ends()
            write(await self._last(ends, last))
            if not follow:
                return
            start = ends
        async with self._reader(self._shard, start, follow=follow) as reader:
            async for batch in reader.batches():
                records = list(self._chosen(batch))
                if records:
                    write(records)

    async def _ends(self) -> dict[int, Position]:
        shards = await self._client.shards(self._project, self._logstore)
        chosen = [each.id for each in shards if self._shard in (None, each.id)]
        if not chosen:
            raise ShardNotFound(
                f"logstore {self._logstore} has no shard {self._shard}: list its shards"
            )
        return {each: await self._cursor(each, "end") for each in chosen}

    async def _last(self, ends: dict[int, Position], count: int) -> list[LogRecord]:
        """Of all shards, in the order in which gateways received them."""
        if not count:
            return []
        found: list[tuple[int, LogRecord]] = []
        for shard, end in ends.items():
            found += await self._last_of(shard, end, count)
        found.sort(key=lambda each: each[0])  # which keeps the order within a shard
        return [record for _, record in found[-count:]]

    async def _last_of(self, shard: int, end: Position, count: int) -> list[tuple[int, LogRecord]]:
        """Further back each time, until there are enough of them."""
        begin = await self._cursor(shard, "begin")
        back = _BACK_FIRST
        while True:
            start = Position(max(begin, end - back))
            kept: deque[tuple[int, LogRecord]] = deque(maxlen=count)
            async with self._reader(shard, {shard: start}, follow=False) as reader:
                async for batch in reader.batches():
                    if batch.position < end:
                        received_ms = batch.head.received_ms
                        kept.extend((received_ms, each) for each in self._chosen(batch))
            if len(kept) == count or start <= begin:
                return list(kept)
            back *= _BACK_FACTOR

    def _reader(self, shard: int | None, start: Start, *, follow: bool) -> AsyncReader:
        return self._client.reader(
            self._project,
            self._logstore,
            shard=shard,
            start=start,
            follow=follow,
            settings=_SETTINGS,
        )

    async def _cursor(self, shard: int, at: At) -> Position:
        return await self._client.cursor(self._project, self._logstore, shard=shard, at=at)

    def _chosen(self, batch: PulledBatch) -> Iterator[LogRecord]:
        try:
            records = batch.records()
        except InvalidConfiguration:
            raise  # what is missing is on this side
        except (InvalidInput, StoreError) as error:
            self._warn(
                f"the batch at position {batch.position} of shard {batch.shard} cannot be read: "
                f"{error.message}"
            )
            return iter(())
        return filter(self._choice.takes, records)


async def while_somebody_reads(work: Coroutine[Any, Any, None]) -> None:
    """Do it, and give up where nobody reads the output, even if nothing is written to it."""
    task = asyncio.create_task(work)
    try:
        while not task.done():
            await asyncio.wait((task,), timeout=_LOOK_S)
            _check_output()
        await task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _check_output() -> None:
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    if any(event & select.POLLERR for _, event in poll.poll(0)):
        raise BrokenPipeError


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
    at = None if begin is None else start_at(begin, now_s=time.time())
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
