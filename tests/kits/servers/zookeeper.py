"""A real ZooKeeper server for tests, installed by Maven into `.cache` and run on a free port.

python -m tests.kits.servers.zookeeper        # runs one until it is interrupted
"""

import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.kits.install import maven
from tests.kits.install.java_classes import with_archive
from tests.kits.ports import free_ports

VERSION = "3.9.4"
READY_SECONDS_MAX = 120
PORTS_TRIED_MAX = 5
# The server needs the last two to run, and leaves them for its distribution to provide.
LIBRARIES = (
    ("org.apache.zookeeper", "zookeeper", VERSION),
    ("io.dropwizard.metrics", "metrics-core", "4.1.12.1"),
    ("org.xerial.snappy", "snappy-java", "1.1.10.5"),
)


def install() -> Path:
    """The folder with the server's libraries, fetched on first use."""
    return maven.install("zookeeper", *LIBRARIES)


def _quick_java() -> tuple[str, ...]:
    def train(option: str) -> None:
        with ZooKeeperServer(java=(option,)) as server:
            server.kill(signal.SIGTERM)

    return with_archive(install(), train)


class ZooKeeperServer:
    """One server process with a data folder of its own; ends with the block."""

    def __init__(self, *settings: str, port: int = 0, java: tuple[str, ...] | None = None) -> None:
        """`java` are options of Java instead of those for a quick start."""
        self._settings = settings
        self._java = java
        self._folder = tempfile.TemporaryDirectory()
        self._process: subprocess.Popen[bytes] | None = None
        self.port = port

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        for _ in range(PORTS_TRIED_MAX):
            (self.port,) = free_ports(1)
            self.launch()
            if self.is_ready():
                return self
            self.kill()
        said = self._log().read_text()[-2000:]
        self._folder.cleanup()
        raise AssertionError(f"ZooKeeper did not start: {said}")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()
        self._folder.cleanup()

    def _log(self) -> Path:
        return Path(self._folder.name) / "output"

    def launch(self, *, number: int = 0) -> None:
        """Start the process; `number` is its own in an ensemble."""
        folder = Path(self._folder.name)
        configuration = folder / "zoo.cfg"
        (folder / "data").mkdir(exist_ok=True)
        if number:
            (folder / "data" / "myid").write_text(str(number))
        lines = (
            "tickTime=500",
            f"dataDir={folder}/data",
            f"clientPort={self.port}",
            "clientPortAddress=127.0.0.1",
            "admin.enableServer=false",
            "4lw.commands.whitelist=srvr",
            "maxSessionTimeout=120000",
            *self._settings,
        )
        configuration.write_text("\n".join(lines) + "\n")
        quick = _quick_java() if self._java is None else self._java
        options = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", *quick)
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        with self._log().open("ab") as output:
            self._process = subprocess.Popen(
                ("java", *options, "-cp", f"{install()}/*", main, str(configuration)),
                stdout=output,
                stderr=output,
            )

    def is_ready(self) -> bool:
        """Wait until it answers; False where it ends before, as when its port was taken."""
        deadline = time.monotonic() + READY_SECONDS_MAX
        while time.monotonic() < deadline and self._process and self._process.poll() is None:
            if self.report():
                return True
            time.sleep(0.05)
        return False

    def report(self) -> str:
        """What it says of itself; nothing before it serves."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as probe:
                probe.sendall(b"srvr")
                said = b"".join(iter(lambda: probe.recv(4096), b"")).decode()
        except OSError:
            return ""
        return said if said.startswith("Zookeeper version") else ""

    def kill(self, number: int = signal.SIGKILL) -> None:
        """As a crash: with -9; or in order, with SIGTERM."""
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGCONT)

    def restart(self) -> None:
        """After `kill`, on the same data and port."""
        self.launch()
        if not self.is_ready():
            raise AssertionError(f"ZooKeeper did not come back: {self._log().read_text()[-2000:]}")


@contextmanager
def ensemble() -> Iterator[list[ZooKeeperServer]]:
    """Three servers that replicate to each other."""
    ports = free_ports(9)
    peers = [
        f"server.{number + 1}=127.0.0.1:{ports[3 + number]}:{ports[6 + number]}"
        for number in range(3)
    ]
    settings = ("initLimit=20", "syncLimit=10", *peers)
    servers = [ZooKeeperServer(*settings, port=port) for port in ports[:3]]
    with ExitStack() as ends:
        for number, server in enumerate(servers):
            ends.push(server.__exit__)
            server.launch(number=number + 1)
        assert all(server.is_ready() for server in servers), "the ensemble did not start"
        yield servers


if __name__ == "__main__":
    with ZooKeeperServer() as running:
        print(f"ZooKeeper {VERSION} listens at {running.address}; end it by Ctrl-C", flush=True)
        with suppress(KeyboardInterrupt):
            signal.pause()
