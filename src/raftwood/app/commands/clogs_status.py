"""`raftwood clogs status`: how a process that ships files is, by what it writes each second."""

import os
import time
from typing import Annotated, Final

import msgspec
from cyclopts import App, Parameter

from raftwood.app.output import Format, size_text, write_json, write_line, write_rows
from raftwood.app.ship_status import STATUS_FILE, ShipStatus, read_status
from raftwood.base.errors import InvalidInput, NotFound
from raftwood.clogs.client.status import ServerStatus

app = App(name="status", help_format="plaintext")

STALE_S: Final = 5.0
"""It is written each second: an older one is of a process that has ended, or hangs."""
_SERVERS: Final = {
    "server": "server",
    "address": "address",
    "state": "state",
    "round_trip_ms": "ping ms",
    "sent": "sent",
    "acked": "acked",
    "retried": "retried",
    "spooled": "spooled",
    "dropped": "dropped",
}
_FILES: Final = {
    "name": "file",
    "size": "bytes",
    "offset": "stored",
    "behind": "behind",
    "lines": "lines",
    "problem": "problem",
}


@app.default
def status(
    *,
    state: Annotated[str, Parameter(help="The state folder of `raftwood ship`.")],
    output: Annotated[Format, Parameter(name="--format", help="How to print it.")] = "text",
) -> int:
    """Show servers, lines sent, acked, retried, spooled and dropped by each, and how far files are.

    The exit status is 1 where lines wait: the process has ended or hangs, no server answers, or a
    file has a problem.
    """
    found = _read(f"{state}/{STATUS_FILE}", state)
    age_s = max(0.0, time.time() - found.time_ns / 1e9)
    problems = _problems(found, age_s)
    if output == "json":
        write_json(msgspec.to_builtins(found) | {"age_s": round(age_s, 1), "problems": problems})
    else:
        _tell(found, problems)
    return 1 if problems else 0


def _read(path: str, folder: str) -> ShipStatus:
    try:
        return read_status(path)
    except OSError as error:
        remedy = "give the --state of `raftwood ship`" if os.path.isdir(folder) else "give another"
        raise NotFound(f"{path} cannot be read ({error.strerror}): {remedy}") from error
    except msgspec.DecodeError as error:
        raise InvalidInput(f"{path} is no status of `raftwood ship`: {error}") from error


def _problems(found: ShipStatus, age_s: float) -> list[str]:
    problems = []
    if age_s > STALE_S:
        problems.append(f"process {found.process} wrote this {age_s:.0f} s ago: see that it runs")
    if found.shipper.version is None:
        problems.append("no configuration of the ring has come yet")
    if found.shipper.is_panic:
        problems.append("no server answers: all of them are tried, and lines wait")
    counters = found.shipper.counters
    if counters.dropped or counters.refused:
        problems.append(f"{counters.dropped} lines dropped, {counters.refused} refused for ever")
    problems += [f"{each.name}: {each.problem}" for each in found.tail.file_list if each.problem]
    return problems


def _tell(found: ShipStatus, problems: list[str]) -> None:
    for problem in problems:
        write_line(f"PROBLEM  {problem}")
    shipper, tail = found.shipper, found.tail
    write_line(
        f"process {found.process}, configuration {shipper.version}, {tail.files} files, "
        f"{tail.counters.lines} lines stored, {size_text(tail.behind_bytes)} behind"
    )
    if tail.counters.cut_bytes or tail.counters.missed_files:
        write_line(
            f"never read: {size_text(tail.counters.cut_bytes)} of files that were cut or lost, "
            f"{tail.counters.missed_files} files that were deleted at once"
        )
    if tail.scanned_because:
        write_line(f"folders are scanned for changes: {tail.scanned_because}")
    if shipper.servers:
        write_line("")
        write_rows([_server(each) for each in shipper.servers], _SERVERS, "text")
    if tail.file_list:
        write_line("")
        rows = [
            msgspec.to_builtins(each) | {"behind": size_text(each.behind_bytes)}
            for each in tail.file_list
        ]
        write_rows(rows, _FILES, "text")


def _server(each: ServerStatus) -> dict[str, object]:
    if each.is_isolated:
        state = f"isolated for {each.isolated_for_s} s"
    else:
        state = "connected" if each.is_connected else "not connected"
    row: dict[str, object] = {**msgspec.to_builtins(each), "state": state}
    row |= msgspec.to_builtins(each.counters)
    return row
