"""`raftwood dlog`: logs made of ledgers, on a cluster's bookies or on Apache BookKeeper."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Final

from cyclopts import App, Parameter
from msgspec.structs import replace

from raftwood.base.environment import Environment
from raftwood.base.errors import InvalidInput, OutOfRange, RaftwoodError, Unavailable
from raftwood.base.files import Buffer
from raftwood.base.logs import get_logger
from raftwood.base.position import Position, entry_of_position, parse_position, position_of_entry
from raftwood.base.seams import MetaStore
from raftwood.base.text import BYTES, MILLISECONDS
from raftwood.cli.cluster_target import MetastoreTarget, opened
from raftwood.cli.input import line_batches, opened_input
from raftwood.cli.options import DEFAULTS, Source, quantity_of
from raftwood.cli.output import (
    Format,
    StatusLine,
    size_text,
    time_text,
    write_json,
    write_records,
    write_rows,
)
from raftwood.disk.real_environment import real_environment
from raftwood.dlog.ledgers.seams import LedgerStore
from raftwood.dlog.log.dlogs import Dlogs
from raftwood.dlog.log.log_reader import StoredMessage
from raftwood.dlog.log.log_writer import LogWriter
from raftwood.dlog.log.meta import LedgerInfo
from raftwood.dlog.owner_records import taken_over
from raftwood.server.clients import connected_ledgers
from raftwood.server.dlogs import bookkeeper_ledgers, dlogs_of
from raftwood.server.event_loop import run
from raftwood.server.settings import Settings

_USUAL_CHROOT: Final = "ledgers"


@Parameter(name="*")
@dataclass(frozen=True)
class DlogTarget:
    """Which ledgers, and how to print what came of it."""

    connect: Annotated[
        str | None,
        Parameter(help="Some stores, HOST:PORT[,HOST:PORT]; else cluster.members of the settings."),
    ] = None
    bookkeeper: Annotated[
        str | None,
        Parameter(
            help="Apache BookKeeper in place of a cluster, by its ZooKeeper: HOST:PORT[/chroot]; "
            "the logs' records are there too, for each chroot its own."
        ),
    ] = None
    records: Annotated[
        str | None,
        Parameter(
            help="With --bookkeeper: the ZooKeeper that has the logs' records in place of that, "
            "HOST:PORT[/chroot]. Release 0.1.0 kept those of all chroots at HOST:PORT."
        ),
    ] = None
    output: Annotated[Format, Parameter(name="--format", help="How to print it.")] = "text"
    source: Source = DEFAULTS

    def with_dlogs(self, work: Callable[[Dlogs, Settings], Coroutine[Any, Any, int]]) -> int:
        """Do something with logs; answers the exit status."""

        async def with_these(
            environment: Environment, store: MetaStore, ledgers: LedgerStore, settings: Settings
        ) -> int:
            return await work(dlogs_of(environment, settings, store, ledgers), settings)

        return self._run(with_these)

    def with_ledgers(self, work: Callable[[LedgerStore], Coroutine[Any, Any, int]]) -> int:
        """Do something with ledgers; answers the exit status."""

        async def with_these(
            _: Environment, __: MetaStore, ledgers: LedgerStore, ___: Settings
        ) -> int:
            return await work(ledgers)

        return self._run(with_these)

    def _run(
        self,
        work: Callable[[Environment, MetaStore, LedgerStore, Settings], Coroutine[Any, Any, int]],
    ) -> int:
        settings = self.source.load().settings
        if self.connect is not None and self.bookkeeper is not None:
            raise InvalidInput("give --connect or --bookkeeper, not both")
        if self.records is not None and self.bookkeeper is None:
            raise InvalidInput("--records goes with --bookkeeper: a cluster's metastore has them")

        async def main() -> int:
            async with self._opened(environment, settings) as (store, ledgers):
                return await work(environment, store, ledgers, settings)

        with real_environment() as environment:
            return run(main())

    @asynccontextmanager
    async def _opened(
        self, environment: Environment, settings: Settings
    ) -> AsyncIterator[tuple[MetaStore, LedgerStore]]:
        if self.bookkeeper is not None:
            given = replace(settings.dlog, bookkeeper=self.bookkeeper)
            ledgers = await bookkeeper_ledgers(environment, given)
            where = MetastoreTarget(zookeeper=self.records or _logs_at(self.bookkeeper))
            try:
                async with opened(environment, where) as store:
                    yield store, ledgers
            finally:
                await ledgers.close()
            return
        async with connected_ledgers(environment, settings, self.connect) as both:
            yield both


def _logs_at(bookkeeper: str) -> str:
    """Where in ZooKeeper the records of the logs on these ledgers are: those of BookKeeper's own
    chroot where 0.1.0 has all of them, others beside their ledgers.
    """
    hosts, _, chroot = bookkeeper.partition("/")
    return hosts if chroot in ("", _USUAL_CHROOT) else f"{hosts}/{chroot}-logs"


DLOG_TARGET = DlogTarget()


def position_text(position: Position) -> str:
    """As LEDGER:ENTRY:BATCH."""
    return ":".join(str(each) for each in entry_of_position(position))


def position_of(text: str) -> Position:
    """LEDGER:ENTRY[:BATCH], or the same as one decimal number."""
    if ":" not in text:
        return parse_position(text)
    parts = text.split(":")
    if len(parts) > 3 or not all(each.isascii() and each.isdecimal() for each in parts):
        raise InvalidInput(f"position {text[:60]!r}: write LEDGER:ENTRY or LEDGER:ENTRY:BATCH")
    ledger, entry, *batch = map(int, parts)
    return position_of_entry(ledger=ledger, entry=entry, batch=batch[0] if batch else 0)


app = App(name="dlog", help_format="plaintext")
_log = get_logger(__name__)

_READ_BYTES = 1 << 20
_WAIT_MS = 10_000
_APPENDED_AT_ONCE = 4_096
_From = Annotated[
    str | None,
    Parameter(name="--from", help="Where to begin: LEDGER:ENTRY[:BATCH], or as a number."),
]
_LEDGERS = {
    "ledger": "ledger",
    "state": "state",
    "entries": "entries",
    "bytes": "bytes",
    "made": "made",
}


@app.command
def create(
    name: str,
    *,
    retention_age: Annotated[
        str, Parameter(help="Ledgers older than this are freed, such as 7d; 0: never.")
    ] = "0",
    retention_bytes: Annotated[
        str, Parameter(help="The oldest ledgers above this are freed, such as 10GiB; 0: never.")
    ] = "0",
    target: DlogTarget = DLOG_TARGET,
) -> int:
    """Make a log, replicated and rotated as the section dlog of the settings says."""
    retention = {
        "retention_ms": quantity_of("--retention-age", retention_age, MILLISECONDS),
        "retention_bytes": quantity_of("--retention-bytes", retention_bytes, BYTES),
    }

    async def work(dlogs: Dlogs, settings: Settings) -> int:
        await dlogs.create(name, replace(settings.dlog.log_config(), **retention))
        return await _show(dlogs, name, target)

    return target.with_dlogs(work)


@app.command(name="list")
def list_logs(
    *,
    prefix: Annotated[str, Parameter(help="Only those whose names begin so.")] = "",
    target: DlogTarget = DLOG_TARGET,
) -> int:
    """List the logs."""

    async def work(dlogs: Dlogs, _: Settings) -> int:
        rows = [{"log": each} for each in await dlogs.names(prefix)]
        write_rows(rows, {"log": "log"}, target.output)
        return 0

    return target.with_dlogs(work)


@app.command
def append(
    name: str,
    *data: Annotated[
        str,
        Parameter(allow_leading_hyphen=True, help="A message each; none for lines of the input."),
    ],
    target: DlogTarget = DLOG_TARGET,
) -> int:
    """Take the log over, append messages, and tell where they stand.

    Whoever wrote the log before is fenced: a gateway takes it back with its next append.
    """
    for each in data:
        if each.startswith("--"):
            raise InvalidInput(f"unknown option {each}: a message like this comes by the input")

    async def work(dlogs: Dlogs, settings: Settings) -> int:
        async with taken_over(dlogs, name) as writer:
            appender = _Appender(writer, settings.dlog.timeout_ms)
            if data:
                await appender.append([each.encode(errors="surrogateescape") for each in data])
            else:
                await appender.append_lines()
        rows = [_place(each) for each in appender.positions]
        write_rows(rows, {"at": "at", "position": "position"}, target.output)
        return 0

    return target.with_dlogs(work)


class _Appender:
    """Some at once; each time has its bound."""

    def __init__(self, writer: LogWriter, timeout_ms: int) -> None:
        self._writer = writer
        self._timeout_ms = timeout_ms
        self.positions: list[Position] = []

    async def append(self, messages: Sequence[Buffer]) -> None:
        for first in range(0, len(messages), _APPENDED_AT_ONCE):
            futures: list[asyncio.Future[Position]] = []
            refusal: RaftwoodError | None = None
            for each in messages[first : first + _APPENDED_AT_ONCE]:
                try:
                    futures.append(self._writer.submit(each))
                except RaftwoodError as error:
                    refusal = error
                    break
            # Those before the one that was refused may be acked yet.
            await self._settle(futures)
            if refusal is not None:
                raise self._told(refusal) from refusal

    async def _settle(self, futures: "Sequence[asyncio.Future[Position]]") -> None:
        if not futures:
            return
        done, _ = await asyncio.wait(futures, timeout=self._timeout_ms / 1000)
        for future in futures:
            if future not in done:
                problem = self._writer.problem
                raise Unavailable(
                    f"log {self._writer.name!r} took nothing for {self._timeout_ms} ms "
                    f"(dlog.timeout_ms){': ' if problem else ''}{problem}: {self._stored()}"
                )
            error = future.exception()
            if isinstance(error, RaftwoodError):
                for each in done:
                    each.exception()  # Nobody looks at the others.
                raise self._told(error) from error
            self.positions.append(future.result())

    def _told(self, error: RaftwoodError) -> RaftwoodError:
        return type(error)(f"{error.message}: {self._stored()}")

    def _stored(self) -> str:
        """Acks are in order: what was not acked may be stored or not."""
        if not self.positions:
            return "0 messages are stored for certain: read the log, then append what is not there"
        return (
            f"{len(self.positions)} messages are stored for certain, up to position "
            f"{position_text(self.positions[-1])}: read the log behind it, then append what is not "
            "there"
        )

    async def append_lines(self) -> None:
        with StatusLine("appending") as progress:
            async for lines in line_batches(opened_input(None), line_bytes_max=4 << 20):
                await self.append(lines)
                progress.say(f"{len(self.positions):,} messages are stored")


def _place(position: Position) -> dict[str, Any]:
    # JSON has no integers of 128 bits.
    return {"at": position_text(position), "position": str(position)}


@app.command
def read(
    name: str,
    *,
    first: _From = None,
    count: Annotated[int | None, Parameter(help="End after so many messages.")] = None,
    target: DlogTarget = DLOG_TARGET,
) -> int:
    """Print a log's messages, a line each, up to its end; with JSON, one object per line."""

    async def work(dlogs: Dlogs, _: Settings) -> int:
        meta = (await dlogs.metas.read(name)).meta
        start = _start(first, meta.first)
        problem: Unavailable | None = None
        try:
            end = (await dlogs.info(name)).next
        except Unavailable as error:
            # The ledgers before the last one can be read all the same.
            end, problem = position_of_entry(ledger=max(meta.last_ledger, 0), entry=0), error
        if start > end and problem is None:
            raise OutOfRange(
                f"log {name!r} ends at {position_text(end)}: there is nothing at {first}"
            )
        shown = await _print(dlogs, name, start, count, target, end=end)
        if problem is not None and shown != count:
            raise problem
        return 0

    return target.with_dlogs(work)


