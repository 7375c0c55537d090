"""`raftwood standalone` as a process of its own."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

import msgspec

from raftwood.loghub.client import LogHubClient

START_S_MAX = 60.0
STOP_S_MAX = 30.0


class HubPart(msgspec.Struct):
    native: str
    access_key_id: str
    access_key_secret: str


class ServicePart(msgspec.Struct):
    address: str
    config: str


class Ready(msgspec.Struct):
    loghub: HubPart
    logservice: ServicePart


def _free_ports(count: int) -> int:
    """The first of so many ports in a row that nobody uses."""
    for base in range(20_000 + os.getpid() % 20_000, 60_000, count):
        try:
            for port in range(base, base + count):
                with socket.socket() as unused:
                    unused.bind(("127.0.0.1", port))
        except OSError:
            continue
        return base
    raise AssertionError("no ports are free")


class Standalone:
    """Use it as a context manager."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port_base = _free_ports(4)
        self._process: subprocess.Popen[bytes] | None = None
        self.hub: HubPart
        self.service: ServicePart

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(STOP_S_MAX)

    def start(self) -> None:
        ready = self._folder / "ready.json"
        ready.unlink(missing_ok=True)
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    "from raftwood.app.command_line import main; main()",
                    "standalone",
                    *("--data", str(self._folder / "data")),
                    *("--port-base", str(self._port_base)),
                    *("--ready-file", str(ready)),
                ],
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + START_S_MAX
        while not ready.exists() or not ready.read_bytes():
            assert self._process.poll() is None, (self._folder / "log").read_text()
            assert time.monotonic() < deadline, (self._folder / "log").read_text()
            time.sleep(0.05)
        parts = msgspec.json.decode(ready.read_bytes(), type=Ready)
        self.hub, self.service = parts.loghub, parts.logservice

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait(STOP_S_MAX)

    @property
    def access(self) -> dict[str, str]:
        """As options of Spark."""
        return {
            "gateways": self.hub.native,
            "accessKey": self.hub.access_key_id,
            "accessSecret": self.hub.access_key_secret,
        }

    def client(self) -> LogHubClient:
        return LogHubClient.connect(
            self.hub.native, key_id=self.hub.access_key_id, secret=self.hub.access_key_secret
        )
