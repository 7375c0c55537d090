"""What a command costs a node's listener: CPU per operation, beside partitions in memory.

    python -m benchmarks.redis_commands

The load is in another process. Nothing is compared: the peers have a benchmark of their own.
"""

import asyncio
import contextlib
import sys
from collections import deque
from collections.abc import Callable

import psutil
import uvloop
from tests.kits.zeppelin.static_view import PASSWORD, WRITER, single_node

from raftwood.disk.real_environment import real_environment
from raftwood.zeppelin.model import TableConfig
from raftwood.zeppelin.node.data_server import DataServer

CONNECTIONS = 50
KEYS = 10_000
VALUE = b"x" * 100
MANY = [b"{t}%d" % number for number in range(100)]


def encoded(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(w), w) for w in words)


def key(number: int) -> bytes:
    return b"key:%06d" % (number * 7919 % KEYS)


LOADS: dict[str, tuple[Callable[[int], bytes], int]] = {
    "SET": (lambda number: encoded(b"SET", key(number), VALUE), 100_000),
    "GET": (lambda number: encoded(b"GET", key(number)), 100_000),
    "INCR": (lambda number: encoded(b"INCR", b"n" + key(number)), 50_000),
    "MSET of 100": (lambda _: encoded(b"MSET", *(w for k in MANY for w in (k, VALUE))), 2_000),
    "MGET of 100": (lambda _: encoded(b"MGET", *MANY), 2_000),
}
"""How a request looks, and how many are sent. An answer ends with as many lines as `LINES` says."""
LINES = {"SET": 1, "GET": 2, "INCR": 1, "MSET of 100": 1, "MGET of 100": 201}


class Load(asyncio.Protocol):
    """One connection: so many requests at a time, and the next when all are answered."""

    def __init__(self, name: str, pipeline: int, count: int) -> None:
        self._request, self._lines = LOADS[name][0], LINES[name]
        self._pipeline, self._left = pipeline, count
        self._missing = 1
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]
        self._transport.write(encoded(b"AUTH", WRITER.encode(), PASSWORD.encode()))

    def data_received(self, data: bytes) -> None:
        self._missing -= data.count(b"\r\n")
        if self._missing > 0:
            return
        if self._left <= 0:
            self._transport.close()
            self.done.set_result(None)
            return
        numbers = range(self._left, self._left - self._pipeline, -1)
        self._left -= self._pipeline
        self._missing = self._pipeline * self._lines
        self._transport.write(b"".join(map(self._request, numbers)))


async def serve() -> None:
    config = TableConfig(partitions=4, replicas=1, ack="memory")
    view = single_node(config=config)
    for store in view.stores:
        assert store is not None
        store.binlog = deque(maxlen=1000)  # type: ignore[assignment]
    with real_environment() as environment:
        async with DataServer(view, environment) as server:
            print(await server.listen(), flush=True)
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


async def measure(name: str, pipeline: int, port: int, server: psutil.Process) -> str:
    loop, count = asyncio.get_running_loop(), LOADS[name][1]
    before, began = server.cpu_times(), loop.time()
    loads = [Load(name, pipeline, count // CONNECTIONS) for _ in range(CONNECTIONS)]
    for load in loads:
        await loop.create_connection(lambda load=load: load, "127.0.0.1", port)  # type: ignore[misc]
    await asyncio.gather(*(load.done for load in loads))
    took, after = loop.time() - began, server.cpu_times()
    user, system = (
        (now - then) / count * 1e6 for now, then in zip(after[:2], before[:2], strict=True)
    )
    rate = f"{name:12} pipeline {pipeline:3}  {count / took:9,.0f}/s"
    return f"{rate}  {user:7.2f} µs, and {system:6.2f} µs in the kernel"


async def main() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "benchmarks.redis_commands",
        "serve",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    port = int(await process.stdout.readline())
    for name in LOADS:
        for pipeline in (1, 16) if LINES[name] < 3 and "100" not in name else (1,):
            print(await measure(name, pipeline, port, psutil.Process(process.pid)), flush=True)
    process.stdin.close()
    await process.wait()


if __name__ == "__main__":
    uvloop.run(serve() if sys.argv[1:] == ["serve"] else main())
