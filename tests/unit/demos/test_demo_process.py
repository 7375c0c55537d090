"""Processes of demos: they are watched, and end when they are told to."""

import signal
from pathlib import Path

import pytest

from raftwood.base.errors import InternalError
from raftwood_demos.processes import DemoProcess, end_all


def test_one_that_fails_is_an_error_with_its_last_words(tmp_path: Path) -> None:
    process = DemoProcess(str(tmp_path), "one", ["nonsense"], has_ready_file=True)
    with pytest.raises(InternalError, match=r"(?s)one has failed: .*nonsense"):
        process.wait_ready()
    assert process.close() != 0


def test_one_ends_in_order_and_one_with_9(tmp_path: Path) -> None:
    # It reads its input until that is closed.
    processes = [
        DemoProcess(str(tmp_path), name, [], module="code", has_output=True) for name in ("a", "b")
    ]
    assert all(process.is_running for process in processes)
    processes[1].kill()
    assert not processes[1].is_running
    processes[1].check(-signal.SIGKILL)
    with pytest.raises(InternalError, match="b has failed"):
        processes[1].check()
    assert end_all(processes, is_orderly=True) == [-signal.SIGTERM, -signal.SIGKILL]
