"""`raftwood store`: look into a data folder that no process uses, without changing it."""

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Annotated, Any, TypeVar

import msgspec
from cyclopts import App, Parameter

from raftwood.base.environment import Environment
from raftwood.base.errors import InvalidInput
from raftwood.cli.output import Format, StatusLine, write_line, write_rows
from raftwood.clogs.client.spool import CLUSTER as SPOOL
from raftwood.clogs.client.spool import check_spool
from raftwood.disk.inspection import (
    KIND_NAMES,
    FolderContent,
    RoleCheck,
    StoreReport,
    check_store,
    find_stores,
    plain_store,
    visit_records,
)
from raftwood.disk.real_environment import real_environment
from raftwood.disk.rocksdb import RocksFolders
from raftwood.disk.segment_log.format import offset_of, segment_of
from raftwood.disk.segment_log.recovery import Damage
from raftwood.disk.segment_log.scan import ScannedRecord
from raftwood.dlog.bookie.bookie import check_bookie
from raftwood.metastore.file_store import CLUSTER as METASTORE
from raftwood.metastore.file_store import check_file_store
from raftwood.raft.offline import check_raft_store, is_raft_store
from raftwood.server.event_loop import run
from raftwood.zeppelin.node.engine_folders import ENGINES_FOLDER
from raftwood.zeppelin.node.inspection import check_node, is_node

_NUMBERLESS = 0
"""The number in the identity of bookies and nodes, which have none."""


def role_of(content: FolderContent) -> RoleCheck:
    """By what is in the folder first: a cluster of stores may have any name."""
    identity = content.identity
    if identity is not None and identity.store == _NUMBERLESS:
        if is_node(content):
            engines = RocksFolders(f"{content.path}/{ENGINES_FOLDER}")
            return partial(check_node, engines=engines)
        return check_bookie
    if is_raft_store(content):
        return check_raft_store
    if identity is not None and identity.cluster == SPOOL:
        return check_spool
    if identity is not None and identity.cluster == METASTORE:
        return check_file_store
    return plain_store


app = App(name="store", help_format="plaintext")

Result = TypeVar("Result")
_Output = Annotated[Format, Parameter(name="--format", help="How to print it.")]
_Folder = Annotated[str, Parameter(help="The data folder of a store, a bookie, a node or a spool.")]

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
def check(
    folder: Annotated[
        str,
        Parameter(
            help="A data folder, of a store, a bookie, a node, a spool; or one that has several."
        ),
    ],
    *,
    output: _Output = "text",
) -> int:
    """Verify all files of a data folder, and that what they refer to is there.

    It reads the log, snapshots, engines and all else, changes nothing, and names what is damaged;
    the exit status is 1 then. A folder of several, as a standalone's, is checked one by one; as
    JSON these are a list.
    """
    reports = _with_environment(lambda environment: _check_all(environment, folder))
    if output == "json":
        shown = reports[0] if len(reports) == 1 else reports
        write_line(msgspec.json.format(msgspec.json.encode(shown), indent=2).decode())
    else:
        for report in reports:
            _write_report(report)
    return 0 if all(report.is_intact for report in reports) else 1


async def _check_all(environment: Environment, folder: str) -> list[StoreReport]:
    paths = await find_stores(environment, folder)
    reports = []
    with StatusLine("checking") as progress:
        for number, path in enumerate(paths, 1):
            progress.say(f"checking {path}, {number} of {len(paths)}")
            reports.append(await check_store(environment, path, role_of))
    return reports


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
        if damages:
            write_line(f"remedy: see 'raftwood store check {folder}'")
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
    write_line(f"{report.role} in {report.path}")
    write_line(
        f"{report.segments} segments, {report.log_bytes:,} bytes ({report.live_bytes:,} live), "
        f"{report.flushes:,} flushes, {report.records:,} records, {len(report.groups)} groups"
    )
    if report.groups:
        write_rows([msgspec.structs.asdict(each) for each in report.groups], _GROUP_COLUMNS, "text")
    if report.checked:
        write_line(f"beside the log: {report.checked}")
    for path in report.left_over:
        write_line(f"left over: {path}: nothing refers to it")
    for note in report.notes:
        write_line(f"note: {note}; the next start writes it anew")
    _write_damages(report.damages)
    if report.is_intact:
        write_line("intact: every checksum matches, and all that is referred to is there")
    else:
        write_line(f"remedy: {report.remedy}")


def _write_damages(damages: list[Damage]) -> None:
    for damage in damages:
        place = "" if damage.offset is None else f" at offset {damage.offset}"
        write_line(f"DAMAGED: {damage.path}{place}: {damage.reason}")


def _with_environment(
    work: Callable[[Environment], Coroutine[Any, Any, Result]],
) -> Result:
    with real_environment() as environment:
        return run(work(environment))
