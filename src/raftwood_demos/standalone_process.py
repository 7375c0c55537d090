"""`raftwood standalone` as a process of a demo; it ends when the demo does, however that ended."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Final, Self

import msgspec

from raftwood.base.errors import InternalError
from raftwood.loghub.client import LogHubClient
from raftwood.server.child_processes import free_addresses
from raftwood.server.parts import LogHubPart, Parts
from raftwood.server.standalone import PORTS

_START_S_MAX: Final = 60.0
_STOP_S_MAX: Final = 30.0
_LOOK_S: Final = 0.05
_PORT_TRIES: Final = 20


class StandaloneProcess:
    """Use it as a context manager, or `start` and `close`; `parts` say how to reach it."""

    def __init__(self, folder: str, flags: Sequence[str] = ()) -> None:
        """`flags` are further ones of `raftwood standalone`."""
        self._folder = folder
        self._flags = flags
        self._process: subprocess.Popen[bytes] | None = None
        self.parts: Parts
        self.exit_status: int | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def start(self) -> None:
        """Where it is ready."""
        os.makedirs(self._folder, exist_ok=True)
        ready = f"{self._folder}/ready.json"
        if os.path.exists(ready):
            os.remove(ready)
        arguments = ("--data", f"{self._folder}/data", "--port-base", str(_free_base()))
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 (ourselves)
                [
                    *(sys.executable, "-m", "raftwood.cli.child_process", "standalone"),
                    *(*arguments, "--ready-file", ready, *self._flags),
                ],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={key: value for key, value in os.environ.items() if "RAFTWOOD_" not in key},
                # An interrupt at the terminal is the parent's, who ends it in order.
                start_new_session=True,
            )
        try:
            self.parts = self._wait(ready)
        except BaseException:
            self.close(is_orderly=False)
            raise

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(is_orderly=kind is None)

    @property
    def loghub(self) -> LogHubPart:
        return self.parts.loghub

    @property
    def _log(self) -> str:
        return f"{self._folder}/standalone.log"

    def _wait(self, ready: str) -> Parts:
        assert self._process is not None
        deadline = time.monotonic() + _START_S_MAX
        while not os.path.exists(ready):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise InternalError(f"raftwood standalone did not start: see {self._log}")
            time.sleep(_LOOK_S)
        with open(ready, "rb") as file:
            return msgspec.json.decode(file.read(), type=Parts)

    def close(self, *, is_orderly: bool = True) -> None:
        process = self._process
        assert process is not None
        process.send_signal(signal.SIGTERM if is_orderly else signal.SIGKILL)
        try:
            self.exit_status = process.wait(_STOP_S_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            self.exit_status = process.wait()
        assert process.stdin is not None
        process.stdin.close()

    def client(self) -> LogHubClient:
        part = self.loghub
        return LogHubClient.connect(
            part.native, key_id=part.access_key_id, secret=part.access_key_secret
        )


def _free_base() -> int:
    """The first of some ports in a row that nobody uses at the moment."""
    for _ in range(_PORT_TRIES):
        base = int(free_addresses(1)[0].rpartition(":")[2])
        if base + PORTS < 65_535 and _are_free(range(base, base + PORTS)):
            return base
    raise InternalError(f"no {PORTS} ports in a row are free on this machine: end what uses them")


def _are_free(ports: range) -> bool:
    for port in ports:
        with socket.socket() as tried:
            try:
                tried.bind(("127.0.0.1", port))
            except OSError:
                return False
    return True
