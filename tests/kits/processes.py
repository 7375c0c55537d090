"""Real processes with real faults: started, killed, paused, stopped and started again.

    store = RealProcess("store-1", folder, command=(*RAFTWOOD, "serve", ...))
    store.start()            # until its ready file is there
    store.kill_now()         # with -9
    store.start()
    assert store.stop() == 0

Whoever has a loop awaits `ready`, `ended` and `kill`. Each process leads a group of its own, which
`tests.kits.watchdog` kills where the tests cannot.
"""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO, Any

import psutil

from tests.kits import resources, watchdog
from tests.kits.components import NEW_MOUNTS
from tests.kits.server.quick_commands import QuickCommands, QuickProcess
from tests.kits.servers.shared import VARIABLE, shared

RAFTWOOD = (sys.executable, "-m", "raftwood.cli")
_WITH_INTERRUPTS = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from raftwood.cli.command_line import main; main()"
)
INTERRUPTIBLE = (sys.executable, "-c", _WITH_INTERRUPTS)
"""The same, where the tests run in the background: a shell has interrupts ignored there."""
START_S_MAX = 240.0
END_S_MAX = 240.0
_POLL_S = 0.02
_TAIL = 2000


class RealProcess:
    """One process, through all its lives. Its output and its ready file are in one folder."""

    def __init__(self, name: str, folder: Path, command: Sequence[str] = ()) -> None:
        self.name = name
        self.command = tuple(command)
        self.output = folder / f"{name}.out"
        """What it prints in this life."""
        self.log = folder / f"{name}.log"
        """What it has logged in all its lives."""
        self.ready_file = folder / f"{name}.ready"
        self._process: subprocess.Popen[bytes] | QuickProcess | None = None
        self.pid = 0
        """Of the program itself, which may run below a tracer."""
        self.rss_peak_bytes = 0

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def tail(self) -> str:
        """The end of what it has said, for whoever cannot go on."""
        said = [each.read_text()[-_TAIL:] for each in (self.output, self.log) if each.exists()]
        return f"{self.name}: {' '.join(said)}"

    # Starting.

    def begin(self, *more: str, wrapper: Sequence[str] = (), **environment: str) -> None:
        """Start it, without waiting for it."""
        self.ready_file.unlink(missing_ok=True)
        ready = f"--ready-file={self.ready_file}"
        self.launch((*wrapper, *self.command, *more, ready), environment)

    def launch(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        """Standard input stays open for as long as this process lives."""
        assert not self.is_running
        if self._process is not None:
            self._forget()  # it ended by itself, and nobody has asked how
        self.output.parent.mkdir(exist_ok=True)
        given = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **(environment or {})}
        with self.output.open("wb") as output, self.log.open("ab") as log:
            self._process = _begun(tuple(command), output, log, given)
        self.pid = self._process.pid
        watchdog.began(self._process.pid)
        resources.lasts(self._process.pid)

    @property
    def is_ready(self) -> bool:
        return self.is_running and self.ready_file.exists()

    def wait_ready(self) -> None:
        deadline = time.monotonic() + START_S_MAX
        while not self.is_ready:
            self._check_starts(deadline)
            time.sleep(_POLL_S)

    async def ready(self) -> None:
        deadline = time.monotonic() + START_S_MAX
        while not self.is_ready:
            self._check_starts(deadline)
            await asyncio.sleep(_POLL_S)

    def _check_starts(self, deadline: float) -> None:
        assert self.is_running, f"it ended: {self.tail()}"
        assert time.monotonic() < deadline, f"it is not ready in time: {self.tail()}"

    def start(self, *more: str) -> None:
        self.begin(*more)
        self.wait_ready()

    # Faults.

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def pause(self) -> None:
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.signal(signal.SIGCONT)

    async def kill(self) -> None:
        self.signal(signal.SIGKILL)
        await self.ended()

    def kill_now(self) -> None:
        """As `kill`, without a loop."""
        self.signal(signal.SIGKILL)
        self.wait()

    # Ending.

    def stop(self) -> int:
        """As a supervisor does; answers the exit status."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        """The exit status, once it has ended."""
        assert self._process is not None
        try:
            self._process.wait(END_S_MAX)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it does not end: {self.tail()}") from None
        return self._forget()

    async def ended(self) -> int:
        """As `wait`, with a loop."""
        assert self._process is not None
        deadline = time.monotonic() + END_S_MAX
        while self._process.poll() is None:
            assert time.monotonic() < deadline, f"it does not end: {self.tail()}"
            await asyncio.sleep(0.005)
        return self._forget()

    def discard(self) -> None:
        """Whatever happened, nothing is left of it or of those that it has started."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(END_S_MAX)
        self._forget()

    def _forget(self) -> int:
        """The process, which has ended; its exit status."""
        process, self._process = self._process, None
        assert process is not None
        assert process.stdin is not None
        process.stdin.close()
        watchdog.ended(process.pid)
        resources.ended(process.pid)
        assert process.returncode is not None
        return process.returncode

    # Looking at it.

    def rss_bytes(self) -> int:
        return int(psutil.Process(self.pid).memory_info().rss)

    def note_memory(self) -> None:
        if self.is_running:
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


def _begun(
    command: tuple[str, ...], output: IO[bytes], log: IO[bytes], environment: dict[str, str]
) -> "subprocess.Popen[bytes] | QuickProcess":
    """A process that leads a group; a command of ours is forked, where the run has who does it."""
    own = len(RAFTWOOD)
    if command[:own] == RAFTWOOD and VARIABLE in os.environ:
        words = ("raftwood", *command[own:])
        return QuickProcess(_forking(), words, output.fileno(), log.fileno(), environment)
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=log,
        env=environment,
        process_group=0,
    )


@cache
def _forking() -> str:
    return shared(QuickCommands).address


@cache
def quick_raftwood() -> tuple[str, ...]:
    """Does what `raftwood` does, and has it loaded already, where the run has who forks."""
    return (f"{shared(QuickCommands).path}/raftwood",) if VARIABLE in os.environ else RAFTWOOD


class StoreProcess(RealProcess):
    """One of several with numbers, each with a data folder and an address of its own."""

    def __init__(
        self, name: str, number: int, folder: Path, address: str, command: Sequence[str] = ()
    ) -> None:
        super().__init__(name, folder, command)
        self.store = number
        self.folder = folder / name
        self.address = address


# Faults that a process is born with: put one before its command.


def injected(fault: str) -> tuple[str, ...]:
    """A fault of a system call, as strace's `inject` names it."""
    call = fault.partition(":")[0]
    quiet = ("strace", "-f", "--seccomp-bpf", "-qqq", "-o", "/dev/null")
    return (*quiet, "-e", f"trace={call}", "-e", f"inject={fault}")


def in_small_disk(mounted: Path, size_kib: int) -> tuple[str, ...]:
    """The folder, which is there, is on a disk of this size that nobody else sees."""
    mount = f'mount -t tmpfs -o size={size_kib}k none "{mounted}" && exec "$0" "$@"'
    return (*NEW_MOUNTS, "sh", "-c", mount)


def seen_inside(process: StoreProcess) -> Path:
    """The folder as the process sees it: the mount is its own."""
    return Path(f"/proc/{process.pid}/root{process.folder}")


def fill(folder: Path, left_bytes: int = 0) -> Path:
    """Take all the room that there is but for some; to the last page where none is left."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue
        if left_bytes:
            file.truncate(max(0, file.tell() - left_bytes))
    return ballast
