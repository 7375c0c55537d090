"""A process of a demo: it is started, killed, paused and ended, and outlives nobody."""

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import IO, Final

from raftwood.base.errors import InternalError
from raftwood.server.child_processes import CHILD_MODULE, child_command, child_options

_START_S_MAX: Final = 60.0
_STOP_S_MAX: Final = 30.0
_LOOK_S: Final = 0.05


class DemoProcess:
    """Runs from the moment it is made; `close` ends it. It logs to `NAME.log`."""

    def __init__(
        self,
        folder: str,
        name: str,
        arguments: Sequence[str],
        *,
        module: str = CHILD_MODULE,
        variables: Mapping[str, str] | None = None,
        in_folder: bool = False,
        has_output: bool = False,
        has_ready_file: bool = False,
    ) -> None:
        """It works `in_folder`, or where this process does. With `has_output` its standard output
        is read here, and is not in the log.
        """
        self.name = name
        self.ready_file = f"{folder}/{name}.ready"
        self._log = f"{folder}/{name}.log"
        os.makedirs(folder, exist_ok=True)
        if has_ready_file:
            if os.path.exists(self.ready_file):
                os.remove(self.ready_file)
            arguments = (*arguments, "--ready-file", self.ready_file)
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 (ourselves)
                child_command(arguments, module=module),
                stdout=subprocess.PIPE if has_output else log,
                stderr=log,
                cwd=folder if in_folder else None,
                **child_options(variables),
            )
        assert self._process.stdin is not None
        self.input: IO[bytes] = self._process.stdin

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    @property
    def output(self) -> IO[bytes]:
        assert self._process.stdout is not None
        return self._process.stdout

    def check(self, *expected: int) -> None:
        """Raise if it has ended by itself, with another status than is expected."""
        status = self._process.poll()
        if status is not None and status not in expected:
            with open(self._log, encoding="utf-8", errors="replace") as log:
                raise InternalError(f"{self.name} has failed: {log.read()[-2000:]}")

    def wait_ready(self) -> None:
        deadline = time.monotonic() + _START_S_MAX
        while not os.path.exists(self.ready_file):
            self.check()
            if time.monotonic() > deadline:
                raise InternalError(f"{self.name} did not start: see {self._log}")
            time.sleep(_LOOK_S)

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> int:
        """End it with -9; when it was gone, on the clock that all processes share."""
        self._process.kill()
        self._process.wait()
        return time.monotonic_ns()

    def wait(self) -> int:
        """Its exit status; it is killed if it takes too long to end."""
        try:
            return self._process.wait(_STOP_S_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def close(self) -> int:
        """Wait until it has ended, and let go of its pipes; its exit status."""
        status = self.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        return status


def end_all(processes: Sequence[DemoProcess], *, is_orderly: bool) -> list[int]:
    """Their exit statuses."""
    for process in processes:
        process.signal(signal.SIGTERM if is_orderly else signal.SIGKILL)
    return [process.close() for process in processes]
