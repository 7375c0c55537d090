"""Three replicas of the toy as real processes with real files, sockets and authentication."""

import contextlib
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.kits.testing.toy.replica import ReplicaAddress


class RealReplicas:
    def __init__(self, folder: Path, loop: str) -> None:
        self._folder = folder
        self._loop = loop
        self.addresses = [
            ReplicaAddress(f"r{number}", number, "127.0.0.1", port)
            for number, port in enumerate(_free_ports(3), 1)
        ]
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, number: int) -> None:
        address = self.addresses[number - 1]
        command = [sys.executable, "-m", "tests.kits.testing.toy", str(number)]
        command += [str(address.port), str(self._folder / address.name), self._loop]
        self._processes[number] = subprocess.Popen(command)

    def kill(self, number: int) -> None:
        process = self._processes.pop(number)
        process.kill()
        process.wait()

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        try:
            for address in self.addresses:
                self.start(address.number)
            yield
        finally:
            for number in list(self._processes):
                self.kill(number)


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
