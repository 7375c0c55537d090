"""The demo of a cluster keeps its promise, and leaves nothing behind."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from raftwood.app.command_line import run as raftwood

COMMAND = (sys.executable, "-m", "raftwood.app", "demo", "cluster")


def test_nothing_acked_is_lost_or_done_twice_when_stores_are_killed_added_and_removed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    status = raftwood(["demo", "cluster", "--seconds", "0.3", "--writers", "8", "--format", "json"])
    captured = capsys.readouterr()
    assert status == 0, captured
    outcome = json.loads(captured.out)
    assert outcome["writes_acked"] > 100
    assert outcome["verdict"]["keys_found"] >= outcome["writes_acked"]
    assert (outcome["verdict"]["missing"], outcome["verdict"]["twice"]) == (0, 0)
    assert outcome["failover_ms"] < 15_000
    assert list(outcome["exit_statuses"].values()) == [0, 0, 0]
    assert "is killed with -9" in captured.err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_store_outlives_the_demo(tmp_path: Path, number: signal.Signals) -> None:
    # A shell starts what runs in the background with interrupts ignored: take them back.
    program = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from raftwood.app.command_line import main; main()"
    )
    folder = tmp_path / "stores"
    with subprocess.Popen(
        (sys.executable, "-c", program, *RAFTWOOD[3:], "--data", str(folder)),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "three stores serve" in line:
                break
        children = psutil.Process(process.pid).children()
        assert len(children) == 3
        process.send_signal(number)
        process.stdout.read()
        assert process.wait(timeout=30) == (130 if number is signal.SIGINT else -number)
    deadline = time.monotonic() + 10
    while any(child.is_running() for child in children):
        assert time.monotonic() < deadline, "a store outlived the demo"
        time.sleep(0.05)
