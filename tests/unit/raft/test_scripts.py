"""The project's own raft scripts, and the runner that they trust."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.kits.raft.scripts.interaction import InteractionScript
from tests.kits.raft.scripts.parsing import ScriptError, parse_script
from tests.kits.raft.scripts.running import run_file, script_for

TESTS = Path(__file__).parents[2]
SCRIPTS = sorted((TESTS / "raft_scripts").glob("*.txt"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_prints_what_it_says(path: Path) -> None:
    assert run_file(path, semantic=False) == ""


def test_the_command_counts_files_and_fails_on_a_difference(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.txt", tmp_path / "bad.txt"
    good.write_text("vote cfg=(1) votes=(y)\n----\nVoteWon\n")
    bad.write_text("vote cfg=(1) votes=(y)\n----\nVoteLost\n")
    command = (sys.executable, "-m", "tests.kits.raft.scripts", "--semantic")
    both = subprocess.run(
        (*command, str(tmp_path)), capture_output=True, text=True, check=False, timeout=60
    )
    assert both.returncode == 1
    assert "-VoteLost\n+VoteWon" in both.stdout
    assert both.stdout.endswith("1 passed, 1 failed\n")
    alone = subprocess.run(
        (*command, str(good)), capture_output=True, text=True, check=False, timeout=60
    )
    assert alone.returncode == 0
    assert alone.stdout.endswith("1 passed, 0 failed\n")


def test_a_command_that_cannot_be_run_fails_its_file(tmp_path: Path) -> None:
    script = tmp_path / "script.txt"
    script.write_text("campaign 5\n----\nok\n")
    assert "IndexError" in run_file(script, semantic=True)


def test_log_lines_count_unless_the_comparison_is_semantic(tmp_path: Path) -> None:
    script = tmp_path / "script.txt"
    script.write_text("add-nodes 1 voters=(1) index=2\n----\nINFO 1 became follower at term 0\n")
    assert run_file(script, semantic=True) == ""
    assert run_file(script, semantic=False) != ""


def test_other_lines_always_count(tmp_path: Path) -> None:
    script = tmp_path / "script.txt"
    script.write_text("add-nodes 1 voters=(1) index=2\n----\nINFO line\nINFORMATION\n")
    assert run_file(script, semantic=True) != ""


def test_a_doubled_separator_lets_output_hold_empty_lines() -> None:
    command = "# comment\nfirst a b=c d=(1, 2)\ninput\n"
    output = "----\n----\none\n\ntwo\n----\n----\n\n"
    text = f"{command}{output}second\n----\nx\n"
    first, second = parse_script(text)
    assert first.expected == "one\n\ntwo\n"
    assert first.input == "input"
    assert first.positional() == ["a"]
    assert first.value("b") == "c"
    assert first.values("d") == ["1", "2"]
    assert second.expected == "x\n"


@pytest.mark.parametrize("text", ["command\n", "command\n----\n----\nno end\n"])
def test_a_script_without_its_separators_is_refused(text: str) -> None:
    with pytest.raises(ScriptError):
        parse_script(text)


def test_errors_show_even_where_output_is_turned_off() -> None:
    text = """
log-level none
----

add-nodes 1 voters=(1) index=2
----

propose 1 x
----

nonsense
----
"""
    commands = parse_script(text)
    script = script_for(commands)
    assert isinstance(script, InteractionScript)
    shown = [script.run(command) for command in commands]
    assert shown == ["ok", "ok", "raft proposal dropped", "unknown command"]
