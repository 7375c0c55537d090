"""How a process that ships files is: as a file for people and tools, and as metrics."""

import os
from functools import partial
from typing import Final

import msgspec

from raftwood.base.metrics import Metrics
from raftwood.clogs.client.counters import ServerCounters
from raftwood.clogs.client.shipper import AsyncShipper
from raftwood.clogs.client.status import ShipperStatus
from raftwood.clogs.tail.counters import TailStatus
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
