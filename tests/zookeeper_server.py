"""A real ZooKeeper server for tests, installed by Maven into `.cache` and run on a free port.

python -m tests.zookeeper_server        # runs one until it is interrupted
"""

import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

VERSION = "3.9.4"
CACHE = Path(__file__).parents[1] / ".cache" / "zookeeper"
INSTALL_SECONDS_MAX = 240
READY_SECONDS_MAX = 30
PORTS_TRIED_MAX = 5
# The server needs the last two to run, and leaves them for its distribution to provide.
LIBRARIES = (
    ("org.apache.zookeeper", "zookeeper", VERSION),
    ("io.dropwizard.metrics", "metrics-core", "4.1.12.1"),
    ("org.xerial.snappy", "snappy-java", "1.1.10.5"),
)
DEPENDENCIES = "".join(
    f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>"
    f"<version>{version}</version></dependency>"
    for group, artifact, version in LIBRARIES
)
POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>raftwood.tests</groupId><artifactId>zookeeper</artifactId><version>1</version>
  <packaging>pom</packaging>
  <dependencies>{DEPENDENCIES}</dependencies>
</project>
"""


class NotInstalled(Exception):
    """The server cannot be had here; says why."""


def install() -> Path:
    """The folder with the server's libraries, fetched on first use."""
    jars = CACHE / f"{VERSION}-{zlib.crc32(POM.encode()):08x}"
    if shutil.which("java") is None:
        raise NotInstalled("there is no java")
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several test processes may want it at once
        if not jars.exists():
            _fetch(jars)
    return jars


def _fetch(jars: Path) -> None:
    if shutil.which("mvn") is None:
        raise NotInstalled("there is no mvn to install it")
    print(f"installing ZooKeeper {VERSION} with Maven …", file=sys.__stderr__, flush=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        (Path(folder) / "pom.xml").write_text(POM)
        goal = ("dependency:copy-dependencies", "-DincludeScope=runtime", "-DoutputDirectory=jars")
        try:
            subprocess.run(
                ("mvn", "--batch-mode", "--quiet", *goal),
                cwd=folder,
                check=True,
                capture_output=True,
                timeout=INSTALL_SECONDS_MAX,
            )
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            raise NotInstalled(f"Maven could not fetch it: {type(error).__name__}") from None
        (Path(folder) / "jars").rename(jars)


class ZooKeeperServer:
    """One server process with a data folder of its own; ends with the block."""

    def __init__(self, *settings: str, port: int = 0) -> None:
        self._settings = settings
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
            "maxSessionTimeout=20000",
            *self._settings,
        )
        configuration.write_text("\n".join(lines) + "\n")
        options = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
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

    def kill(self) -> None:
        """As a crash: with -9."""
        if self._process is not None:
            self._process.kill()
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


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens at, at the moment."""
    with ExitStack() as probes:
        sockets = [probes.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


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
