"""What a start of a log store costs that has data, beside the start of an empty one.

    python -m benchmarks.log_restart [--records 1000000] [--in-flight 64] [--rounds 3]

CPU of the process until it is ready, both in one run: after an orderly end, and after a SIGKILL.
With one record in flight each has a flush of its own, the most that a start can have to read.
"""

import argparse
import asyncio
import pathlib
import shutil
import signal
import socket
import statistics
import subprocess
import tempfile
import time

import psutil
import rich.console
import rich.table

from benchmarks.harness.cluster import check_disk, check_space
from benchmarks.harness.system import Layout
from benchmarks.logservice.logservice_system import (
    CLIENT_NETWORK,
    LogserviceSystem,
)
from raftwood.disk.real_environment import real_environment
from raftwood.logservice.client.log_client import AsyncLogClient

GOAL = 1.3
RECORD = bytes(100)
READY_S_MAX = 300.0
TIMEOUT_MS = 60_000
ENDS = {"after SIGTERM": signal.SIGTERM, "after SIGKILL": signal.SIGKILL}
FOLDER = pathlib.Path(".cache/bench")


class Store:
    """One store's process, through all its lives."""

    def __init__(self, folder: str) -> None:
        self.layout = Layout(
            folder=folder, groups=1, client_ports=(_free_port(),), peer_ports=(_free_port(),)
        )
        self._ready = pathlib.Path(folder, "ready")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, name: str) -> float:
        """The CPU until it is ready, in seconds; `name` is that of its data folder."""
        self._ready.unlink(missing_ok=True)
        command = LogserviceSystem().node_command(self.layout, 0)
        command += [
            f"--set=node.data_folder={self.layout.folder}/{name}",
            f"--ready-file={self._ready}",
        ]
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        until = time.monotonic() + READY_S_MAX
        while not self._ready.exists():
            if self._process.poll() is not None or time.monotonic() > until:
                raise SystemExit("the store does not start")
            time.sleep(0.01)
        used = psutil.Process(self._process.pid).cpu_times()
        return float(used.user + used.system)

    def end(self, how: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait()
            self._process = None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def fill(store: Store, records: int, in_flight: int) -> None:
    with real_environment() as environment:
        async with await AsyncLogClient.connect(
            environment,
            CLIENT_NETWORK,
            store.layout.client_addresses(),
            shard=1,
            timeout_ms=TIMEOUT_MS,
        ) as client:

            async def append(count: int) -> None:
                for _ in range(count):
                    await client.append(RECORD)

            await asyncio.gather(*(append(records // in_flight) for _ in range(in_flight)))


def measure(folder: str, records: int, in_flight: int, rounds: int) -> dict[str, list[float]]:
    store = Store(folder)
    cpu: dict[str, list[float]] = {name: [] for name in ("empty", *ENDS)}
    try:
        store.start("full")
        asyncio.run(fill(store, records, in_flight))
        for number in range(rounds):
            store.end(signal.SIGTERM)
            cpu["empty"].append(store.start(f"empty-{number}"))
            store.end(signal.SIGTERM)
            store.start("full")
            for name, how in ENDS.items():
                store.end(how)
                cpu[name].append(store.start("full"))
    finally:
        store.end(signal.SIGKILL)
    return cpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--in-flight", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=pathlib.Path, default=FOLDER)
    options = parser.parse_args()
    check_disk(options.folder)
    check_space(str(options.folder))
    folder = tempfile.mkdtemp(prefix="restart-", dir=options.folder)
    try:
        cpu = measure(folder, options.records, options.in_flight, options.rounds)
    finally:
        shutil.rmtree(folder)
    shown = rich.table.Table(title=f"Start of a store with {options.records:,} records")
    for heading in ("start", "CPU s", "ratio", "goal"):
        shown.add_column(heading, justify="left" if heading == "start" else "right")
    empty = statistics.median(cpu["empty"])
    for name, taken in cpu.items():
        median = statistics.median(taken)
        goal = f"≤ {GOAL}×" if name != "empty" else ""
        shown.add_row(name, f"{median:.2f}", f"{median / empty:.2f}×", goal)
    rich.console.Console().print(shown)


if __name__ == "__main__":
    main()
