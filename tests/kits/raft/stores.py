"""Stores as real processes, used by commands alone, which are carried out in the test's process."""

import json
import tempfile
from pathlib import Path
from typing import Any, Self
from unittest.mock import patch

from tests.kits.dlog.command_kit import Commands
from tests.kits.ports import LOCAL, free_ports
from tests.kits.processes import RAFTWOOD, StoreProcess

WAIT = ("--wait-seconds", "60")


class _Store(StoreProcess):
    """Is ready when it says so: `serve` writes no file."""

    @property
    def is_ready(self) -> bool:
        return self.is_running and "serves on" in self.output.read_text()


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
        self.folder = folder
        self.config = folder / "cluster.toml"
        self._extra = extra
        self._first = first
        self._commands = Commands()
        ports = free_ports(first + more)
        self.addresses = {store: f"{LOCAL}:{port}" for store, port in enumerate(ports, 1)}
        self.processes = {
            store: self._store(store, address, service) for store, address in self.addresses.items()
        }

    def _store(self, number: int, address: str, service: tuple[str, ...]) -> _Store:
        name = f"store-{number}"
        command = (
            *(*RAFTWOOD, *service, f"--config={self.config}"),
            f"--set=node.store_id={number}",
            f"--set=node.data_folder={self.folder / name}",
            f"--set=node.listen={address}",
        )
        return _Store(name, number, self.folder, address, command)

    def __enter__(self) -> Self:
        secrets = self._commands.run("config", "secret")
        members = [f"{store}={self.addresses[store]}" for store in range(1, self._first + 1)]
        self.config.write_text(
            f"[cluster]\nmembers = {json.dumps(members)}\n{secrets}\n{self._extra}"
        )
        self.config.chmod(0o600)
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes.values():
            process.discard()

    def start(self, *stores: int, joins: bool = False) -> None:
        for store in stores:
            process = self.processes[store]
            process.launch((*process.command, *(["--join"] if joins else [])))
        for store in stores:
            self.processes[store].wait_ready()

    def log(self, store: int) -> str:
        return self.processes[store].log.read_text()

    def run(self, *arguments: str, status: int = 0, expect: str = "", lines: str = "") -> str:
        """Carry a command out, and answer what it printed, or its error where it is to fail."""
        known = patch.dict("os.environ", {"RAFTWOOD_CONFIG": str(self.config)})
        with known, tempfile.TemporaryFile("w+", dir=self.folder) as given:
            given.write(lines)
            given.seek(0)
            with patch("sys.stdin", given):
                return self._commands.run(*arguments, status=status, expect=expect)

    def rows(self, *arguments: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = json.loads(self.run(*arguments, "--format", "json"))
        return rows

    def meta(self, *arguments: str, status: int = 0) -> str:
        running = [store for store, process in self.processes.items() if process.is_running]
        addresses = ",".join(self.addresses[store] for store in running)
        return self.run("meta", *arguments, "--connect", addresses, status=status)

    def leader(self) -> int:
        """Once there is one."""
        rows = self.rows("raft", "status", *WAIT)
        return next(int(row["store"]) for row in rows if row["role"] == "leader")
