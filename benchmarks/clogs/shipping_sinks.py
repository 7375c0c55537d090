"""Where lines arrive, as a process of its own: it counts them, and keeps nothing.

    python -m benchmarks.clogs.shipping_sinks lines BYTES       newline-separated lines over TCP
    python -m benchmarks.clogs.shipping_sinks receiver LINES    frames of clogs, acknowledged

Prints lines of JSON: the port that it listens at, then, once all has arrived, when that was by the
machine's monotonic clock, and what was counted.
"""

import asyncio
import socket
import sys
import time
from typing import Final

import msgspec

from raftwood.base.errors import NotFound
from raftwood.base.metrics import Metrics
from raftwood.clogs.frames import ClogsMessage
from raftwood.clogs.receiver import Receiver, ReceiverLimits
from raftwood.clogs.wire import CONFIGURATION, ConfigurationAnswer, ConfigurationRequest
from raftwood.disk.real_environment import real_environment
from raftwood.net import Call, Secret, Service
from raftwood.server.event_loop import run

KEY: Final = "BENCH"
SECRET: Final = "a secret of the benchmark's, 32 b"
_BUFFER_BYTES: Final = 1 << 20
_PLACE: Final = "nowhere"


class Listening(msgspec.Struct, frozen=True):
    """Said first."""

    port: int


class Arrived(msgspec.Struct, frozen=True):
    """Said last."""

    monotonic_s: float
    lines: int
    bytes: int
    wire_bytes: int
    """As they came: headers and compression counted in."""
    cpu_s: float
    """Of the sink itself, since it listens."""


def _say(said: Listening | Arrived) -> None:
    print(msgspec.json.encode(said).decode(), flush=True)


def count_lines(bytes_expected: int) -> None:
    """One connection after the other, until so many bytes have come."""
    lines = size = 0
    buffer = bytearray(_BUFFER_BYTES)
    view = memoryview(buffer)
    with socket.create_server(("127.0.0.1", 0)) as server:
        _say(Listening(server.getsockname()[1]))
        before_s = time.process_time()
        while size < bytes_expected:
            connection, _ = server.accept()
            with connection:
                while size < bytes_expected and (got := connection.recv_into(view)):
                    lines += buffer.count(b"\n", 0, got)
                    size += got
                spent_s = time.process_time() - before_s
                _say(Arrived(time.monotonic(), lines, size, size, spent_s))
                while connection.recv_into(view):  # until the other side has ended
                    pass


class CountingSink:
    """A `Sink` that acknowledges what it has counted, and stores nothing."""

    def __init__(self, lines_expected: int) -> None:
        self._expected = lines_expected
        self._lines = self._bytes = self._wire_bytes = 0
        self._before_s = time.process_time()

    async def locate(self, key: str, name: str) -> str:  # noqa: ARG002 (a Sink's)
        return _PLACE

    async def store(self, key: str, message: ClogsMessage) -> str:  # noqa: ARG002 (a Sink's)
        self._lines += message.count
        self._bytes += message.raw_bytes
        self._wire_bytes += len(message.body)
        if self._lines >= self._expected:
            now, spent_s = time.monotonic(), time.process_time() - self._before_s
            _say(Arrived(now, self._lines, self._bytes, self._wire_bytes, spent_s))
        return _PLACE


async def _no_configuration(_: Call, request: ConfigurationRequest) -> ConfigurationAnswer:
    """The servers that the shipper knows are its ring."""
    await asyncio.sleep(request.wait_ms / 1000)
    raise NotFound(f"ring {request.ring} has no configuration here")


async def _receive(lines_expected: int) -> None:
    service = Service()
    service.typed(CONFIGURATION, _no_configuration)
    with real_environment() as environment:
        receiver = Receiver(
            environment,
            CountingSink(lines_expected),
            secret_of=lambda peer: Secret(SECRET.encode()) if peer.node_id == KEY else None,
            limits=ReceiverLimits(),
            metrics=Metrics(),
            service=service,
        )
        _say(Listening(await receiver.listen("127.0.0.1", 0)))
        await asyncio.Event().wait()  # until it is ended


def main() -> None:
    kind, expected = sys.argv[1], int(sys.argv[2])
    if kind == "lines":
        count_lines(expected)
    else:
        run(_receive(expected))


if __name__ == "__main__":
    main()
