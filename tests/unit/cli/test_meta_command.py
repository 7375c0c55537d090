import json
from pathlib import Path

import pytest

from raftwood.cli.command_line import run as raftwood
from raftwood.metastore import zookeeper_store


def test_a_metastore_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def meta(*arguments: str, status: int = 0) -> str:
        assert raftwood(["meta", *arguments, "--file", f"{tmp_path}/meta"]) == status
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return captured.out or captured.err

    assert meta("put", "a/x", "one").split() == ["version", "1"]
    assert meta("cas", "a/x", "two", "--version", "1").split() == ["version", "2"]
    assert "no longer has version 1" in meta("cas", "a/x", "3", "--version", "1", status=1)
    shown = json.loads(meta("get", "a/x", "--format", "json"))
    assert shown == [{"key": "a/x", "value": "two", "version": 2}]
    assert "a/x" in meta("list", "a/")
    meta("delete", "a/x")
    assert "there is no key" in meta("get", "a/x", status=1)
    assert json.loads(meta("watch", "--count", "1", "--format", "json"))["value"] is None
    assert meta("watch", "--count", "1") == "3  a/x  -\n"
    assert json.loads(meta("status", "--format", "json"))[0]["version"] == 3
    assert "--count 0" in meta("watch", "--count", "0", status=2)


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        ((), 2, "name one metastore"),
        (("--file", "{folder}", "--zookeeper", "localhost:1"), 2, "name one metastore"),
        (("--zookeeper", "localhost"), 2, "write HOST:PORT"),
        (("--file", "{folder}", "--connect", "localhost:1"), 2, "name one metastore"),
        (("--connect", "localhost:1"), 2, "secrets.clients is not set"),
    ],
)
def test_a_metastore_is_named_once_and_rightly(
    arguments: tuple[str, ...],
    status: int,
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = [each.format(folder=tmp_path / "meta") for each in arguments]
    assert raftwood(["meta", "status", *given]) == status
    captured = capsys.readouterr()
    assert message in captured.err
    assert "Traceback" not in captured.err
    assert not (tmp_path / "meta").exists()


def test_a_server_that_is_away_is_told_without_a_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zookeeper_store, "TIMEOUT_MS", 300)
    assert raftwood(["meta", "status", "--zookeeper", "127.0.0.1:1"]) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith("error: no ZooKeeper server answered at 127.0.0.1:1 for 0.3 s")
    assert len(captured.err.splitlines()) == 1
