"""A real BookKeeper for tests: a ZooKeeper server and bookies on free ports, installed by Maven.

Bookies keep their data on disk, sync their journals and do TLS where they are asked for it, for
clients with a certificate. The last one registers under a name, the others under their addresses.

python -m tests.kits.servers.bookkeeper        # runs one with four bookies until it is interrupted
"""

import os
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import trustme
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from kazoo.client import KazooClient

from raftwood.net.tls import TlsFiles
from tests.kits.install import maven
from tests.kits.install.java_classes import with_archive
from tests.kits.ports import free_ports
from tests.kits.servers import zookeeper as zookeeper_server
from tests.kits.servers.zookeeper import ZooKeeperServer

VERSION = "4.18.0"
READY_SECONDS_MAX = 180
SHELL_SECONDS_MAX = 180
LIBRARIES = (
    ("org.apache.bookkeeper", "bookkeeper-server", VERSION),
    ("io.dropwizard.metrics", "metrics-core", "4.1.12.1"),
    ("org.xerial.snappy", "snappy-java", "1.1.10.5"),
)
_LOGGING = (
    '<Configuration><Appenders><Console name="console"><PatternLayout pattern="%d %p %c{1} %m%n"/>'
    '</Console></Appenders><Loggers><Root level="warn"><AppenderRef ref="console"/></Root>'
    "</Loggers></Configuration>"
)
_OPENED = ("java.io", "java.nio", "jdk.internal.misc")
JAVA_OPTIONS = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xss512k",
    "-Djava.net.preferIPv4Stack=true",
    "-Dio.netty.tryReflectionSetAccessible=true",
    *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED),
)


def install() -> Path:
    """The folder with the libraries, fetched on first use."""
    zookeeper_server.install()
    return maven.install("bookkeeper", *LIBRARIES)


def _quick_java() -> tuple[str, ...]:
    def train(option: str) -> None:
        with BookKeeperCluster(bookies=1, java=(option,)) as cluster:
            cluster.bookies[0].kill(signal.SIGTERM)

    return with_archive(install(), train)


def java_command(folder: Path, *arguments: str, classes: str = "") -> list[str]:
    """A Java machine with BookKeeper's libraries that logs warnings alone to its output."""
    logging = folder / "log4j2.xml"
    logging.write_text(_LOGGING)
    options = (*JAVA_OPTIONS, f"-Dlog4j2.configurationFile={logging}")
    return ["java", *options, "-cp", classes or f"{install()}/*", *arguments]


class Bookie:
    """One bookie process with a folder of its own."""

    def __init__(
        self,
        folder: Path,
        zookeeper: str,
        *,
        name: str,
        settings: Sequence[str],
        java: tuple[str, ...] | None = None,
    ) -> None:
        """`java` are options of Java instead of those for a quick start."""
        self.folder = folder
        self._java = java
        self._zookeeper = zookeeper
        self._name = name
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        (self.port,) = free_ports(1)

    @property
    def id(self) -> str:
        return self._name or f"127.0.0.1:{self.port}"

    @property
    def configuration(self) -> Path:
        return self.folder / "bookie.conf"

    @property
    def ledgers(self) -> Path:
        """Where its entry logs and indices are."""
        return self.folder / "ledgers" / "current"

    def launch(self) -> None:
        self.folder.mkdir(exist_ok=True)
        self.configuration.write_text("\n".join((*self._lines(), *self._settings)) + "\n")
        main = ("org.apache.bookkeeper.server.Main", "--conf", str(self.configuration))
        quick = _quick_java() if self._java is None else self._java
        options = ("-Xmx128m", "-XX:MaxDirectMemorySize=128m", *quick)
        with (self.folder / "output").open("ab") as output:
            self._process = subprocess.Popen(
                java_command(self.folder, *options, *main), stdout=output, stderr=output
            )

    def _lines(self) -> tuple[str, ...]:
        return (
            f"bookiePort={self.port}",
            *((f"bookieId={self._name}",) if self._name else ()),
            "advertisedAddress=127.0.0.1",
            "listeningInterface=lo",
            "allowLoopback=true",
            f"metadataServiceUri=zk+longhierarchical://{self._zookeeper}/ledgers",
            "zkTimeout=4000",
            f"journalDirectories={self.folder}/journal",
            f"ledgerDirectories={self.folder}/ledgers",
            "skipListSizeLimit=16777216",
            "journalPreAllocSizeMB=4",
            "journalMaxSizeMB=256",
            "journalMaxBackups=1",
            "pageLimit=1024",
            "logSizeLimit=268435456",
            "numAddWorkerThreads=1",
            "numReadWorkerThreads=1",
            "numHighPriorityWorkerThreads=2",
            "serverNumIOThreads=2",
            "diskUsageThreshold=0.98",
            "diskUsageWarnThreshold=0.97",
            "httpServerEnabled=false",
        )

    def restart(self) -> None:
        """After `kill`, on the same data and port."""
        with _Client(self._zookeeper) as client:
            # That of the process before it lasts until its session ends.
            if client.exists(f"/ledgers/available/{self.id}"):
                client.delete(f"/ledgers/available/{self.id}")
            self.launch()
            self.await_ready(client)

    def await_ready(self, zookeeper: Any) -> None:
        """Until it has registered, which it does once it serves."""
        deadline = time.monotonic() + READY_SECONDS_MAX
        while time.monotonic() < deadline and self.is_running():
            if zookeeper.exists(f"/ledgers/available/{self.id}"):
                return
            time.sleep(0.05)
        raise AssertionError(f"bookie {self.id} did not start: {self.output()[-3000:]}")

    def output(self) -> str:
        return (self.folder / "output").read_text()

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self, number: int = signal.SIGKILL) -> None:
        """As a crash: with -9; or in order, with SIGTERM."""
        if self._process is not None:
            self.resume()
            self._process.send_signal(number)
            self._process.wait()
            self._process = None

    def ended(self, timeout_s: float) -> int:
        """What it ends with by itself."""
        assert self._process is not None
        status = self._process.wait(timeout_s)
        self._process = None
        return status

    def pause(self) -> None:
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)

    def lose_data(self) -> None:
        """As with a new disk under an old name."""
        for name in ("journal", "ledgers"):
            (self.folder / name).rename(self.folder / f"{name}.lost")

    def find_data(self) -> None:
        """The old disk is back."""
        for name in ("journal", "ledgers"):
            shutil.rmtree(self.folder / name, ignore_errors=True)
            (self.folder / f"{name}.lost").rename(self.folder / name)


