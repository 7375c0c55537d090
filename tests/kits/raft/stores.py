"""Stores as real processes, driven by the command line alone."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Self

COMMAND = (sys.executable, "-m", "raftwood.app")
_PROGRAM = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from raftwood.app.command_line import main; main()"
)
INTERRUPTIBLE = (sys.executable, "-c", _PROGRAM)
"""The same, where the tests run in the background: a shell has interrupts ignored there."""
START_SECONDS_MAX = 60.0


class Stores:
    """Use it as a context manager; no store outlives it."""

    def __init__(
        self,
        folder: Path,
        *,
        first: int = 3,
        more: int = 1,
        extra: str = "",
        service: tuple[str, ...] = ("serve",),
    ) -> None:
        self._folder = folder
        self._file = folder / "cluster.toml"
        self._extra = extra
        self._first = first
        self._service = service
        ports = _free_ports(first + more)
        self.addresses = {store: f"127.0.0.1:{port}" for store, port in enumerate(ports, 1)}
        self.processes: dict[int, subprocess.Popen[str]] = {}

    def __enter__(self) -> Self:
        secrets = subprocess.run(
            (*COMMAND, "config", "secret"), capture_output=True, text=True, check=True, timeout=60
        ).stdout
        members = [f"{store}={self.addresses[store]}" for store in range(1, self._first + 1)]
        self._file.write_text(
            f"[cluster]\nmembers = {json.dumps(members)}\n{secrets}\n{self._extra}"
        )
        self._file.chmod(0o600)
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes.values():
            process.kill()
        for process in self.processes.values():
            process.communicate()

    def start(self, *stores: int, joins: bool = False) -> None:
        for store in stores:
            if store in self.processes:
                self.processes[store].communicate()
            with open(self._folder / f"store-{store}.log", "ab") as log:
                self.processes[store] = subprocess.Popen(
                    (
                        *COMMAND,
                        *self._service,
                        f"--config={self._file}",
                        f"--set=node.store_id={store}",
                        f"--set=node.data_folder={self._folder / f'store-{store}'}",
                        f"--set=node.listen={self.addresses[store]}",
                        *(["--join"] if joins else []),
                    ),
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                )
        for store in stores:
            output = self.processes[store].stdout
            assert output is not None
            assert "serves on" in output.readline(), self.log(store)

    def log(self, store: int) -> str:
        return (self._folder / f"store-{store}.log").read_text()

    def run(self, *arguments: str, status: int = 0, expect: str = "", lines: str = "") -> str:
        """Carry a command out, and answer what it printed, or its error where it is to fail."""
        ended = subprocess.run(
            (*COMMAND, *arguments),
            input=lines,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            env=os.environ | {"RAFTWOOD_CONFIG": str(self._file)},
        )
        assert ended.returncode == status, (arguments, ended.stdout, ended.stderr)
        assert "Traceback" not in ended.stderr
        output = ended.stderr if status else ended.stdout
        assert expect in output
        return output

    def rows(self, *arguments: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = json.loads(self.run(*arguments, "--format", "json"))
        return rows

    def meta(self, *arguments: str, status: int = 0) -> str:
        addresses = ",".join(self.addresses[store] for store in sorted(self.processes))
        return self.run("meta", *arguments, "--connect", addresses, status=status)

    def leader(self) -> int:
        deadline = time.monotonic() + START_SECONDS_MAX
        while time.monotonic() < deadline:
            for row in json.loads(self.status()):
                if row["role"] == "leader":
                    return int(row["store"])
            time.sleep(0.1)
        raise AssertionError("no store leads")

    def status(self) -> str:
        return subprocess.run(
            (*COMMAND, "raft", "status", "--format", "json", f"--config={self._file}"),
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        ).stdout

    def stop(self, store: int) -> int:
        """As a supervisor does; answers the exit status."""
        process = self.processes[store]
        process.send_signal(signal.SIGTERM)
        return process.wait(timeout=30)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]
    finally:
        for each in sockets:
            each.close()
