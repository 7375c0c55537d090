"""`raftwood ship` beside rsyslog and syslog-ng: the same file to a sink on loopback, in one run.

    python -m benchmarks.clogs.shipping [--megabytes 1000] [--rounds 3] [--systems NAMES]

What rsyslog and syslog-ng send is acknowledged by nobody and stored nowhere. `raftwood ship` is
measured with a receiver that counts as their sink does, though it acknowledges each batch, and
then with two that have each batch on disk, once, before they acknowledge it.
"""

import argparse
import os
import pathlib
import statistics
import tempfile
from collections.abc import Callable
from typing import Final

import msgspec
import psutil
import rich.console

from benchmarks.clogs import shipping_ours, shipping_peers
from benchmarks.clogs.shipping_lines import LogFile, make_log_file
from benchmarks.clogs.shipping_ours import Receiving
from benchmarks.clogs.shipping_process import Shipper, counting_sink
from benchmarks.clogs.shipping_sinks import Arrived
from benchmarks.harness.cluster import ClusterFailed, check_disk, check_space
from benchmarks.harness.system import NotAvailable
from benchmarks.peers.programs import CACHE

COUNTED: Final = "ship"
FILES: Final = "ship-files"
LOGSTORE: Final = "ship-logstore"
OURS: Final = (COUNTED, FILES, LOGSTORE)
PEERS: Final = (shipping_peers.RSYSLOG, shipping_peers.SYSLOG_NG)
SYSTEMS: Final = (*PEERS, *OURS)
_ABOUT: Final = {
    COUNTED: "`raftwood ship --once` to a receiver that counts and acknowledges, and stores "
    "nothing: the work of the peers' sink; checkpoints synced, LZ4",
    FILES: "the same to `raftwood standalone` with clogs.store = files: each batch synced in a "
    "plain file, once, before it is acknowledged",
    LOGSTORE: "the same to `raftwood standalone` with a logstore of one shard and one replica: "
    "each batch synced in its log, once, before it is acknowledged",
}


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """How much is shipped, and how often."""

    megabytes: int = 1000
    rounds: int = 3


QUICK: Final = Pace(megabytes=20, rounds=1)


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Of one system; CPU and memory are the shipper's alone, from its start to its end."""

    seconds: float
    """From the start of its process until the last line had arrived, or was stored."""
    megabytes_per_second: float
    lines_per_second: float
    cpu_s_per_gb: float
    sink_cpu_s_per_gb: float
    """Of whoever counts or stores the lines."""
    memory_mb: float
    """The most that was resident."""
    wire_share: float
    """Bytes sent for each byte of the file; 0 where nobody counted."""


class Results(msgspec.Struct, kw_only=True):
    """All figures of one run."""

    disk: str
    lines: int
    bytes: int
    systems: dict[str, str] = {}
    missing: dict[str, str] = {}
    failed: list[str] = []
    rounds: dict[str, list[Figures]] = {}
    loads: list[float] = []
    """Of the machine, a minute's average before each measurement."""

    def medians(self) -> dict[str, Figures]:
        return {name: _medians(rows) for name, rows in self.rounds.items()}


def compare(
    names: tuple[str, ...] = SYSTEMS,
    pace: Pace | None = None,
    *,
    folder: pathlib.Path = CACHE / "data",
    progress: Callable[[str], None] = print,
) -> Results:
    """All take turns, round after round, on one file that is in memory by then."""
    pace = pace or Pace()
    disk = check_disk(folder)
    check_space(str(folder))
    with tempfile.TemporaryDirectory(prefix="ship-", dir=folder) as own:
        progress(f"{pace.megabytes} MB of lines are made")
        file = make_log_file(pathlib.Path(own) / "access.log", pace.megabytes * 1_000_000)
        results = Results(disk=disk, lines=file.lines, bytes=file.bytes)
        for name in names:
            try:
                about = shipping_peers.describe(name) if name in PEERS else _ABOUT[name]
                results.systems[name] = about
            except NotAvailable as problem:
                results.missing[name] = str(problem)
        for number in range(1, pace.rounds + 1):
            for name in results.systems:
                progress(f"round {number}: {name}")
                results.loads.append(os.getloadavg()[0])
                try:
                    taken = measure(name, file, pathlib.Path(own))
                except (ClusterFailed, OSError) as problem:
                    results.failed.append(f"{name}: {problem}")
                else:
                    results.rounds.setdefault(name, []).append(taken)
    return results


