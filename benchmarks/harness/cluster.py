"""Three processes of a system on loopback, with their data on a real disk."""

import contextlib
import os
import pathlib
import shutil
import socket
import subprocess
import tempfile
import time
from types import TracebackType
from typing import IO, Self

import psutil

from benchmarks.harness.system import NODES, Layout, System

IN_MEMORY = {"tmpfs", "ramfs"}
LEADERS_TIMEOUT_S = 60.0
LEADERS_POLL_S = 0.02
SETTLED_S = 1.0
LOG_TAIL_BYTES = 2000
FREE_BYTES_MIN = 10 << 30
"""A benchmark must not fill the disk that others work on."""


class ClusterFailed(Exception):
    """A node died, or no leader came; says what the node's log ends with."""


def check_disk(folder: pathlib.Path) -> str:
    """The kind of file system there; refuses one where a sync costs nothing."""
    folder.mkdir(parents=True, exist_ok=True)
    asked = ["stat", "-f", "-c", "%T", str(folder)]
    kind = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    if kind in IN_MEMORY:
        raise ClusterFailed(f"{folder} is on {kind}, where a sync is free: name another --folder")
    return kind


def check_space(folder: str) -> None:
    free = shutil.disk_usage(folder).free
    if free < FREE_BYTES_MIN:
        raise ClusterFailed(
            f"{folder} has {free >> 20} MB left, below the {FREE_BYTES_MIN >> 20} MB that a "
            "benchmark leaves free: make room or name another --folder"
        )


class Cluster:
    """A context: the nodes run inside, and their data is gone afterwards."""

    def __init__(self, system: System, *, folder: pathlib.Path, groups: int = 1) -> None:
        self.system = system
        ports = _free_ports(2 * NODES)
        self.layout = Layout(
            folder=tempfile.mkdtemp(prefix=f"{system.name}-", dir=folder),
            groups=groups,
            client_ports=ports[:NODES],
            peer_ports=ports[NODES:],
        )
        self._processes: list[subprocess.Popen[bytes]] = []
        self._logs: list[IO[bytes]] = []

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self._clear()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._clear()

    def start(self) -> float:
        """Start the nodes; the seconds until each group has a leader."""
        began = time.monotonic()
        for node in range(NODES):
            os.makedirs(self.layout.node_folder(node), exist_ok=True)
            self._run(self.system.node_command(self.layout, node))
        self._wait_for_leaders(began + LEADERS_TIMEOUT_S)
        return time.monotonic() - began

    def _run(self, command: list[str]) -> None:
        log = open(self.layout.node_log(len(self._processes)), "ab")  # noqa: SIM115
        self._logs.append(log)
        self._processes.append(
            subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        )

    def stop(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
        for log in self._logs:
            log.close()
        self._processes, self._logs = [], []

    def leader(self) -> int:
        """The node that leads the first group."""
        first = self.system.leaders(self.layout)[0]
        if first is None:
            raise ClusterFailed(f"{self.system.name} has lost its leader")
        return first

    def settle(self) -> None:
        """Wait until no group changes its leader any more: many elections take turns."""
        until = time.monotonic() + LEADERS_TIMEOUT_S
        before: list[int | None] = []
        while time.monotonic() < until:
            now = self.system.leaders(self.layout)
            if now == before and None not in now:
                return
            before = now
            time.sleep(SETTLED_S)
        raise ClusterFailed(
            f"{self.system.name}: leaders of {self.layout.groups} groups still change after "
            f"{LEADERS_TIMEOUT_S:.0f} s"
        )

    def process_id(self, node: int) -> int:
        return self._processes[node].pid

    def cpu_s(self) -> list[float]:
        """The CPU that each node has used so far."""
        times = [psutil.Process(process.pid).cpu_times() for process in self._processes]
        return [float(each.user + each.system) for each in times]

    def resident_bytes(self) -> list[int]:
        return [int(psutil.Process(each.pid).memory_info().rss) for each in self._processes]

    def _wait_for_leaders(self, until: float) -> None:
        while time.monotonic() < until:
            check_space(self.layout.folder)
            for node, process in enumerate(self._processes):
                if process.poll() is not None:
                    raise ClusterFailed(f"{self.system.name}, node {node} ended: {self._end(node)}")
            with contextlib.suppress(OSError):
                leaders = self.system.leaders(self.layout)
                if len(leaders) == self.layout.groups and None not in leaders:
                    return
            time.sleep(LEADERS_POLL_S)
        raise ClusterFailed(
            f"{self.system.name} has not elected all leaders of {self.layout.groups} groups in "
            f"{LEADERS_TIMEOUT_S:.0f} s: {self._end(0)}"
        )

    def _end(self, node: int) -> str:
        return (
            pathlib.Path(self.layout.node_log(node))
            .read_bytes()[-LOG_TAIL_BYTES:]
            .decode(errors="replace")
        )

    def _clear(self) -> None:
        self.stop()
        shutil.rmtree(self.layout.folder)


def _free_ports(count: int) -> tuple[int, ...]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return tuple(each.getsockname()[1] for each in sockets)