@app.command
def tail(
    name: str,
    *,
    first: _From = None,
    count: Annotated[int | None, Parameter(help="End after so many messages.")] = None,
    target: DlogTarget = DLOG_TARGET,
) -> int:
    """Print messages as they come, from now on or from a position on, until it is interrupted.

    It ends where the log was ended for ever.
    """

    async def work(dlogs: Dlogs, _: Settings) -> int:
        info = await dlogs.info(name)
        await _print(dlogs, name, _start(first, info.next), count, target, end=None)
        return 0

    return target.with_dlogs(work)


def _start(given: str | None, default: Position) -> Position:
    return default if given is None else position_of(given)


async def _print(
    dlogs: Dlogs,
    name: str,
    start: Position,
    count: int | None,
    target: DlogTarget,
    *,
    end: Position | None,
) -> int:
    """How many were shown."""
    total = 0
    if count is not None and count < 1:
        raise InvalidInput(f"--count {count} shows nothing: give 1 or more")
    reader = await dlogs.open_reader(name)
    try:
        while end is None or start < end:
            wait_ms = _WAIT_MS if end is None else 0
            found, following = await reader.read(start, bytes_max=_READ_BYTES, wait_ms=wait_ms)
            shown = found if count is None else found[:count]
            write_records(map(_shown, shown), ("at", "data"), target.output)
            total += len(shown)
            if count is not None:
                count -= len(shown)
                if not count:
                    break
            if following == start and (end is not None or await reader.is_at_end(start)):
                break
            start = following
        return total
    finally:
        await reader.close()


