"""How fast the simulation runs: `python benchmarks/simulation.py`.

Three nodes replicate appends of four clients through their disks (a leader that waits for a
majority, heartbeats every 100 ms), with chunking, delays and faults; then crash images and fuzzing.
"""

import asyncio
import struct
import time
from collections.abc import Callable

from raftwood.base.environment import Environment
from raftwood.base.files import Completion, DataSync, Open, SyncDirectory, Write, perform
from raftwood.testing import (
    FaultInjector,
    ImageRunner,
    Program,
    RecordingFiles,
    Simulation,
    SwarmProfile,
    crash_images,
    fuzz,
    simulate,
)

HEADER = struct.Struct(">IQ")
LOG = "/data/log"


class Peer(asyncio.Protocol):
    """Frames of a length and a number."""

    transport: asyncio.Transport

    def __init__(self, receive: Callable[["Peer", int, bytes], None]) -> None:
        self._receive = receive
        self._buffer = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def send(self, number: int, payload: bytes = b"") -> None:
        self.transport.write(HEADER.pack(len(payload), number) + payload)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while len(self._buffer) >= HEADER.size:
            length, number = HEADER.unpack_from(self._buffer)
            end = HEADER.size + length
            if len(self._buffer) < end:
                return
            payload = bytes(self._buffer[HEADER.size : end])
            del self._buffer[:end]
            self._receive(self, number, payload)


class Replica:
    def __init__(self, environment: Environment, name: str, others: list[str]) -> None:
        self.files = environment.files
        self.name = name
        self.others = others
        self.offset = 0
        self.next = 0
        self.waiting: dict[int, tuple[Peer, int, int]] = {}
        self.links: dict[str, Peer] = {}

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        await perform(self.files, Open(LOG, create=True), SyncDirectory("/data"))
        await loop.create_server(lambda: Peer(self.request), self.name, 7000)
        async with asyncio.TaskGroup() as group:
            for other in self.others:
                group.create_task(self.keep_link(other))

    async def keep_link(self, other: str) -> None:
        loop = asyncio.get_running_loop()
        while True:
            link = self.links.get(other)
            if link is None or link.transport.is_closing():
                try:
                    async with asyncio.timeout(1):
                        _, self.links[other] = await loop.create_connection(
                            lambda: Peer(self.response), other, 7000
                        )
                except OSError:
                    self.links.pop(other, None)
            else:
                link.send(0)
            await asyncio.sleep(0.1)

    def store(self, payload: bytes, done: Callable[[Completion], None]) -> None:
        self.files.submit([Write(LOG, self.offset, [payload]), DataSync(LOG)], done)
        self.offset += len(payload)

    def request(self, peer: Peer, number: int, payload: bytes) -> None:
        if number == 0:
            peer.send(0)
        elif number & 1:
            self.next += 1
            key = 2 * self.next
            self.waiting[key] = (peer, number, 0)
            self.store(payload, lambda _: self.stored(key))
            for link in self.links.values():
                link.send(key, payload)
        else:
            self.store(payload, lambda _: peer.send(number))

    def response(self, _peer: Peer, number: int, _payload: bytes) -> None:
        if number:
            self.stored(number)

    def stored(self, key: int) -> None:
        peer, number, count = self.waiting.get(key, (None, 0, 0))
        if peer is not None:
            self.waiting[key] = (peer, number, count + 1)
            if count == 1:
                del self.waiting[key]
                peer.send(number)


def replica(name: str, others: list[str]) -> Program:
    return lambda environment: Replica(environment, name, others).run()


async def cluster(simulation: Simulation) -> int:
    names = ["a", "b", "c"]
    for name in names:
        simulation.add_node(name).start(replica(name, [each for each in names if each != name]))
    acked = 0

    async def client(number: int) -> None:
        nonlocal acked
        loop = asyncio.get_running_loop()
        answered = asyncio.Event()
        link: Peer | None = None
        for turn in range(100_000):
            if simulation.now > 120:
                break
            try:
                async with asyncio.timeout(1):
                    if link is None or link.transport.is_closing():
                        _, link = await loop.create_connection(
                            lambda: Peer(lambda *_: answered.set()), "abc"[number % 3], 7000
                        )
                    answered.clear()
                    link.send(2 * turn + 1, bytes(100))
                    await answered.wait()
                    acked += 1
            except OSError:
                if link is not None:
                    link.transport.abort()
            await asyncio.sleep(0.05)
        if link is not None:
            link.transport.abort()

    profile = SwarmProfile(seed=1, every_s={"kill": 10.0, "partition": 10.0, "power_loss": 15.0})
    async with asyncio.TaskGroup() as group:
        group.create_task(FaultInjector(simulation, profile).run(until=110))
        for number in range(4):
            group.create_task(client(number))
    return acked


async def use_store(recording: RecordingFiles) -> None:
    await perform(recording, Open(LOG, create=True), SyncDirectory("/data"))
    for number in range(500):
        await perform(recording, Write(LOG, number * 100, [bytes(100)]), DataSync(LOG))


def main() -> None:
    for seed in range(3):
        report = simulate(seed, cluster, check_leaks=False)
        print(
            f"seed {seed}: {report.result / report.virtual_seconds:.0f} appends per virtual second,"
            f" {report.virtual_seconds / report.cpu_seconds:.0f} virtual seconds per CPU second,"
            f" {report.steps / report.cpu_seconds:,.0f} steps/s"
        )
    with ImageRunner() as runner:
        recording = RecordingFiles()
        runner.run(use_store(recording))
        began = time.process_time()
        count = 0
        for image in crash_images(recording.journal, seed=1):
            files = image.files
            if LOG in image.file_system.files:
                runner.run(perform(files, Open(LOG)))
            count += 1
        print(f"{count / (time.process_time() - began):,.0f} crash images opened per second")
    began = time.process_time()
    fuzz(len, [b"hello, world", bytes(200)], count=300_000, seed=1)
    print(f"{300_000 / (time.process_time() - began):,.0f} fuzz inputs per second")


if __name__ == "__main__":
    main()
