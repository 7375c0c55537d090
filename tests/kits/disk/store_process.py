"""One store's process, through all its lives: started, killed, paused, stopped, and looked at."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

START_S_MAX = 60.0
_ENDED_S_MAX = 60.0


class StoreProcess:
    """`start` of a kind of store calls `launch`, and its `ready` sets `pid`."""

    def __init__(self, store: int, folder: Path, address: str) -> None:
        self.store = store
        self.folder = folder / f"store-{store}"
        self.address = address
        self.output = folder / f"store-{store}.out"
        self.log = folder / f"store-{store}.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.pid = 0
        """Of the store itself, which may run below a tracer."""
        self.rss_peak_bytes = 0

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def launch(self, command: Sequence[str]) -> None:
        """Standard input stays open for as long as this process lives."""
        assert not self.is_running
        self.output.write_bytes(b"")
        with self.output.open("ab") as output, self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=output, stderr=log
            )
        self.pid = self._process.pid

    def check_starts(self, began: float) -> None:
        """For whoever waits until it is ready."""
        assert self.is_running, f"store {self.store} ended: {self.log.read_text()[-2000:]}"
        in_time = time.monotonic() - began < START_S_MAX
        assert in_time, f"store {self.store} is not ready in time: {self.log.read_text()[-2000:]}"

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    async def ended(self) -> int:
        """The exit code, once the process is gone."""
        assert self._process is not None
        deadline = time.monotonic() + _ENDED_S_MAX
        while self._process.poll() is None:
            assert time.monotonic() < deadline, f"store {self.store} does not end"
            await asyncio.sleep(0.005)
        if self._process.stdin is not None:
            self._process.stdin.close()
        return self._process.returncode

    async def kill(self) -> None:
        self.signal(signal.SIGKILL)
        await self.ended()

    def discard(self) -> None:
        """Whatever happened, nothing is left."""
        if self._process is None:
            return
        if self._process.poll() is None:
            for process in [*psutil.Process(self._process.pid).children(recursive=True)]:
                process.kill()
            self._process.kill()
            self._process.wait(timeout=_ENDED_S_MAX)
        if self._process.stdin is not None:
            self._process.stdin.close()

    def rss_bytes(self) -> int:
        return int(psutil.Process(self.pid).memory_info().rss)

    def note_memory(self) -> None:
        if self.is_running and self.pid:
            with contextlib.suppress(psutil.NoSuchProcess):
                self.rss_peak_bytes = max(self.rss_peak_bytes, self.rss_bytes())

    def events(self) -> Counter[tuple[str, str]]:
        """How often it logged what, by level; a line that is no event counts as itself."""
        return Counter((each["level"], each["event"]) for each in self._lines())

    def told(self, event: str, **about: Any) -> list[dict[str, Any]]:
        """What it logged of an event, where the fields are these."""
        wanted = {"event": event, **about}
        return [each for each in self._lines() if wanted.items() <= each.items()]

    def _lines(self) -> list[dict[str, Any]]:
        found = []
        for line in self.log.read_text().splitlines():
            told: Any = None
            with contextlib.suppress(ValueError):
                told = json.loads(line)
            is_event = isinstance(told, dict) and told.keys() >= {"level", "event"}
            found.append(told if is_event else {"level": "none", "event": line})
        return found
