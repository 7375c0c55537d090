"""What the kit of real processes promises: ports are nobody else's, and nothing outlives a run."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.kits.ports import consecutive_ports, free_ports
from tests.kits.processes import RAFTWOOD, RealProcess

GONE_S_MAX = 60.0
_TAKES_PORTS = "from tests.kits.ports import free_ports; print(*free_ports(20)); input()"
_IS_KILLED = """
import os, signal, sys
from pathlib import Path
from tests.kits.processes import RAFTWOOD, RealProcess
found = RealProcess("sleeper", Path(sys.argv[1]))
found.launch(("sh", "-c", "sleep 600 & echo $!; wait"))
while not found.output.read_text():
    pass
ours = RealProcess("store", Path(sys.argv[1]), (*RAFTWOOD, "standalone", *sys.argv[2:]))
ours.start()
print(found.pid, found.output.read_text(), ours.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_two_runs_of_tests_never_have_one_port() -> None:
    with subprocess.Popen(
        (sys.executable, "-c", _TAKES_PORTS),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None
        theirs = set(map(int, other.stdout.readline().split()))
        ours = {port for _ in range(200) for port in free_ports(3)}
        other.communicate("\n", timeout=GONE_S_MAX)
    assert len(theirs) == 20
    assert not theirs & ours


def test_ports_come_in_turn_so_that_one_that_is_down_keeps_its_own() -> None:
    first = consecutive_ports(3)
    assert first not in [*free_ports(100), *range(later := consecutive_ports(3), later + 3)]


def test_a_run_that_is_killed_leaves_no_process_behind(tmp_path: Path) -> None:
    ended = subprocess.run(
        (sys.executable, "-c", _IS_KILLED, tmp_path, *_standalone(tmp_path)),
        capture_output=True,
        text=True,
        check=False,
    )
    left = [int(each) for each in ended.stdout.split()]
    assert len(left) == 3, ended
    deadline = time.monotonic() + GONE_S_MAX
    while any(map(_lives, left)):
        assert time.monotonic() < deadline, f"{left} outlived the run"
        time.sleep(0.02)


def _standalone(folder: Path) -> tuple[str, ...]:
    return (f"--data={folder / 'data'}", f"--port-base={consecutive_ports(40)}")


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_what_ends_before_it_is_ready_is_told_with_its_last_words(tmp_path: Path) -> None:
    process = RealProcess("sad", tmp_path, ("sh", "-c", "echo I cannot; exit 3"))
    with pytest.raises(AssertionError, match="I cannot"):
        process.start()
    assert process.wait() == 3


def test_a_command_that_is_forked_ends_as_one_that_is_started(tmp_path: Path) -> None:
    store = RealProcess("store", tmp_path, (*RAFTWOOD, "standalone", *_standalone(tmp_path)))
    store.start()
    assert psutil.Process(store.pid).ppid() != os.getpid()
    store.kill_now()
    store.start()
    assert store.stop() == 0
    store.launch((*RAFTWOOD, "standalone", "--no-such-option"))
    assert store.wait() == 2
    assert "--no-such-option" in store.log.read_text()
    store.start()
    store.signal(signal.SIGKILL)
    assert store.wait() == -signal.SIGKILL
