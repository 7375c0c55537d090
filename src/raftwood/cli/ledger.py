"""`raftwood ledger`: the ledgers that logs are made of."""

from typing import Annotated, Any

from cyclopts import App, Parameter

from raftwood.base.errors import InvalidInput, PermissionDenied
from raftwood.cli.dlog import DLOG_TARGET, DlogTarget
from raftwood.cli.output import StatusLine, size_text, time_text, write_json, write_rows
from raftwood.dlog.errors import NoSuchLedger
from raftwood.dlog.ledgers.metadata import LedgerMetadata
from raftwood.dlog.ledgers.seams import LedgerStore

app = App(name="ledger", help_format="plaintext")

_COLUMNS = {
    "ledger": "ledger",
    "state": "state",
    "last_entry": "last entry",
    "bytes": "bytes",
    "ensemble": "bookies",
    "away": "away",
    "made": "made",
}


@app.command(name="list")
def list_ledgers(
    *,
    first: Annotated[int, Parameter(name="--from", help="The number to begin with.")] = 0,
    count: Annotated[int, Parameter(help="How many to show at the most.")] = 100,
    target: DlogTarget = DLOG_TARGET,
) -> int:
    """List the ledgers, in order of their numbers.

    One with a bookie that is away has a copy less: see raftwood bookie status.
    """
    if count < 1:
        raise InvalidInput(f"--count {count} shows nothing: give 1 or more")

    async def work(ledgers: LedgerStore) -> int:
        rows: list[dict[str, Any]] = []
        running = {each.id for each in await ledgers.bookies()}
        async for ledger in ledgers.ledgers(first=first):
            if len(rows) >= count:
                break
            try:
                metadata = await ledgers.info(ledger)
            except NoSuchLedger:
                continue  # it was deleted meanwhile
            named = sorted({each for part in metadata.segments for each in part.bookies})
            away = [each for each in named if each not in running]
            rows.append(_row(ledger, metadata) | {"away": away})
        _write(rows, target)
        return 0

    return target.with_ledgers(work)


@app.command
def show(ledger: int, *, target: DlogTarget = DLOG_TARGET) -> int:
    """Show a ledger: its state, how it is replicated, and which bookies have which entries."""

    async def work(ledgers: LedgerStore) -> int:
        return _show(ledger, await ledgers.info(ledger), target)

    return target.with_ledgers(work)


@app.command
def recover(
    ledger: int,
    *,
    password: Annotated[str, Parameter(help="The ledger's, if it has one.")] = "",
    target: DlogTarget = DLOG_TARGET,
) -> int:
    """Fence a ledger's writer, find out what it holds, and close it; nothing where it is closed."""

    async def work(ledgers: LedgerStore) -> int:
        if (await ledgers.info(ledger)).config.password != password.encode():
            raise PermissionDenied(f"ledger {ledger} has another password: give it by --password")
        with StatusLine(f"recovering ledger {ledger}"):
            reader = await ledgers.open(ledger, recover=True, password=password.encode())
            await reader.close()
        return _show(ledger, await ledgers.info(ledger), target)

    return target.with_ledgers(work)


def _row(ledger: int, metadata: LedgerMetadata) -> dict[str, Any]:
    return {
        "ledger": ledger,
        "state": metadata.state.value,
        "last_entry": metadata.last_entry if metadata.is_closed else None,
        "bytes": metadata.length_bytes if metadata.is_closed else None,
        "ensemble": list(metadata.segments[-1].bookies),
        "made": time_text(metadata.created_ms / 1000),
    }


def _write(rows: list[dict[str, Any]], target: DlogTarget) -> None:
    if target.output == "text":
        rows = [
            row
            | {
                "bytes": None if row["bytes"] is None else size_text(row["bytes"]),
                "away": ", ".join(row["away"]) or None,
            }
            for row in rows
        ]
    write_rows(rows, _COLUMNS, target.output)


def _show(ledger: int, metadata: LedgerMetadata, target: DlogTarget) -> int:
    config = metadata.config
    about = _row(ledger, metadata) | {
        "write_quorum": config.write_quorum,
        "ack_quorum": config.ack_quorum,
        "digest": config.digest.value,
        "has_password": bool(config.password),
        "segments": [
            {"first": each.first, "bookies": list(each.bookies)} for each in metadata.segments
        ],
    }
    if target.output == "json":
        write_json(about)
        return 0
    rows = [{"name": key.replace("_", " "), "value": value} for key, value in about.items()]
    write_rows(rows, {"name": "property", "value": "value"}, "text")
    return 0
