"""The stores of a demo cluster: real processes in one folder, none of which outlives the demo."""

import asyncio
import os
import secrets
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import BinaryIO, Self

from raftwood.app.settings import Settings
from raftwood.base.configuration import compose
from raftwood.base.errors import InternalError

_START_SECONDS_MAX = 60.0
_STOP_SECONDS_MAX = 10.0


class StoreProcesses:
    """Use it as a context manager; at its end all processes are gone."""

    def __init__(
        self,
        folder: str,
        command: Sequence[str],
        assignments: Mapping[str, int],
        *,
        first: Sequence[int],
        later: Sequence[int],
    ) -> None:
        """`command` is what `raftwood` is to do for a store, `assignments` the settings for it."""
        self._folder = folder
        self._command_words = command
        self._assignments = assignments
        stores = [*first, *later]
        self.addresses = dict(
            zip(stores, (f"127.0.0.1:{port}" for port in _free_ports(len(stores))), strict=True)
        )
        self._config_file = f"{folder}/cluster.toml"
        members = ", ".join(f'"{store}={self.addresses[store]}"' for store in first)
        self._config = f"""\
[cluster]
name = "demo"
members = [{members}]

[secrets]
stores = "{secrets.token_urlsafe(32)}"
clients = "{secrets.token_urlsafe(32)}"
operators = "{secrets.token_urlsafe(32)}"
""".encode()
        self._processes: dict[int, asyncio.subprocess.Process] = {}

    def client_settings(self) -> Settings:
        return compose(Settings, data=self._config, file=self._config_file).settings

    async def __aenter__(self) -> Self:
        self._write_config()
        return self

    def _write_config(self) -> None:
        os.makedirs(self._folder, exist_ok=True)
        # For the owner's eyes only: it holds the secrets, which no command line may show.
        descriptor = os.open(self._config_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "wb") as file:
            file.write(self._config)

    async def __aexit__(self, *_: object) -> None:
        for process in self._processes.values():
            if process.returncode is None:
                process.kill()
        for process in self._processes.values():
            await process.communicate()

    async def start(self, store: int, *, joins: bool = False) -> int:
        """Start a store and wait until it serves; answers its process id."""
        with self._open_log(store) as log:
            process = await asyncio.create_subprocess_exec(
                *self._command(store, joins=joins),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env={key: value for key, value in os.environ.items() if "RAFTWOOD_" not in key},
                # An interrupt at the terminal is the demo's: it ends its stores itself.
                start_new_session=True,
            )
        before = self._processes.get(store)
        if before is not None:
            await before.communicate()
        self._processes[store] = process
        assert process.stdout is not None
        async with asyncio.timeout(_START_SECONDS_MAX):
            if not await process.stdout.readline():
                await process.wait()
                raise InternalError(f"store {store} could not start: {self._last_words(store)}")
        return process.pid

    def _open_log(self, store: int) -> BinaryIO:
        return open(f"{self._folder}/store-{store}.log", "ab")

    def _command(self, store: int, *, joins: bool) -> list[str]:
        assignments = {
            **self._assignments,
            "node.store_id": store,
            "node.data_folder": f"{self._folder}/store-{store}",
            "node.listen": self.addresses[store],
        }
        return [
            sys.executable,
            "-m",
            "raftwood.app.demo.store_process",
            *self._command_words,
            "--config",
            self._config_file,
            *(f"--set={name}={value}" for name, value in assignments.items()),
            *(["--join"] if joins else []),
        ]

    def _last_words(self, store: int) -> str:
        with open(f"{self._folder}/store-{store}.log", "rb") as log:
            lines = log.read()[-4096:].decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "no reason given"

    def stop(self, store: int) -> None:
        """Ask a store to end in order."""
        process = self._processes[store]
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)

    async def kill(self, store: int) -> None:
        """End a store with -9, and wait until it is gone."""
        process = self._processes[store]
        process.kill()
        await process.wait()

    async def wait(self, store: int) -> int:
        """A store's exit status, once it has ended; it is killed if that takes too long."""
        process = self._processes[store]
        try:
            async with asyncio.timeout(_STOP_SECONDS_MAX):
                return await process.wait()
        except TimeoutError:
            process.kill()
            return await process.wait()

    def running(self) -> list[int]:
        return [each for each, process in self._processes.items() if process.returncode is None]

    async def end(self) -> dict[int, int]:
        """End all that run in order; their exit statuses."""
        running = self.running()
        for store in running:
            self.stop(store)
        return {store: await self.wait(store) for store in running}


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]
    finally:
        for each in sockets:
            each.close()
