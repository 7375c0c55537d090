"""TCP proxies in front of processes, in a process of their own: links between two of them fail.

Who dials is known by the process that has the other end of the connection. Run as a program, it
takes a JSON list a line: what to call, and with what.
"""

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import Coroutine, Sequence
from typing import Any, Self

import psutil

HOST = "127.0.0.2"
OUTSIDE = "outside"
"""Who dials and is none of the processes: a client."""
_PIECE_BYTES = 64 << 10


class LinkProxies:
    """Use it as a context manager; each target is reached at `HOST` and its own port."""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            (sys.executable, "-m", __name__),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def _call(self, *words: object) -> None:
        sent, answered = self._process.stdin, self._process.stdout
        assert sent is not None
        assert answered is not None
        sent.write(json.dumps(words) + "\n")
        sent.flush()
        assert answered.readline() == "done\n"

    def knows(self, name: str, pid: int) -> None:
        """A process has started."""
        self._call("knows", name, pid)

    def add(self, name: str, port: int, *, is_for_clients: bool = False) -> None:
        """Stand in front of a port of a process; none of the processes dials one for clients."""
        self._call("add", name, port, is_for_clients)

    def cut(self, one: str, others: Sequence[str]) -> None:
        """What they say to one another is kept back, and nobody is told."""
        self._call("cut", one, others)

    def heal(self) -> None:
        self._call("heal")


class _Proxies:
    def __init__(self) -> None:
        self._pids: dict[str, int] = {}
        self._gates: dict[tuple[str, str], asyncio.Event] = {}
        self._listeners: list[asyncio.Server] = []

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            call, *words = json.loads(line)
            await getattr(self, call)(*words)
            sys.stdout.write("done\n")
            sys.stdout.flush()

    async def knows(self, name: str, pid: int) -> None:
        self._pids[name] = pid

    async def add(self, name: str, port: int, is_for_clients: bool) -> None:
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            dialled = writer.get_extra_info("peername")[1]
            source = OUTSIDE if is_for_clients else self._owner(dialled)
            with contextlib.suppress(OSError):
                await self._serve((source, name), port, reader, writer)
            writer.transport.abort()

        self._listeners.append(await asyncio.start_server(accept, HOST, port))

    async def cut(self, one: str, others: Sequence[str]) -> None:
        for other in others:
            self._gate(one, other).clear()
            self._gate(other, one).clear()

    async def heal(self) -> None:
        for gate in self._gates.values():
            gate.set()

    def _gate(self, source: str, target: str) -> asyncio.Event:
        if (source, target) not in self._gates:
            gate = self._gates[source, target] = asyncio.Event()
            gate.set()
        return self._gates[source, target]

    async def _serve(
        self,
        link: tuple[str, str],
        port: int,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            await self._join(
                self._pump(reader, far_writer, self._gate(*link)),
                self._pump(far_reader, writer, self._gate(*link[::-1])),
            )
        finally:
            far_writer.transport.abort()

    async def _join(self, *pumps: Coroutine[Any, Any, None]) -> None:
        tasks = [asyncio.create_task(pump) for pump in pumps]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _owner(self, port: int) -> str:
        for name, pid in self._pids.items():
            with contextlib.suppress(psutil.Error):
                connections = psutil.Process(pid).net_connections("tcp")
                if any(each.laddr and each.laddr[1] == port for each in connections):
                    return name
        return OUTSIDE

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gate: asyncio.Event
    ) -> None:
        while piece := await reader.read(_PIECE_BYTES):
            await gate.wait()
            writer.write(piece)
            await writer.drain()


if __name__ == "__main__":
    asyncio.run(_Proxies().run())
