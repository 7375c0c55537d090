import json
import os
import pty
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

import raftwood
from raftwood.base.errors import StoreLocked
from raftwood.cli import command_line
from raftwood.cli.command_line import run
from raftwood.cli.output import write_rows

COMMAND = [sys.executable, "-m", "raftwood.cli"]


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("RAFTWOOD_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def test_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == raftwood.__version__ + "\n"


def test_config_show_tells_value_origin_and_meaning(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "show", "--set", "node.store_id=7"]) == 0
    lines = capsys.readouterr().out.splitlines()
    line = next(line for line in lines if line.startswith("node.store_id"))
    assert line.split()[1] == "7"
    assert "flag --set node.store_id" in line
    assert "unique in the cluster" in line


def test_config_show_for_machines_is_a_json_list(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAFTWOOD_NODE__STORE_ID", "9")
    assert run(["config", "show", "--format", "json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["node.store_id"]["value"] == 9
    assert rows["node.store_id"]["origin"] == "environment RAFTWOOD_NODE__STORE_ID"
    assert rows["cluster.name"]["scope"] == "cluster"


def test_what_config_show_prints_as_toml_reads_back(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = 'x "y"\\\x7f\té'
    assert run(["config", "show", "--format", "toml", "--set", f"node.data_folder={folder}"]) == 0
    file = tmp_path / "node.toml"
    file.write_text(capsys.readouterr().out)
    assert run(["config", "show", "--format", "json", "--config", str(file)]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["node.data_folder"]["value"] == folder
    assert rows["node.data_folder"]["origin"] == f"file {file}:node.data_folder"


def test_the_example_is_valid_with_and_without_its_comments(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(["config", "example"]) == 0
    text = capsys.readouterr().out
    assert all(not table for table in tomllib.loads(text).values())
    file = tmp_path / "node.toml"
    active = [line.removeprefix("# ") if " = " in line else line for line in text.splitlines()]
    file.write_text("\n".join(active))
    assert run(["config", "check", "--config", str(file)]) == 0
    assert run(["config", "check", "--format", "json", "--config", str(file)]) == 0
    assert json.loads(capsys.readouterr().out.partition("\n")[2])[0]["valid"] is True


def test_a_users_mistake_is_one_line_with_a_remedy_and_status_2(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["config", "check", "--set", "node.store_id=0"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: setting node.store_id cannot be '0'")
    assert captured.err.count("\n") == 1
    assert "give a whole number from 1" in captured.err


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["conifg"], "config"),
        (["config", "shwo"], "show"),
        (["config", "show", "--frmat", "json"], "--format"),
        (["config", "show", "--format", "yaml"], "toml"),
        (["config", "check", "--set", "node.stor_id=1"], "node.store_id"),
    ],
)
def test_what_is_unknown_is_answered_with_a_suggestion(
    capsys: pytest.CaptureFixture[str], arguments: list[str], hint: str
) -> None:
    assert run(arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    assert hint in captured.err


def test_debug_shows_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "check", "--set", "node.store_id=0", "--debug"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_other_errors_of_the_tree_end_with_status_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_tokens: list[str]) -> int:
        raise StoreLocked("data folder 'x' is in use:\x1b[2J end the other process")

    monkeypatch.setattr(command_line, "_dispatch", fail)
    assert run(["store"]) == 1
    assert capsys.readouterr().err == (
        "error: data folder 'x' is in use:\\x1b[2J end the other process\n"
    )


def test_a_broken_pipe_ends_quietly() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    ended = subprocess.run(
        [*COMMAND, "config", "show"],
        stdout=writer,
        stderr=subprocess.PIPE,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    os.close(writer)
    assert ended.stderr == b""
    assert ended.returncode == 141


def test_an_interrupt_ends_with_130_and_no_traceback(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    # A shell starts what runs in the background with interrupts ignored: take them back.
    program = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from raftwood.cli.command_line import main; main()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, "config", "check", "--config", str(fifo)],
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    # The command opens the file and waits for its end, which never comes.
    with open(fifo, "wb"):
        time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert errors == b"error: interrupted\n"
    assert process.returncode == 130


@pytest.mark.parametrize("no_color", ["", "1"])
def test_a_terminal_gets_a_table_with_colours_unless_no_color_is_set(no_color: str) -> None:
    parent, child = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, "config", "show"],
        stdout=child,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "NO_COLOR": no_color,
            "TERM": "xterm-256color",
            "COLUMNS": "160",
        },
    )
    os.close(child)
    written = b""
    while True:
        try:
            part = os.read(parent, 65536)
        except OSError:
            break
        if not part:
            break
        written += part
    os.close(parent)
    assert process.wait(timeout=60) == 0
    assert b"node.store_id" in written
    assert "─".encode() in written
    assert (b"\x1b[" in written) is (no_color == "")


def test_version_loads_none_of_the_heavy_libraries() -> None:
    program = (
        "import sys\n"
        "from raftwood.cli.command_line import run\n"
        "run(['--version'])\n"
        "heavy = {'cyclopts', 'rich', 'msgspec', 'structlog', 'rocksdict', 'prometheus_client'}\n"
        "sys.exit(','.join(heavy & set(sys.modules)) or 0)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert (ended.returncode, ended.stderr) == (0, "")


def test_every_command_is_in_one_group_of_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    grouped = [name for names in command_line._GROUPS.values() for name in names]
    assert sorted(grouped) == sorted(command_line._COMMANDS)
    assert run(["--help"]) == 0
    printed = capsys.readouterr().out
    places = [printed.index(f" {title} ") for title in command_line._GROUPS]
    assert places == sorted(places)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_commands_and_options(
    shell: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(["completion", shell]) == 0
    printed = capsys.readouterr().out
    for word in ("logstore", "ttl-days", "truncate"):
        assert word in printed
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    assert run(["completion"]) == 2
    assert "give bash, zsh or fish" in capsys.readouterr().err


def test_cells_of_tables_are_no_json(capsys: pytest.CaptureFixture[str]) -> None:
    row = {"voters": [1, 2], "readers": [], "behind": {1: 0, 2: None}, "name": "[a]"}
    write_rows([row], {name: name for name in row}, "text")
    assert capsys.readouterr().out.splitlines()[1].split("  ")[0] == "1, 2"
    write_rows([row], {"readers": "readers", "behind": "behind", "name": "name"}, "text")
    assert capsys.readouterr().out.splitlines()[1].split() == ["-", "1:", "0,", "2:", "-", "[a]"]