class BookKeeperCluster:
    """A ZooKeeper server and bookies; all end with the block."""

    def __init__(
        self,
        *,
        bookies: int = 4,
        folder: Path | None = None,
        java: tuple[str, ...] | None = None,
    ) -> None:
        """The data go below the folder, or to where temporary files do; `java` as a bookie's."""
        self._count = bookies
        self._java = java
        self._parent = folder
        self._ends = ExitStack()
        self.tls = TlsFiles()
        """For clients."""
        self.bookies: list[Bookie] = []
        self.zookeeper = ZooKeeperServer()

    @property
    def address(self) -> str:
        """HOST:PORT/CHROOT of the metadata."""
        return f"{self.zookeeper.address}/ledgers"

    def __enter__(self) -> Self:
        with ExitStack() as ends:
            folder = Path(ends.enter_context(tempfile.TemporaryDirectory(dir=self._parent)))
            ends.enter_context(self.zookeeper)
            ends.callback(self._end)
            with _Client(self.zookeeper.address) as client:
                _format(client)
                settings = self._make_certificates(folder)
                for number in range(self._count):
                    name = f"bookie-{number}" if number == self._count - 1 else ""
                    bookie = Bookie(
                        folder / f"bookie-{number}",
                        self.zookeeper.address,
                        name=name,
                        settings=settings,
                        java=self._java,
                    )
                    self.bookies.append(bookie)
                    bookie.launch()
                for bookie in self.bookies:
                    bookie.await_ready(client)
            self._ends = ends.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ends.close()

    def _make_certificates(self, folder: Path) -> list[str]:
        """Settings of the bookies; `tls` for clients."""
        authority = trustme.CA()
        authorities = folder / "authorities.pem"
        authority.cert_pem.write_to_path(str(authorities))
        bookie = authority.issue_cert("127.0.0.1")
        certificate, key = folder / "certificate.pem", folder / "key.pem"
        bookie.cert_chain_pems[0].write_to_path(str(certificate))
        private = load_pem_private_key(bookie.private_key_pem.bytes(), None)
        # The one kind of key that BookKeeper reads.
        key.write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        client = folder / "client.pem"
        authority.issue_cert("client").private_key_and_cert_chain_pem.write_to_path(str(client))
        self.tls = TlsFiles(certificate=str(client), authorities=str(authorities))
        return [
            "tlsProvider=JDK",
            "tlsProviderFactoryClass=org.apache.bookkeeper.tls.TLSContextFactory",
            "tlsClientAuthentication=true",
            "tlsKeyStoreType=PEM",
            f"tlsKeyStore={key}",
            f"tlsCertificatePath={certificate}",
            "tlsTrustStoreType=PEM",
            f"tlsTrustStore={authorities}",
        ]

    def _end(self) -> None:
        for bookie in self.bookies:
            bookie.kill()

    def shell(self, *arguments: str) -> str:
        """What BookKeeper's own shell prints."""
        folder = self.bookies[0].folder
        main = "org.apache.bookkeeper.bookie.BookieShell"
        command = java_command(folder, main, "-conf", str(self.bookies[0].configuration))
        done = subprocess.run(
            (*command, *arguments),
            check=False,
            capture_output=True,
            text=True,
            timeout=SHELL_SECONDS_MAX,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


class _Client:
    def __init__(self, address: str) -> None:
        self._client: Any = KazooClient(address)

    def __enter__(self) -> Any:
        self._client.start(timeout=READY_SECONDS_MAX)
        return self._client

    def __exit__(self, *_: object) -> None:
        self._client.stop()
        self._client.close()


def _format(client: Any) -> None:
    """What `bookkeeper shell initnewcluster` does, without one more Java machine to start."""
    layout = b"2\norg.apache.bookkeeper.meta.LongHierarchicalLedgerManagerFactory:1"
    change = client.transaction()
    change.create("/ledgers", b"")
    change.create("/ledgers/available", b"")
    change.create("/ledgers/available/readonly", b"")
    change.create("/ledgers/INSTANCEID", str(uuid.uuid4()).encode())
    change.create("/ledgers/LAYOUT", layout)
    change.commit()


if __name__ == "__main__":
    with BookKeeperCluster() as running:
        names = ", ".join(bookie.id for bookie in running.bookies)
        print(f"BookKeeper {VERSION} at {running.address}: {names}; end it by Ctrl-C", flush=True)
        with suppress(KeyboardInterrupt):
            signal.pause()
