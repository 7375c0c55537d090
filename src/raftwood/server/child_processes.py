"""Processes of `raftwood` in one folder, by name; none outlives the one that started it."""

import asyncio
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, BinaryIO, Final, Self

from raftwood.base.contexts import CONTEXT_VARIABLE
from raftwood.base.errors import InternalError

CHILD_MODULE: Final = "raftwood.cli.child_process"
_START_SECONDS_MAX = 60.0
_STOP_SECONDS_MAX = 10.0
_PORTS = range(15_000, 30_000)


def child_command(arguments: Sequence[str], *, module: str = CHILD_MODULE) -> list[str]:
    """What runs a module in this Python."""
    return [sys.executable, "-m", module, *arguments]


def child_options(variables: Mapping[str, str] | None = None) -> dict[str, Any]:
    """How a child is started: it has no settings of its parent's but these, and no context.

    The child sees by the end of its standard input that its parent has ended. An interrupt at the
    terminal is the parent's, which ends its children itself.
    """
    inherited = {key: value for key, value in os.environ.items() if "RAFTWOOD_" not in key}
    return {
        "stdin": subprocess.PIPE,
        "env": inherited | {CONTEXT_VARIABLE: ""} | dict(variables or {}),
        "start_new_session": True,
    }


class ChildProcesses:
    """Use it as a context manager; at its end all processes are gone."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._processes: dict[str, asyncio.subprocess.Process] = {}

    async def __aenter__(self) -> Self:
        os.makedirs(self._folder, exist_ok=True)
        return self

    async def __aexit__(self, *_: object) -> None:
        for process in self._processes.values():
            if process.returncode is None:
                process.kill()
        for process in self._processes.values():
            await process.communicate()

    async def start(self, name: str, arguments: Sequence[str]) -> int:
        """Start `raftwood` with arguments, and wait until it says that it serves; its process id.

        What it writes to its log stands in `NAME.log`.
        """
        with self._open_log(name) as log:
            process = await asyncio.create_subprocess_exec(
                *child_command(arguments), stdout=subprocess.PIPE, stderr=log, **child_options()
            )
        before = self._processes.get(name)
        if before is not None:
            await before.communicate()
        self._processes[name] = process
        assert process.stdout is not None
        async with asyncio.timeout(_START_SECONDS_MAX):
            if not await process.stdout.readline():
                await process.wait()
                raise InternalError(f"{name} could not start: {self._last_words(name)}")
        return process.pid

    def _open_log(self, name: str) -> BinaryIO:
        return open(f"{self._folder}/{name}.log", "ab")

    def _last_words(self, name: str) -> str:
        with open(f"{self._folder}/{name}.log", "rb") as log:
            lines = log.read()[-4096:].decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "no reason given"

    def stop(self, name: str) -> None:
        """Ask a process to end in order."""
        process = self._processes[name]
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)

    async def kill(self, name: str) -> None:
        """End a process with -9, and wait until it is gone."""
        process = self._processes[name]
        process.kill()
        await process.wait()

    async def wait(self, name: str) -> int:
        """A process's exit status, once it has ended; it is killed if that takes too long."""
        process = self._processes[name]
        try:
            async with asyncio.timeout(_STOP_SECONDS_MAX):
                return await process.wait()
        except TimeoutError:
            process.kill()
            return await process.wait()

    def running(self) -> list[str]:
        return [each for each, process in self._processes.items() if process.returncode is None]

    async def end(self, prefix: str = "") -> dict[str, int]:
        """End all that run, or those whose names begin so, in order; their exit statuses."""
        running = [each for each in self.running() if each.startswith(prefix)]
        for name in running:
            self.stop(name)
        return {name: await self.wait(name) for name in running}


def free_addresses(count: int) -> list[str]:
    """Addresses on this machine that nobody uses at the moment.

    Their ports are below those that the system gives to connections: one of these could take the
    port of a server that is away for a moment, and the server could not come back.
    """
    ports = random.sample(_PORTS, len(_PORTS))
    found = [f"127.0.0.1:{port}" for port in islice(filter(is_free, ports), count)]
    if len(found) < count:
        raise InternalError(f"no {count} ports are free on this machine: end what uses them")
    return found


def free_ports_in_a_row(count: int) -> int:
    """The first of them."""
    for first in random.sample(_PORTS, len(_PORTS)):
        if all(map(is_free, range(first, first + count))):
            return first
    raise InternalError(f"no {count} ports in a row are free on this machine: end what uses them")


def is_free(port: int) -> bool:
    """Whether no process listens on a port of this machine's loopback address."""
    with socket.socket() as probe:
        # As servers do: connections that ended here a moment ago are no obstacle to them.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
