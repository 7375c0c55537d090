"""Consumers of other people's SDKs as processes, each through a gateway of its choice.

Each prints a line of JSON with all values that it was handed at once, and then sets its checkpoint;
SIGTERM lets it end in order.
"""

import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from raftwood.base.metrics import Metrics
from raftwood.loghub.server.listeners import serve_http
from raftwood.loghub.settings import GatewaySettings
from tests.kits.loghub.gateways import SETTINGS, ThreadedGateway

END_SECONDS_MAX = 120.0
WAIT_SECONDS_MAX = 120.0


class Worker:
    """One process; what it read is in `values`, in order."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self.read: list[tuple[int, str]] = []
        self._process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._errors: list[str] = []
        self._threads = [
            threading.Thread(target=self._take_lines),
            threading.Thread(target=self._take_errors),
        ]
        for thread in self._threads:
            thread.start()

    def _take_lines(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                batch = json.loads(line)
                self.read += [(batch["shard"], value) for value in batch["values"]]

    def _take_errors(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._errors = [*self._errors[-40:], line]

    @property
    def shards(self) -> list[int]:
        return sorted({shard for shard, _ in self.read})

    @property
    def values(self) -> list[str]:
        return [value for _, value in self.read]

    def kill(self) -> None:
        self._process.kill()
        self._ended()

    def stop(self) -> None:
        """It has to end by itself."""
        self._process.terminate()
        try:
            status = self._ended()
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        assert status == 0, "".join(self._errors)

    def _ended(self) -> int:
        status = self._process.wait(END_SECONDS_MAX)
        for thread in self._threads:
            thread.join(END_SECONDS_MAX)
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()
        return status

    def close(self) -> None:
        if self._process.returncode is None:
            self.kill()


def listening_at(address: str) -> GatewaySettings:
    return msgspec.structs.replace(SETTINGS, http_listen=address)


def web_addresses() -> tuple[str, str]:
    """Two of this process alone, with the port that clients take who name none."""
    high, low = divmod(os.getpid() % 62_500, 250)
    return f"127.{100 + high % 100}.{low + 1}.1:80", f"127.{100 + high % 100}.{low + 1}.2:80"


@contextmanager
def another_port(served: ThreadedGateway, settings: GatewaySettings) -> Iterator[str]:
    """Of a second gateway over the same metastore and logs."""

    async def start() -> Any:
        kit = served.served.kit
        gateway = await kit.gateway()
        return await serve_http(kit.environment, gateway, settings, metrics=Metrics())

    listener = served.run(start())
    try:
        yield listener.address
    finally:
        served.run(listener.close())


def wait_until(is_done: Callable[[], bool], *, what: str) -> None:
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not is_done():
        assert time.monotonic() < deadline, f"not within {WAIT_SECONDS_MAX} s: {what}"
        time.sleep(0.05)
