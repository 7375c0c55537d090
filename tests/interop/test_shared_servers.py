"""Servers that workers share are started once, are reached from other processes, and end with the
run, however it ends.
"""

import os
import signal
import subprocess
import sys
import time
from typing import Self

import psutil
import pytest

from tests.kits.servers.shared import locked, shared

ENDED_S_MAX = 60
RUN = """
import signal, subprocess
# A shell has interrupts ignored in what it starts in the background.
signal.signal(signal.SIGINT, signal.default_int_handler)
from tests.interop.test_shared_servers import Sleeper
from tests.kits.servers.shared import Keeper, shared
with Keeper():
    stray = subprocess.Popen(("sleep", "1000"), start_new_session=True)
    print(shared(Sleeper).child, stray.pid, flush=True)
    signal.pause()
"""


class Sleeper:
    """A server that does nothing."""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(("sleep", "1000"))
        self.child = self._process.pid
        self.parts = [Part(), Part()]
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def kill(self) -> None:
        self._process.kill()


class Part:
    def __init__(self) -> None:
        self.count = 0

    def add(self, number: int, *, twice: bool = False) -> int:
        self.count += number * (2 if twice else 1)
        return self.count

    def fail(self) -> None:
        raise ValueError("as it was told to")

    def kill(self) -> None: ...


def test_a_server_is_used_as_if_it_were_here() -> None:
    server = shared(Sleeper)
    assert psutil.Process(server.child).name() == "sleep"
    assert shared(Sleeper).child == server.child
    first, second = server.parts
    before = first.count
    assert first.add(3) == before + 3
    assert first.add(4, twice=True) == before + 11
    assert (first.count, second.count) == (before + 11, 0)
    with pytest.raises(ValueError, match="as it was told to"):
        second.fail()
    with pytest.raises(AttributeError):
        server.nothing  # type: ignore[attr-defined]  # noqa: B018


def test_who_breaks_a_server_has_it_alone() -> None:
    with locked(Sleeper), locked(Sleeper):
        pass
    program = (
        "from tests.interop.test_shared_servers import Sleeper\n"
        "from tests.kits.servers.shared import locked\n"
        "with locked(Sleeper, is_exclusive=True): print('mine')\n"
    )
    with locked(Sleeper):
        other = subprocess.Popen((sys.executable, "-c", program), stdout=subprocess.PIPE, text=True)
        with pytest.raises(subprocess.TimeoutExpired):
            other.wait(1)
    assert other.communicate(timeout=ENDED_S_MAX)[0] == "mine\n"


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_servers_and_whatever_else_was_started_end_with_the_run(how: signal.Signals) -> None:
    with subprocess.Popen(
        (sys.executable, "-c", RUN),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        text=True,
    ) as run:
        assert run.stdout is not None
        below = [psutil.Process(int(each)) for each in run.stdout.readline().split()]
        assert len(below) == 2
        run.send_signal(how)
    deadline = time.monotonic() + ENDED_S_MAX
    while any(each.is_running() for each in below):
        assert time.monotonic() < deadline, f"{below} outlive the run"
        time.sleep(0.05)