def measure(name: str, file: LogFile, folder: pathlib.Path) -> Figures:
    """One system ships the file, in a folder of its own below this one."""
    with tempfile.TemporaryDirectory(dir=folder) as own:
        return _measure(name, file, pathlib.Path(own))


def _measure(name: str, file: LogFile, own: pathlib.Path) -> Figures:
    if name in PEERS:
        with counting_sink("lines", file.bytes) as sink:
            peer = shipping_peers.peer_command(name, own, path=file.path, port=sink.port)
            with Shipper(peer.command, peer.environment, own) as shipper:
                arrived = sink.arrived(shipper)
                shipper.end()
        check_arrived(name, file, arrived)
        return _figures(file, shipper, arrived.monotonic_s, arrived.cpu_s, arrived)
    if name == COUNTED:
        with counting_sink("receiver", file.lines) as sink:
            receiving = Receiving(address=f"127.0.0.1:{sink.port}")
            with _ours(receiving, file, own) as shipper:
                arrived = sink.arrived(shipper)
                shipper.wait()
        check_arrived(name, file, arrived)
        return _figures(file, shipper, arrived.monotonic_s, arrived.cpu_s, arrived)
    stored = str(own / "stored") if name == FILES else ""
    with shipping_ours.running_standalone(own, files_folder=stored) as receiving:
        server = psutil.Process(receiving.process)
        before = _cpu_s(server)
        with _ours(receiving, file, own) as shipper:
            shipper.wait()
        spent = _cpu_s(server) - before
        if stored and (size := os.path.getsize(f"{stored}/access.log")) != file.bytes:
            raise ClusterFailed(f"{name}: {size} of {file.bytes} bytes are stored")
    return _figures(file, shipper, shipper.ended_s, spent, None)


def _ours(receiving: Receiving, file: LogFile, own: pathlib.Path) -> Shipper:
    command = shipping_ours.ship_command(receiving, own / "state", file.path)
    return Shipper(command, shipping_ours.ship_environment(receiving), own)


def check_arrived(name: str, file: LogFile, arrived: Arrived) -> None:
    """`ClusterFailed` where a line is missing, or came twice."""
    if arrived.lines != file.lines:
        raise ClusterFailed(f"{name}: {arrived.lines} of {file.lines} lines arrived")


def _figures(
    file: LogFile, shipper: Shipper, last_s: float, sink_cpu_s: float, arrived: Arrived | None
) -> Figures:
    seconds, gigabytes = last_s - shipper.began_s, file.bytes / 1e9
    return Figures(
        seconds=seconds,
        megabytes_per_second=file.bytes / 1e6 / seconds,
        lines_per_second=file.lines / seconds,
        cpu_s_per_gb=shipper.cpu_s / gigabytes,
        sink_cpu_s_per_gb=sink_cpu_s / gigabytes,
        memory_mb=shipper.memory_bytes / 1e6,
        wire_share=0.0 if arrived is None else arrived.wire_bytes / file.bytes,
    )


def _medians(rows: list[Figures]) -> Figures:
    fields = Figures.__struct_fields__
    return Figures(
        **{each: statistics.median(getattr(row, each) for row in rows) for each in fields}
    )


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def main() -> None:
    from benchmarks.clogs.shipping_report import notes, tables  # noqa: PLC0415 (it needs this one)

    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--systems", default=",".join(SYSTEMS))
    parser.add_argument("--megabytes", type=int, default=Pace().megabytes)
    parser.add_argument("--rounds", type=int, default=Pace().rounds)
    parser.add_argument("--folder", type=pathlib.Path, default=CACHE / "data", help="on a disk")
    options = parser.parse_args()
    results = compare(
        tuple(options.systems.split(",")),
        Pace(megabytes=options.megabytes, rounds=options.rounds),
        folder=options.folder.resolve(),
    )
    console = rich.console.Console()
    for table in tables(results):
        console.print(table)
    for note in notes(results):
        console.print(note, markup=False)


if __name__ == "__main__":
    main()