def _shown(stored: StoredMessage) -> dict[str, Any]:
    payload = bytes(stored.message.payload)
    shown = _place(stored.position) | {"time": time_text(stored.time_ms / 1000)}
    try:
        return shown | {"data": payload.decode()}
    except UnicodeDecodeError:
        return shown | {"data": payload.decode(errors="backslashreplace"), "base64": payload}


@app.command
def info(name: str, *, target: DlogTarget = DLOG_TARGET) -> int:
    """Show a log's bounds and its ledgers."""

    async def work(dlogs: Dlogs, _: Settings) -> int:
        return await _show(dlogs, name, target)

    return target.with_dlogs(work)


async def _show(dlogs: Dlogs, name: str, target: DlogTarget) -> int:
    meta = (await dlogs.metas.read(name)).meta
    following: str | None = None
    try:
        following = position_text((await dlogs.info(name)).next)
    except Unavailable as error:
        _log.warning("end_unknown", log=name, reason=error.message)
    ledgers: list[dict[str, Any]] = [
        {
            "ledger": each.ledger,
            "state": _state(each),
            "entries": each.last_entry + 1 if each.is_closed else None,
            "bytes": each.bytes if each.is_closed else None,
            "made": time_text(each.created_ms / 1000),
        }
        for each in meta.ledgers
    ]
    config = meta.config.ledger
    about = {
        "log": name,
        "state": meta.state.value,
        "first": position_text(meta.first),
        "next": following,
        "takeovers": meta.takeovers,
        "ensemble": config.ensemble,
        "write_quorum": config.write_quorum,
        "ack_quorum": config.ack_quorum,
        "digest": config.digest.value,
        "retention_ms": meta.config.retention_ms,
        "retention_bytes": meta.config.retention_bytes,
        "properties": meta.properties,
    }
    if target.output == "json":
        write_json(about | {"ledgers": ledgers})
        return 0
    rows = [{"name": key.replace("_", " "), "value": value} for key, value in about.items()]
    write_rows(rows, {"name": "property", "value": "value"}, "text")
    sizes = [
        each | {"bytes": None if each["bytes"] is None else size_text(each["bytes"])}
        for each in ledgers
    ]
    write_rows(sizes, _LEDGERS, "text")
    return 0


