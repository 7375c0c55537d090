"""TCP proxies in front of processes, in a process of their own: links between two of them fail.

Who dials is known by the process that has the other end of the connection. Run as a program, it
takes a JSON list a line: what to call, and with what.
"""

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Self

import psutil

from tests.kits import resources
from tests.kits.links import OUTSIDE, Links
from tests.kits.ports import LOCAL

HOST = "127.0.0.2"


class LinkProxies:
    """Use it as a context manager; each target is reached at `HOST` and its own port."""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            (sys.executable, "-m", __name__),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        resources.lasts(self._process.pid)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()  # it ends with its input
        resources.ended(self._process.pid)

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
        self._links = Links()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        async with self._links:
            while line := await loop.run_in_executor(None, sys.stdin.readline):
                call, *words = json.loads(line)
                await getattr(self, call)(*words)
                sys.stdout.write("done\n")
                sys.stdout.flush()

    async def knows(self, name: str, pid: int) -> None:
        self._pids[name] = pid

    async def add(self, name: str, port: int, is_for_clients: bool) -> None:
        async def dialled(
            _: asyncio.StreamReader, writer: asyncio.StreamWriter
        ) -> tuple[str, bytes]:
            source = OUTSIDE if is_for_clients else self._owner(writer)
            return source, b""

        await self._links.stand_before(name, (LOCAL, port), listen=(HOST, port), dialled=dialled)

    async def cut(self, one: str, others: Sequence[str]) -> None:
        self._links.cut(one, others)

    async def heal(self) -> None:
        self._links.heal()

    def _owner(self, writer: asyncio.StreamWriter) -> str:
        """The process that has the other end of a connection."""
        port = writer.get_extra_info("peername")[1]
        for name, pid in self._pids.items():
            with contextlib.suppress(psutil.Error):
                connections = psutil.Process(pid).net_connections("tcp")
                if any(each.laddr and each.laddr[1] == port for each in connections):
                    return name
        return OUTSIDE


if __name__ == "__main__":
    asyncio.run(_Proxies().run())
