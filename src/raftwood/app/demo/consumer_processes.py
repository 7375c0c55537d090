"""Consumers of a stream as processes of their own, and numbered records that come all the time."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Final, Self

import msgspec

from raftwood.app.demo.consumer_notes import NUMBER
from raftwood.app.parts import LogHubPart
from raftwood.base.errors import DeadlineExceeded, InternalError, RaftwoodError
from raftwood.loghub.client import LogHubClient

PROCESSOR: Final = "raftwood.app.demo.consumer_notes:Noting"
_STOP_S_MAX: Final = 30.0
_LOOK_S: Final = 0.02
_KEYS: Final = 1_000
_PAUSE_S: Final = 0.02


class ConsumerGroup(msgspec.Struct, frozen=True, kw_only=True):
    """What all consumers have in common."""

    stream: str
    group: str
    store: str
    """Of the leases."""
    timeout_s: float


class ConsumerProcesses:
    """`raftwood consume` as often as one likes, by name; at the block's end all are gone."""

    def __init__(self, folder: str, loghub: LogHubPart, group: ConsumerGroup) -> None:
        self._folder = folder
        self._loghub = loghub
        self._group = group
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        os.makedirs(self._folder, exist_ok=True)
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            process.kill()
            process.communicate()

    def start(self, name: str) -> int:
        """The process's id; what it says stands in `NAME.log`."""
        group, part = self._group, self._loghub
        access = {
            "RAFTWOOD_LOGHUB_CLIENT__GATEWAYS": part.native,
            "RAFTWOOD_LOGHUB_CLIENT__ACCESS_KEY": part.access_key_id,
            "RAFTWOOD_LOGHUB_CLIENT__ACCESS_SECRET": part.access_key_secret,
        }
        inherited = {key: value for key, value in os.environ.items() if "RAFTWOOD_" not in key}
        with open(self._log(name), "ab") as log:
            self._processes[name] = subprocess.Popen(  # noqa: S603 (ourselves)
                [
                    *(sys.executable, "-m", "raftwood.app.child_process", "consume", group.stream),
                    *("--group", group.group, "--name", name, "--store", group.store),
                    *("--timeout", f"{group.timeout_s * 1000:.0f}ms", "--processor", PROCESSOR),
                ],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=self._folder,
                env=inherited | access,
                # An interrupt at the terminal is the parent's, who ends it in order.
                start_new_session=True,
            )
        return self._processes[name].pid

    def _log(self, name: str) -> str:
        return f"{self._folder}/{name}.log"

    def pids(self) -> dict[str, int]:
        """Of those that run; one that ended by itself is an error."""
        for name, process in self._processes.items():
            if process.poll() not in (None, 0, -signal.SIGKILL):
                with open(self._log(name), encoding="utf-8", errors="replace") as log:
                    raise InternalError(f"consumer {name} has failed: {log.read()[-2000:]}")
        return {
            name: process.pid
            for name, process in self._processes.items()
            if process.returncode is None
        }

    def kill(self, name: str) -> int:
        """With -9; when it was, on the clock that all processes share."""
        self._processes[name].kill()
        now_ns = time.monotonic_ns()
        self._processes[name].wait()
        return now_ns

    def signal(self, name: str, number: signal.Signals) -> None:
        self._processes[name].send_signal(number)

    def stop(self, *names: str) -> None:
        """Told to end, they hand all over first."""
        for name in names:
            self.signal(name, signal.SIGTERM)
        for name in names:
            self._processes[name].wait(_STOP_S_MAX)
        self.pids()


class NumberedLoad:
    """Records from 0 on, over all shards, sent by a thread; `sent` is known when it has ended."""

    def __init__(self, client: LogHubClient, stream: str, *, records_per_s: int) -> None:
        self._client = client
        self._stream = stream.split("/")
        self._records_per_s = records_per_s
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="numbered load")
        self.sent = 0
        self.failure: RaftwoodError | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> int:
        """All that was sent is stored now: how many."""
        self._is_over.set()
        self._thread.join()
        if self.failure is not None:
            raise self.failure
        return self.sent

    def _run(self) -> None:
        began = time.monotonic()
        try:
            with self._client.producer(*self._stream) as producer:
                while not self._is_over.wait(_PAUSE_S):
                    due = int((time.monotonic() - began) * self._records_per_s)
                    for number in range(self.sent, due):
                        producer.send({NUMBER: str(number)}, key=f"key-{number % _KEYS}")
                    self.sent = due
        except RaftwoodError as error:
            self.failure = error


def wait_until(holds: Callable[[], bool], *, seconds: float, what: str) -> float:
    """How long it took."""
    began = time.monotonic()
    while not holds():
        if time.monotonic() - began > seconds:
            raise DeadlineExceeded(f"{what}: not within {seconds:g} s")
        time.sleep(_LOOK_S)
    return time.monotonic() - began
