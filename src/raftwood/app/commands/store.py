"""`raftwood store`: look into a data folder that no process uses, without changing it."""

from collections.abc import Callable, Coroutine
from typing import Annotated, Any, TypeVar

import msgspec
from cyclopts import App, Parameter

from raftwood.app.event_loop import run
from raftwood.app.output import Format, write_line, write_rows
from raftwood.base.environment import Environment
from raftwood.base.errors import InvalidInput
from raftwood.disk.inspection import KIND_NAMES, StoreReport, check_store, visit_records
from raftwood.disk.real_environment import real_environment
from raftwood.disk.segment_log.format import offset_of, segment_of
from raftwood.disk.segment_log.recovery import REMEDY, Damage
from raftwood.disk.segment_log.scan import ScannedRecord

app = App(name="store", help_format="plaintext")

Result = TypeVar("Result")
_Output = Annotated[Format, Parameter(name="--format", help="How to print it.")]
_Folder = Annotated[str, Parameter(help="A store's data folder.")]

_GROUP_COLUMNS = {
    "group": "group",
    "head": "first",
    "next_index": "next",
    "runs": "runs",
    "state_bytes": "state bytes",
}
_RECORD_COLUMNS = {
    "segment": "segment",
    "offset": "offset",
    "kind": "kind",
    "group": "group",
    "term": "term",
    "index": "index",
    "count": "count",
    "payload_bytes": "bytes",
}


@app.command
def check(folder: _Folder, *, output: _Output = "text") -> int:
    """Verify every checksum in a data folder; the exit status is 1 if anything is damaged."""
    report = _with_environment(lambda environment: check_store(environment, folder))
    if output == "json":
        write_line(msgspec.json.format(msgspec.json.encode(report), indent=2).decode())
    else:
        _write_report(report)
    return 0 if report.is_intact else 1


@app.command
def dump(
    folder: _Folder,
    *,
    group: Annotated[int | None, Parameter(help="Only this group's records.")] = None,
    limit: Annotated[int, Parameter(help="How many records at the most.")] = 1000,
    payload: Annotated[bool, Parameter(help="Show the payloads as hexadecimal digits.")] = False,
    output: _Output = "text",
) -> int:
    """List the records of a data folder's log, in log order."""
    if limit < 1:
        raise InvalidInput(f"--limit {limit} shows nothing: give 1 or more")
    rows: list[dict[str, Any]] = []

    def take(record: ScannedRecord) -> None:
        if len(rows) < limit and group in (None, record.group):
            rows.append(_row(record, payload=payload))

    damages = _with_environment(lambda environment: visit_records(environment, folder, take))
    columns = _RECORD_COLUMNS | ({"payload": "payload"} if payload else {})
    write_rows(rows, columns, output)
    if output == "text":
        _write_damages(damages)
    return 1 if damages else 0


def _row(record: ScannedRecord, *, payload: bool) -> dict[str, Any]:
    row = {
        "segment": segment_of(record.position),
        "offset": offset_of(record.position),
        "kind": KIND_NAMES[record.kind],
        "group": record.group,
        "term": record.term,
        "index": record.index,
        "count": record.count,
        "payload_bytes": len(record.payload),
    }
    return row | ({"payload": record.payload.hex()} if payload else {})


def _write_report(report: StoreReport) -> None:
    identity = report.identity
    write_line(f"store {identity.store} of cluster {identity.cluster} in {report.path}")
    write_line(
        f"{report.segments} segments, {report.log_bytes:,} bytes ({report.live_bytes:,} live), "
        f"{report.flushes:,} flushes, {report.records:,} records, {len(report.groups)} groups"
    )
    if report.groups:
        write_rows([msgspec.structs.asdict(each) for each in report.groups], _GROUP_COLUMNS, "text")
    _write_damages(report.damages)
    if report.is_intact:
        write_line("intact: every checksum matches")


def _write_damages(damages: list[Damage]) -> None:
    for damage in damages:
        write_line(f"DAMAGED: {damage.path} at offset {damage.offset}: {damage.reason}")
    if damages:
        write_line(f"remedy: {REMEDY.partition(';')[0]}")


def _with_environment(
    work: Callable[[Environment], Coroutine[Any, Any, Result]],
) -> Result:
    with real_environment() as environment:
        return run(work(environment))
