"""The demo of consumers keeps its promise, and leaves nothing behind."""

from pathlib import Path

import pytest

from raftwood.app.command_line import run as raftwood

SHORT = ("demo", "consumers", "--shards", "4", "--records", "300", "--timeout", "1")


@pytest.mark.slow
def test_each_record_is_processed_when_one_joins_one_is_killed_and_a_shard_is_split(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    status = raftwood([*SHORT])
    said = capsys.readouterr().out
    assert status == 0, said
    for text in ("dora joins", "ben is killed with -9", "shard 0 is split", "HELD: each of"):
        assert text in said
    assert list(tmp_path.iterdir()) == []
