"""The soak counts each seed once, goes on where it ended, and tells what failed."""

import subprocess
from pathlib import Path

import pytest

from tests.soak import __main__ as soak
from tests.soak import kinds, record, tally
from tests.soak.kinds import Counts
from tests.soak.tally import load

COMMIT = "0123abcd"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The tally of a soak at one commit, whose toy counts seeds and has one that is unlucky."""

    def toy(seed: int) -> Counts:
        if seed == 17:
            raise AssertionError("unlucky")
        return {"toy: seeds": 1, "toy: simulated hours": 0.25}

    monkeypatch.setitem(kinds.KINDS, "toy", toy)
    monkeypatch.setattr(soak, "present_commit", lambda: COMMIT)
    return tmp_path / "tally.json"


def _soak(file: Path, *arguments: str) -> int:
    return soak.main([*arguments, "--tally", str(file)])


def test_a_tally_adds_up_and_goes_on(file: Path) -> None:
    assert _soak(file, "toy", "--seeds", "0:2") == 0
    # Seeds that ran are not counted again.
    assert _soak(file, "toy", "--seeds", "0:2") == 0
    assert _soak(file, "toy", "--seeds", "next:3") == 0
    (run,) = load(file).runs
    assert (run.kind, run.commit, run.seeds) == ("toy", COMMIT, [(0, 5)])
    assert run.counts == {"toy: seeds": 5, "toy: simulated hours": 1.25}


def test_a_seed_runs_again_at_another_commit(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _soak(file, "toy", "--seeds", "0:2") == 0
    monkeypatch.setattr(soak, "present_commit", lambda: "89abcdef")
    assert _soak(file, "toy", "--seeds", "0:2") == 0
    assert [run.commit for run in load(file).runs] == [COMMIT, "89abcdef"]
    assert load(file).counts()["toy: seeds"] == 4


def test_a_failing_seed_is_kept_with_its_command_and_the_rest_goes_on(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _soak(file, "toy", "--seeds", "16:20") == 1
    (failure,) = load(file).failures
    assert load(file).counts()["toy: seeds"] == 3
    assert failure.error == "AssertionError: unlucky"
    assert failure.command == ".venv/bin/python -m tests.soak toy --seed 17"
    assert failure.command in capsys.readouterr().out
    # A run without a new failure ends well, and the old one stays on record.
    assert _soak(file, "toy", "--seeds", "next:1") == 0
    assert load(file).failures == [failure]
    # The command that was printed fails as the soak did.
    with pytest.raises(AssertionError, match="unlucky"):
        soak.main(failure.command.split()[3:])


def test_an_interrupted_run_keeps_what_it_did(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(seed: int) -> Counts:
        if seed == 2:
            raise KeyboardInterrupt
        return {"toy: seeds": 1}

    monkeypatch.setitem(kinds.KINDS, "toy", interrupted)
    _soak(file, "toy", "--seeds", "0:9")
    (run,) = load(file).runs
    assert (run.seeds, run.counts) == ([(0, 2)], {"toy: seeds": 2})


@pytest.mark.parametrize(
    "arguments", [["--seeds", "ten"], ["--seeds", "1:x"], ["--only", "toy,nothing"]]
)
def test_seeds_and_kinds_that_make_no_sense_are_refused(file: Path, arguments: list[str]) -> None:
    with pytest.raises(SystemExit):
        _soak(file, *arguments)


def test_the_page_gets_the_totals_of_committed_code(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "assurance.md"
    page.write_text(f"before\n{record.BEGIN}\nold\n{record.END}\nafter\n")
    monkeypatch.setattr(record, "PAGE", page)
    assert _soak(file, "toy", "--seeds", "0:8") == 0
    monkeypatch.setattr(soak, "present_commit", lambda: COMMIT + tally.DIRTY)
    assert _soak(file, "toy", "--seeds", "8:9") == 0
    assert _soak(file, "--record") == 0
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    repeat = "`make soak KINDS=toy SEEDS=0:8`"
    assert f"| toy | seeds | 8 | 0 | `{COMMIT}` | {repeat} |" in text
    assert "| toy | simulated hours | 2 |" in text
    assert "old" not in text


def test_the_page_that_is_committed_has_the_totals_of_the_tally_that_is_committed() -> None:
    table = record.table(load(tally.FILE))
    assert f"{record.BEGIN}\n{table}{record.END}" in record.PAGE.read_text()


def test_a_commit_with_changes_is_named_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*arguments: str) -> None:
        identity = ("-c", "user.name=test", "-c", "user.email=test@localhost")
        subprocess.run(("git", *identity, *arguments), cwd=tmp_path, check=True)

    file = tmp_path / "tests/soak/tally.json"
    file.parent.mkdir(parents=True)
    file.write_text("{}")
    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "--message", "all")
    monkeypatch.setattr(tally, "FILE", file)
    file.write_text('{"runs": []}')
    assert not tally.present_commit().endswith(tally.DIRTY)
    (tmp_path / "tests/new.py").touch()
    assert tally.present_commit().endswith(tally.DIRTY)
