"""The demo of the log service keeps its promise, and leaves nothing behind."""

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

SHORT = ("demo", "logservice", "--seconds", "0.1", "--shards", "2", "--records", "2000")


def test_nothing_acked_is_lost_when_stores_are_lost_repaired_and_killed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    status = raftwood([*SHORT, "--format", "json"])
    captured = capsys.readouterr()
    assert status == 0, captured
    outcome = json.loads(captured.out)
    assert outcome["verdict"]["acked_found"] == outcome["records_acked"] > 2000
    assert (outcome["verdict"]["missing"], outcome["verdict"]["twice"]) == (0, 0)
    for truncation in outcome["truncations"]:
        assert truncation["bytes_after"] < truncation["bytes_before"]
        assert truncation["first_lsn"] == truncation["truncated_lsn"] + 1
    assert max(outcome["failover_ms"].values()) < 15_000
    assert list(outcome["exit_statuses"].values()) == [0, 0, 0]
    steps = [step["text"] for step in outcome["steps"]]
    assert "HAKeeper: running" in steps
    for shard in ("HAKeeper", "shard 1", "shard 2"):
        votes = next(place for place, text in enumerate(steps) if f"{shard}: store 4 votes" in text)
        assert f"{shard}: store 4 is a learner" in steps[:votes]
    assert "hakeeper.tick_ms=100" in captured.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments", [("--shards", "0"), ("--records", "1"), ("--seconds", "0")], ids=" ".join
)
def test_what_cannot_be_played_is_refused(
    arguments: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert raftwood(["demo", "logservice", *arguments]) == 2
    assert "1 to 64 shards" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_neither_stores_nor_files_outlive_the_demo(tmp_path: Path, number: signal.Signals) -> None:
    # A shell starts what runs in the background with interrupts ignored: take them back.
    program = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from raftwood.app.command_line import main; main()"
    )
    with subprocess.Popen(
        (sys.executable, "-c", program, *SHORT),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(tmp_path)},
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        for line in process.stdout:
            if "records appended" in line:
                break
        children = psutil.Process(process.pid).children()
        assert len(children) == 3
        process.send_signal(number)
        process.stdout.read()
        assert process.stderr.read() == "error: interrupted\n"
        assert process.wait(timeout=30) == 130
    assert list(tmp_path.iterdir()) == []
    deadline = time.monotonic() + 10
    while any(child.is_running() for child in children):
        assert time.monotonic() < deadline, "a store outlived the demo"
        time.sleep(0.05)
