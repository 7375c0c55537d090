"""`raftwood ship`: files through a gateway's receiver into a logstore, each line once."""

import json
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest
from tests.kits.clogs.gateway_receiver import Receiver

from raftwood.base.metrics import Metrics
from raftwood.cli.command_line import run
from raftwood.cli.ship_status import COUNTERS, read_status, show_ship
from raftwood.clogs.client.status import ServerCounters
from raftwood.clogs.tail.followed_file import TailCounters


@pytest.fixture
def receiver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    with Receiver(tmp_path) as started:
        for name, value in started.environment.items():
            monkeypatch.setenv(name, value)
        yield started


def ship(folder: Path, *arguments: str) -> int:
    return run(["ship", "--state", str(folder / "state"), "--once", *arguments])


def test_files_are_shipped_once_and_the_next_run_goes_on(
    tmp_path: Path, receiver: Receiver, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "a.log"
    log.write_text("one\ntwo\nend")
    assert ship(tmp_path, f"{tmp_path}/*.log", "--name", "{base}") == 0
    assert receiver.lines() == ["one", "two", "end"]
    assert "3 lines of 11 bytes are stored" in capsys.readouterr().out
    with log.open("a") as file:
        file.write("\nthree\n")
    assert ship(tmp_path, str(log), "--name", "{base}") == 0
    assert receiver.lines() == ["one", "two", "end", "three"]
    status = read_status(str(tmp_path / "state" / "status.json"))
    assert (status.tail.counters.lines, status.tail.behind_bytes) == (1, 0)
    assert status.shipper.counters.acked == 1
    assert [each.name for each in status.tail.file_list] == ["a.log"]


def test_a_settings_file_says_how(tmp_path: Path, receiver: Receiver) -> None:
    (tmp_path / "a.log").write_text("mail me@example.com\n  and more\nticket 4711\n")
    settings = tmp_path / "ship.toml"
    settings.write_text(
        f"paths = ['{tmp_path}/*.log']\n"
        "masks = ['emails']\n"
        "multiline = {continue = '^\\s'}\n"
        "[[mask_rules]]\n"
        "name = 'ticket'\n"
        "pattern = 'ticket [0-9]+'\n"
        "replacement = 'ticket #'\n"
    )
    assert ship(tmp_path, "--settings", str(settings)) == 0
    assert receiver.lines() == ["mail ***@***\n  and more", "ticket #"]
    status = json.loads((tmp_path / "state" / "status.json").read_bytes())
    assert status["masked"] == {"emails": 1, "ticket": 1}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (None, "no file is named"),
        ("paths = [", "is no TOML"),
        ("paths = ['/x']\ncolour = 1", "colour"),
        ("paths = ['/x']\nmasks = ['nothing']", "no masking rule 'nothing'"),
    ],
)
def test_mistakes_end_with_status_2(
    tmp_path: Path,
    receiver: Receiver,
    capsys: pytest.CaptureFixture[str],
    text: str | None,
    told: str,
) -> None:
    arguments = []
    if text is not None:
        (tmp_path / "ship.toml").write_text(text)
        arguments = ["--settings", str(tmp_path / "ship.toml")]
    assert ship(tmp_path, *arguments) == 2
    assert told in capsys.readouterr().err
    assert receiver.lines() == []


def test_without_an_access_key_nothing_is_shipped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ship(tmp_path, f"{tmp_path}/a.log") == 2
    assert "access key" in capsys.readouterr().err


def test_every_counter_of_a_tailer_is_a_metric() -> None:
    assert set(COUNTERS) == set(TailCounters.__struct_fields__)


def test_metrics_tell_what_is_counted() -> None:
    metrics, tailer, shipper = Metrics(), Mock(), Mock()
    tailer.counters = TailCounters(lines=3)
    tailer.status.return_value.behind_bytes = 17
    tailer.status.return_value.files = 2
    shipper.counters.servers = {"a:1": ServerCounters(acked=3)}
    show_ship(metrics, tailer, shipper)
    for name in ("open_files", "missing_files"):
        setattr(tailer.status.return_value, name, 0)
    tailer.counters.lines += 1
    text = metrics.render().decode()
    assert "raftwood_ship_lines_total 4.0" in text
    assert "raftwood_ship_behind_bytes 17.0" in text
    assert 'raftwood_ship_server_lines_acked_total{server="a:1"} 3.0' in text
