"""How a process that ships files is: its status file, its metrics, `raftwood clogs status`."""

import os
import time
from functools import partial
from typing import Annotated, Final

import msgspec
from cyclopts import App, Parameter

from raftwood.base.errors import InvalidInput, NotFound
from raftwood.base.metrics import Metrics
from raftwood.cli.output import Format, size_text, write_json, write_line, write_rows
from raftwood.clogs.client.shipper import AsyncShipper
from raftwood.clogs.client.status import ServerCounters, ServerStatus, ShipperStatus
from raftwood.clogs.tail.followed_file import TailStatus
from raftwood.clogs.tail.tailer import Tailer

STATUS_FILE: Final = "status.json"
"""In the state folder."""
COUNTERS: Final = {
    "lines": "Lines stored.",
    "bytes": "Bytes of files stored.",
    "batches": "Batches stored.",
    "resumed_batches": "Batches of an earlier run that were sent again.",
    "unknown_batches": "Batches of an earlier run that may be stored or not.",
    "unknown_bytes": "Bytes of batches that may be stored or not.",
    "cuts": "Files that were cut, and begun anew.",
    "cut_bytes": "Bytes that were never read, as their file was cut or lost.",
    "missed_files": "Files that were made and deleted before they could be opened.",
    "cut_lines": "Cuts made in lines that are too long.",
    "retries": "Deliveries that failed and were tried again.",
    "troubles": "Failures to read files or to write the state.",
    "refused_files": "Files that are not followed.",
}

"""Of a tailer, by their names."""
_GAUGES: Final = {
    "files": "Files that are followed.",
    "open_files": "Of these, open.",
    "missing_files": "Of these, not found again since the start.",
    "behind_bytes": "In files and not stored yet.",
}


class ShipStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What `status.json` says."""

    process: int
    time_ns: int
    """When it was written."""
    tail: TailStatus
    shipper: ShipperStatus
    masked: dict[str, int]
    """Values that each rule has masked."""


def write_status(path: str, status: ShipStatus) -> None:
    """Whoever reads the file finds it whole."""
    with open(f"{path}.new", "wb") as file:
        file.write(msgspec.json.encode(status))
    os.replace(f"{path}.new", path)


def read_status(path: str) -> ShipStatus:
    """OSError where there is none, `msgspec.DecodeError` for what is none."""
    with open(path, "rb") as file:
        return msgspec.json.decode(file.read(), type=ShipStatus)


def show_ship(metrics: Metrics, tailer: Tailer, shipper: AsyncShipper) -> None:
    """Register all that there is to see."""
    counters, servers = tailer.counters, shipper.counters.servers
    for name, help_text in COUNTERS.items():
        metrics.pull_counter(f"ship_{name}_total", help_text, partial(getattr, counters, name))
    for name, help_text in _GAUGES.items():
        metrics.pull_gauge(f"ship_{name}", help_text, partial(_gauge, tailer, name))
    for name in ("sent", "acked", "retried"):
        metrics.pull_counters(
            f"ship_server_lines_{name}_total",
            f"Lines {name}.",
            "server",
            partial(_by_server, servers, name),
        )


def _gauge(tailer: Tailer, name: str) -> float:
    value: int = getattr(tailer.status(), name)
    return value


def _by_server(servers: dict[str, ServerCounters], name: str) -> dict[str, float]:
    return {server: getattr(counters, name) for server, counters in servers.items()}


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
