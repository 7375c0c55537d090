"""`raftwood ship` as a process that is killed and started again."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

import pytest

from tests.kits.clogs.gateway_receiver import Receiver
from tests.kits.server.gateway_thread import START_S_MAX


class Process:
    """`raftwood ship` as a process of its own."""

    def __init__(self, folder: Path) -> None:
        self._ready = folder / "ready"
        self._ready.unlink(missing_ok=True)
        settings = folder / "ship.toml"
        settings.write_text("batch_bytes_max = 4096\nline_bytes_max = 4096\ngrace_ms = 100\n")
        self._process = subprocess.Popen(
            (
                *(sys.executable, "-m", "raftwood.cli", "ship", f"{folder}/*.log"),
                *("--state", str(folder / "state"), "--name", "{base}"),
                *("--settings", str(settings)),
                *("--ready-file", str(self._ready), "--set", "http.listen=127.0.0.1:0"),
            ),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )

    def __enter__(self) -> Self:
        until(self._ready.exists)
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self.end(signal.SIGKILL)

    def end(self, number: int) -> tuple[int, str]:
        self._process.send_signal(number)
        _, told = self._process.communicate(timeout=START_S_MAX)
        return self._process.returncode, told.decode()


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + START_S_MAX
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_process_that_is_killed_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "a.log"
    written: list[str] = []

    def write(count: int) -> None:
        with log.open("a") as file:
            for _ in range(count):
                written.append(f"line {len(written)}")
                file.write(written[-1] + "\n")

    with Receiver(tmp_path) as receiver:
        for name, value in receiver.environment.items():
            monkeypatch.setenv(name, value)
        write(10_000)
        with Process(tmp_path) as process:
            until(receiver.lines)
            assert process.end(signal.SIGKILL)[0] == -signal.SIGKILL
        write(1000)
        log.rename(tmp_path / "a.log.1")
        write(1000)
        with Process(tmp_path) as process:
            until(lambda: len(receiver.lines()) >= len(written))
            status, told = process.end(signal.SIGTERM)
        assert status == 0, told
        assert receiver.lines() == written
        assert not os.path.exists(tmp_path / "state" / "status.json.new")
