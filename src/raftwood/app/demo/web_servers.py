"""The web servers of the demo, as the demo sees them: processes that take orders and tell how they
are.
"""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Final, Self

import msgspec

from raftwood.app.demo.web_files import server_name
from raftwood.app.demo.web_orders import Given, Order, Report, WebServerPlan
from raftwood.base.errors import InternalError
from raftwood.clogs.client.counters import Counters

_STOP_S_MAX: Final = 30.0


class WebServer:
    """One process; `report` is the last that it told."""

    def __init__(self, folder: str, number: int) -> None:
        self.name = server_name(number)
        self.report = Report(version=0, isolated=(), counters=Counters())
        self.given: tuple[Given, ...] = ()
        """Of the last order that it has carried out."""
        self._log = f"{folder}/{self.name}.log"
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "raftwood.app.demo.web_server"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={key: value for key, value in os.environ.items() if "RAFTWOOD_" not in key},
                # An interrupt at the terminal is the parent's, who ends it in order.
                start_new_session=True,
            )
        self._listening = threading.Thread(target=self._listen, name=f"reports of {self.name}")
        self._listening.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            report = msgspec.json.decode(line, type=Report)
            if report.given:
                self.given = report.given
            self.report = report

    def tell(self, said: WebServerPlan | Order) -> None:
        """Its plan first, then what it is to do."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(msgspec.json.encode(said) + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            self.check()
            raise

    def check(self) -> None:
        """One that ended by itself is an error."""
        if self._process.poll() is not None:
            with open(self._log, encoding="utf-8", errors="replace") as log:
                raise InternalError(f"web server {self.name} has failed: {log.read()[-2000:]}")

    def close(self, *, is_orderly: bool) -> int:
        """Its exit status."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        if not is_orderly:
            self._process.kill()
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            self._process.kill()
        try:
            status = self._process.wait(_STOP_S_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            status = self._process.wait()
        self._listening.join()
        self._process.stdout.close()
        return status


class WebServers:
    """All of them; use it as a context manager."""

    def __init__(self, folder: str, numbers: Sequence[int]) -> None:
        self._folder = folder
        self._numbers = numbers
        self.servers: list[WebServer] = []

    def __enter__(self) -> Self:
        os.makedirs(self._folder, exist_ok=True)
        try:
            for number in self._numbers:
                self.servers.append(WebServer(self._folder, number))
        except BaseException:
            self.close(is_orderly=False)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(is_orderly=kind is None)

    def close(self, *, is_orderly: bool) -> None:
        while self.servers:
            self.servers.pop().close(is_orderly=is_orderly)

    def reports(self) -> list[Report]:
        """The last of each."""
        for server in self.servers:
            server.check()
        return [server.report for server in self.servers]

    def all_say(self, holds: Callable[[Report], bool]) -> bool:
        return all(holds(report) for report in self.reports())

    def acked(self) -> int:
        return sum(report.counters.acked for report in self.reports())
