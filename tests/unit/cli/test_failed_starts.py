"""A local cluster that cannot start says why in one line, and leaves no folder behind."""

import socket
from pathlib import Path

import pytest
from tests.kits.ports import consecutive_ports

from raftwood.cli.command_line import run as raftwood

STARTS = (("standalone",), ("cluster", "up", "--stores=1", "--kv-nodes=0", "--bookies=0"))


@pytest.fixture(params=STARTS, ids=" ".join)
def start(request: pytest.FixtureRequest) -> tuple[str, ...]:
    command: tuple[str, ...] = request.param
    return command


def _refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert raftwood([*arguments]) != 0
    shown = capsys.readouterr()
    assert (shown.out, shown.err.count("\n")) == ("", 1), shown
    assert shown.err.startswith("error: ")
    return shown.err


def test_a_file_is_no_data_folder(
    start: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    base = f"--port-base={consecutive_ports(10)}"
    assert "is a file" in _refused(capsys, *start, f"--data={file}", base)
    assert "cannot be made" in _refused(capsys, *start, f"--data={file}/data", base)
    assert file.read_text() == "mine"


def test_a_ready_file_needs_its_folder(
    start: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ready = f"--ready-file={tmp_path}/none/ready"
    said = _refused(capsys, *start, f"--data={tmp_path}/data", ready)
    assert f"there is no folder {tmp_path}/none" in said
    assert not [*tmp_path.iterdir()]


def test_a_port_that_is_taken_is_named_with_the_option(
    start: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = consecutive_ports(10)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", base + 1))
        taken.listen()
        said = _refused(capsys, *start, f"--data={tmp_path}/data", f"--port-base={base}")
    assert f"port {base + 1} is taken" in said
    assert "--port-base" in said
    assert not [*tmp_path.iterdir()]


def test_a_wrong_setting_leaves_no_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = _refused(capsys, "standalone", f"--data={tmp_path}/data", "--set=raft.no_such=1")
    assert "raft.no_such" in said
    assert not [*tmp_path.iterdir()]
