"""Each demo keeps its promise in a short run, and leaves nothing behind."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from raftwood.cli.command_line import run as raftwood
from raftwood.loghub.model import LogKind
from raftwood.pipeline.read import read
from raftwood_demos.receivers import OTHERS, ReceiverTarget
from raftwood_demos.shipping import Shipping, ShippingPlan, shipping_checks
from raftwood_demos.standalone_process import StandaloneProcess
from raftwood_demos.story import StoryListener
from raftwood_demos.web_logs import stored_files
from tests.kits.processes import INTERRUPTIBLE

GONE_S_MAX = 60.0


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where demos put what they need."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def outcome_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[Any, str]:
    """What the demo came to, and what it said meanwhile."""
    status = raftwood(["demo", *arguments, "--format", "json"])
    captured = capsys.readouterr()
    assert status == 0, captured
    return json.loads(captured.out), captured.err


def test_nothing_acked_is_lost_or_done_twice_when_stores_are_killed_added_and_removed(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    outcome, said = outcome_of(capsys, "cluster", "--seconds", "0.3", "--writers", "8")
    assert outcome["verdict"]["keys_found"] >= outcome["writes_acked"] > 0
    assert (outcome["verdict"]["missing"], outcome["verdict"]["twice"]) == (0, 0)
    assert outcome["failover_ms"] > 0
    assert list(outcome["exit_statuses"].values()) == [0, 0, 0]
    assert "is killed with -9" in said
    assert list(folder.iterdir()) == []


def test_nothing_acked_is_lost_when_stores_are_lost_repaired_and_killed(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    short = ("--seconds", "0.1", "--shards", "2", "--records", "2000")
    outcome, said = outcome_of(capsys, "logservice", *short)
    assert outcome["verdict"]["acked_found"] == outcome["records_acked"] > 2000
    assert (outcome["verdict"]["missing"], outcome["verdict"]["twice"]) == (0, 0)
    for truncation in outcome["truncations"]:
        assert truncation["bytes_after"] < truncation["bytes_before"]
        assert truncation["first_lsn"] == truncation["truncated_lsn"] + 1
    assert min(outcome["failover_ms"].values()) > 0
    assert list(outcome["exit_statuses"].values()) == [0, 0, 0]
    steps = [step["text"] for step in outcome["steps"]]
    assert "HAKeeper: running" in steps
    for shard in ("HAKeeper", "shard 1", "shard 2"):
        votes = next(place for place, text in enumerate(steps) if f"{shard}: store 4 votes" in text)
        assert f"{shard}: store 4 is a learner" in steps[:votes]
    assert "hakeeper.tick_ms=100" in said
    assert list(folder.iterdir()) == []


def test_nothing_acked_is_lost_when_shards_are_split_and_processes_killed(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    short = ("--seconds", "0.1", "--shards", "2", "--records", "5000")
    outcome, _ = outcome_of(capsys, "loghub", *short)
    verdict = outcome["verdict"]
    assert verdict["acked_found"] == outcome["records_acked"] > 5000
    assert (verdict["missing"], verdict["twice"], verdict["disordered"]) == (0, 0, 0)
    names = ["gateway-1", "gateway-2", "store-1", "store-2", "store-3"]
    assert sorted(outcome["exit_statuses"]) == names
    statuses = ["readonly", "readwrite", "readonly", "readonly", "readwrite"]
    assert [each["shard"]["status"] for each in outcome["shards"]] == statuses
    steps = " ".join(step["text"] for step in outcome["steps"])
    for text in ("shard 0 is split", "gateway 1 is killed", "store 1 is killed", "are merged"):
        assert text in steps
    assert list(folder.iterdir()) == []


def test_each_record_is_processed_when_one_joins_one_is_killed_and_a_shard_is_split(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    short = ("--shards", "4", "--records", "100", "--timeout", "4")
    status = raftwood(["demo", "consumers", *short])
    said = capsys.readouterr().out
    assert status == 0, said
    for text in ("dora joins", "ben is killed with -9", "shard 0 is split", "HELD: each of"):
        assert text in said
    assert list(folder.iterdir()) == []


def test_web_servers_ship_every_line_once_and_in_order_while_a_receiver_is_killed(
    tmp_path: Path,
) -> None:
    target = ReceiverTarget("web", "access")
    plan = ShippingPlan(servers=2, lines=4_000, lines_per_minute=1_000, seed=11, seconds=3.0)
    told: list[str] = []
    listener = StoryListener(on_step=told.append, on_progress=lambda *_: None)
    with (
        StandaloneProcess(str(tmp_path), target.flags()) as standalone,
        standalone.client() as client,
    ):
        client.create_project("web")
        client.create_logstore("web", "access", shard_count=2, log=LogKind.DLOG)
        with Shipping(str(tmp_path), standalone.parts, plan, target, listener) as shipping:
            _, killed = shipping.ship_and_kill(3_500)
            shipping.ship(500)
            shipped = shipping.shipped(killed)
            truth, made = shipping.known()
        part = standalone.loghub
        access = {
            "gateways": part.native,
            "access_key": part.access_key,
            "access_secret": part.access_secret,
        }
        found = stored_files(read, "web", "access", access)
    assert truth.total.requests == plan.lines
    checks = shipping_checks(shipped, lines=plan.lines, made=made, found=found)
    assert [each for each in checks if not each.held] == []
    assert killed.receiver in OTHERS
    assert killed.files > 0
    assert killed.acked_again > 0
    assert sum(each.acked for each in shipped.receivers.values()) == plan.lines
    assert any("is killed with -9" in each for each in told)
    assert standalone.exit_status == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_neither_stores_nor_files_outlive_a_demo(tmp_path: Path, number: signal.Signals) -> None:
    short = ("--seconds", "0.1", "--shards", "2", "--records", "2000")
    with subprocess.Popen(
        (*INTERRUPTIBLE, "demo", "logservice", *short),
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
        if number is signal.SIGKILL:  # which leaves the demo no time for its files
            assert process.wait(GONE_S_MAX) == -number
        else:
            assert process.stderr.read() == "error: interrupted\n"
            assert process.wait(GONE_S_MAX) == 130
            assert list(tmp_path.iterdir()) == []
    deadline = time.monotonic() + GONE_S_MAX
    while any(child.is_running() for child in children):
        assert time.monotonic() < deadline, "a store outlived the demo"
        time.sleep(0.05)
