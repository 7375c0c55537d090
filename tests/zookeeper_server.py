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
from contextlib import suppress
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

    def __init__(self, *settings: str) -> None:
        self._settings = settings
        self._folder = tempfile.TemporaryDirectory()
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        for _ in range(PORTS_TRIED_MAX):
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                self.port = probe.getsockname()[1]
            if self._start():
                return self
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

    def _start(self) -> bool:
        """Whether it answers; it may not if the port was taken meanwhile."""
        configuration = Path(self._folder.name) / "zoo.cfg"
        lines = (
            "tickTime=500",
            f"dataDir={self._folder.name}/data",
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
        deadline = time.monotonic() + READY_SECONDS_MAX
        while time.monotonic() < deadline and self._process.poll() is None:
            if self._answers():
                return True
            time.sleep(0.05)
        self.kill()
        return False

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as probe:
                probe.sendall(b"srvr")
                # Before it serves, it says so.
                return probe.recv(64).startswith(b"Zookeeper version")
        except OSError:
            return False

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
        if not self._start():
            raise AssertionError(f"ZooKeeper did not come back: {self._log().read_text()[-2000:]}")


if __name__ == "__main__":
    with ZooKeeperServer() as running:
        print(f"ZooKeeper {VERSION} listens at {running.address}; end it by Ctrl-C", flush=True)
        with suppress(KeyboardInterrupt):
            signal.pause()
