"""Which lines web servers make and ship, and what is known of these without shipping them."""

import threading
from collections.abc import Iterator
from typing import Self

import msgspec

from raftwood.app.demo.web_files import WebFiles, file_name, share
from raftwood.app.demo.web_logs import web_logs
from raftwood.app.demo.web_truth import WebTruth


class ShippingPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Who ships how much."""

    servers: int = 3
    lines: int
    """In all."""
    lines_per_minute: int
    """Of all servers, by the times of the lines."""
    seed: int
    seconds: float = 5.0
    """Shipping lasts so long at the least where a receiver is killed meanwhile."""

    def server_lines(self, server: int) -> Iterator[str]:
        return web_logs(
            share(self.lines, server, self.servers),
            seed=self.seed,
            server=server,
            lines_per_minute=self.server_lines_per_minute,
        )

    @property
    def server_lines_per_minute(self) -> int:
        return self.lines_per_minute // self.servers


class MadeLines:
    """All lines of the plan, made once more by a thread, and what matters of them.

    Use it as a context manager; `begin` when there is time for it.
    """

    def __init__(self, plan: ShippingPlan) -> None:
        self._plan = plan
        self._truth, self._files = WebTruth(), WebFiles()
        self._is_over = False
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over = True
        if self._thread is not None:
            self._thread.join()

    def begin(self) -> threading.Thread:
        if self._thread is None:
            self._thread = threading.Thread(target=self._make, name="lines once more")
            self._thread.start()
        return self._thread

    def known(self) -> tuple[WebTruth, WebFiles]:
        self.begin().join()
        return self._truth, self._files

    def _make(self) -> None:
        for number in range(1, self._plan.servers + 1):
            for line in self._plan.server_lines(number):
                if self._is_over:
                    return
                self._truth.add(line)
                self._files.add(file_name(number, line), line)
