"""The demo of LogHub keeps its promise, and leaves nothing behind."""

import json
from pathlib import Path

import pytest

from raftwood.app.command_line import run as raftwood

SHORT = ("demo", "loghub", "--seconds", "0.1", "--shards", "2", "--records", "5000")


def test_nothing_acked_is_lost_when_shards_are_split_and_processes_killed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    status = raftwood([*SHORT, "--format", "json"])
    captured = capsys.readouterr()
    assert status == 0, captured
    outcome = json.loads(captured.out)
    verdict = outcome["verdict"]
    assert verdict["acked_found"] == outcome["records_acked"] > 5000
    assert (verdict["missing"], verdict["twice"], verdict["disordered"]) == (0, 0, 0)
    assert sorted(outcome["exit_statuses"]) == [
        "gateway-1",
        "gateway-2",
        "store-1",
        "store-2",
        "store-3",
    ]
    assert [each["shard"]["status"] for each in outcome["shards"]] == [
        "readonly",
        "readwrite",
        "readonly",
        "readonly",
        "readwrite",
    ]
    steps = " ".join(step["text"] for step in outcome["steps"])
    for text in ("shard 0 is split", "gateway 1 is killed", "store 1 is killed", "are merged"):
        assert text in steps
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments", [("--shards", "0"), ("--records", "1"), ("--producers", "0")], ids=" ".join
)
def test_what_cannot_be_played_is_refused(
    arguments: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert raftwood(["demo", "loghub", *arguments]) == 2
    assert "1 to 64 shards" in capsys.readouterr().err
