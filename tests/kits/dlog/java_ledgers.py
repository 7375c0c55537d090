"""BookKeeper's own Java client as a process that is told what to do."""

import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from tests.kits.install import maven
from tests.kits.loghub.sls_programs import HERE
from tests.kits.servers import bookkeeper as bookkeeper_cluster

END_SECONDS_MAX = 60


class JavaFailed(Exception):
    """The client refused; says the name of its exception."""


class JavaRead(msgspec.Struct, frozen=True):
    """What the client found in a ledger."""

    last: int
    length_bytes: int
    entries: list[str]


class JavaLedgers:
    """One process with a client for each of the two protocols; ends with the block."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._folder = tempfile.TemporaryDirectory()

    def __enter__(self) -> Self:
        folder = Path(self._folder.name)
        classes = maven.compile_program(
            HERE / "java" / "Ledgers.java", bookkeeper_cluster.install()
        )
        uri = f"zk+longhierarchical://{self._address}"
        command = bookkeeper_cluster.java_command(folder, "Ledgers", uri, classes=classes)
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        while self._line() != "ready":
            pass  # what it logs while it starts
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.kill()
        self._process.wait(END_SECONDS_MAX)
        self._process.stdin.close()
        self._process.stdout.close()
        self._folder.cleanup()

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the Java client ended"
        return line.rstrip("\n")

    def tell(self, protocol: str, *words: object) -> str:
        """What it answers; what it logs in between is passed over."""
        assert self._process.stdin is not None
        print(protocol, *words, file=self._process.stdin, flush=True)
        while True:
            verdict, _, rest = self._line().partition(" ")
            if verdict == "ok":
                return rest
            if verdict == "error":
                raise JavaFailed(rest)

    def read(
        self, protocol: str, verb: str, ledger: int, *, digest: str, password: str
    ) -> JavaRead:
        last, length, entries = self.tell(protocol, verb, ledger, digest, password).split(" ", 2)
        return JavaRead(int(last), int(length), entries.split(",") if entries else [])
