"""`raftwood clogs status` on what a shipping process wrote."""

import json
import time
from pathlib import Path

import pytest

from raftwood.cli.command_line import run
from raftwood.cli.ship_status import STATUS_FILE, ShipStatus, write_status
from raftwood.clogs.client.status import Counters, ServerCounters, ServerStatus, ShipperStatus
from raftwood.clogs.tail.followed_file import FileStatus, TailCounters, TailStatus


def written(folder: Path, *, age_s: float = 0.0, dropped: int = 0, is_panic: bool = False) -> None:
    counters = ServerCounters(sent=70, acked=60, retried=10, spooled=5, dropped=dropped)
    server = ServerStatus(
        server="log-a",
        address="127.0.0.1:7290",
        is_connected=True,
        is_isolated=is_panic,
        isolated_for_s=3.0 if is_panic else None,
        round_trip_ms=0.4,
        counters=counters,
    )
    file = FileStatus(
        name="app.log", path="/x/app.log", size=900, offset=600, behind_bytes=300, lines=60, bytes=6
    )
    status = ShipStatus(
        process=4711,
        time_ns=int((time.time() - age_s) * 1e9),
        tail=TailStatus(
            files=1,
            open_files=1,
            missing_files=0,
            behind_bytes=300,
            counters=TailCounters(lines=60, cut_bytes=400, missed_files=2),
            scanned_because="/x is on nfs",
            file_list=[file],
        ),
        shipper=ShipperStatus(
            version=3,
            is_panic=is_panic,
            counters=Counters(taken=70, acked=60, dropped=dropped),
            servers=[server],
        ),
        masked={},
    )
    write_status(str(folder / STATUS_FILE), status)


def test_servers_counters_and_files_are_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path)
    assert run(["clogs", "status", "--state", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    for text in (
        "4711",
        "configuration 3",
        "log-a",
        "connected",
        "70",
        "app.log",
        "300 B",
        "2 files",
        "400 B",
        "nfs",
    ):
        assert text in shown


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"age_s": 60.0}, "ago"),
        ({"dropped": 7}, "7 lines dropped"),
        ({"is_panic": True}, "no server answers"),
    ],
)
def test_what_is_wrong_is_told_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: dict[str, float], text: str
) -> None:
    written(tmp_path, **options)  # type: ignore[arg-type]
    assert run(["clogs", "status", "--state", str(tmp_path)]) == 1
    assert text in capsys.readouterr().out.splitlines()[0]
    assert run(["clogs", "status", "--state", str(tmp_path), "--format", "json"]) == 1
    assert text in json.loads(capsys.readouterr().out)["problems"][0]


def test_a_folder_without_a_status_is_an_error_with_a_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["clogs", "status", "--state", str(tmp_path)]) != 0
    assert "--state of `raftwood ship`" in capsys.readouterr().err