def _state(info: LedgerInfo) -> str:
    if info.is_offloaded:
        return "offloaded"
    return "closed" if info.is_closed else "open"


@app.command
def rotate(name: str, *, target: DlogTarget = DLOG_TARGET) -> int:
    """Take the log over and go on in a new ledger; the one before is closed."""

    async def work(dlogs: Dlogs, _: Settings) -> int:
        async with taken_over(dlogs, name) as writer:
            await writer.rotate()
        return await _show(dlogs, name, target)

    return target.with_dlogs(work)


@app.command
def shrink(
    name: str,
    *,
    before: Annotated[
        str, Parameter(help="The first position to keep: LEDGER:ENTRY[:BATCH], or as a number.")
    ],
    target: DlogTarget = DLOG_TARGET,
) -> int:
    """Let go of all before a position; whole ledgers are deleted, but for the last two."""
    position = position_of(before)

    async def work(dlogs: Dlogs, _: Settings) -> int:
        await dlogs.shrink(name, position)
        return await _show(dlogs, name, target)

    return target.with_dlogs(work)


@app.command
def offload(name: str, *, target: DlogTarget = DLOG_TARGET) -> int:
    """Move closed ledgers to where `dlog.offload` says, all but the last two, as gateways do."""

    async def work(dlogs: Dlogs, _: Settings) -> int:
        with StatusLine(f"moving closed ledgers of {name}"):
            rows = [{"ledger": each} for each in await dlogs.offload(name)]
        write_rows(rows, {"ledger": "offloaded ledger"}, target.output)
        return 0

    return target.with_dlogs(work)


@app.command
def fence(name: str, *, target: DlogTarget = DLOG_TARGET) -> int:
    """Take the log from whoever writes it, and let it go: from here on that one acks nothing."""

    async def work(dlogs: Dlogs, _: Settings) -> int:
        async with taken_over(dlogs, name) as writer:
            took = writer.take_over
        row = {
            "log": name,
            "interruption_ms": round(took.interruption_ms, 1),
            "fence_ms": round(took.fence_ms, 1),
        }
        columns = {
            "log": "fenced log",
            "interruption_ms": "interruption in ms",
            "fence_ms": "of it fencing",
        }
        write_rows([row], columns, target.output)
        return 0

    return target.with_dlogs(work)
