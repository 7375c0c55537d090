"""The soak counts each seed once, goes on where it ended, and says what failed."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.soak import kinds
from tests.soak.__main__ import main
from tests.soak.kinds import Counts
from tests.soak.tallies import load


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kinds, "IMAGES", 3)
    monkeypatch.setattr(kinds, "FUZZ_INPUTS", 20)
    monkeypatch.setattr(kinds, "HOSTS_FAULTS_S", 5.0)
    monkeypatch.setattr(kinds, "LOGS_FAULTS_S", 5.0)
    monkeypatch.setattr(kinds, "HUB_FAULTS_S", 5.0)
    monkeypatch.setattr(kinds, "DLOG_EVENTS", 5_000)
    monkeypatch.setattr(kinds, "HAKEEPER_EVENTS", 500)


@pytest.mark.usefixtures("small")
def test_tallies_add_up_and_resume(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(tmp_path)
    assert main(["--seeds", "0:1", "--folder", folder]) == 0
    once = load(tmp_path)
    assert once.counts["toy: seeds run twice, hash equal"] == 1
    assert once.counts["crash images: log"] == once.counts["crash images: folder"] == 3
    assert once.counts["fuzz inputs: frames"] == 20
    # Seeds that were done are not counted again.
    assert main(["--seeds", "0:1", "--folder", folder]) == 0
    assert load(tmp_path) == once
    assert main(["--seeds", "next:2", "--only", "images,fuzz", "--folder", folder]) == 0
    more = load(tmp_path)
    assert more.counts["fuzz inputs: frames"] == 60
    assert more.counts["crash images: log"] == 9
    assert more.done == {
        "toy": [(0, 1)],
        "hosts": [(0, 1)],
        "logs": [(0, 1)],
        "processes": [(0, 1)],
        "raft": [(0, 1)],
        "hakeeper": [(0, 1)],
        "hub": [(0, 1)],
        "groups": [(0, 1)],
        "leases": [(0, 1)],
        "ledger_model": [(0, 1)],
        "ledgers": [(0, 1)],
        "dlog": [(0, 1)],
        "zeppelin": [(0, 1)],
        "migrations": [(0, 1)],
        "clogs": [(0, 1)],
        "clogs_ha": [(0, 1)],
        "images": [(0, 3)],
        "fuzz": [(0, 3)],
    }
    assert re.search(r"60 │ +100,000,000", capsys.readouterr().out)


def test_a_failing_seed_is_kept_with_its_command_and_the_rest_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def unlucky(seed: int) -> Counts:
        if seed == 17:
            raise AssertionError("unlucky")
        return {"toy: seeds": 1}

    monkeypatch.setitem(kinds.KINDS, "toy", unlucky)
    command = ["toy", "--seeds", "16:20", "--folder", str(tmp_path)]
    assert main(command) == 1
    tallies = load(tmp_path)
    assert tallies.counts["toy: seeds"] == 3
    (failure,) = tallies.failures
    assert failure.error == "AssertionError: unlucky"
    assert failure.command == ".venv/bin/python -m tests.soak toy --seed 17"
    assert failure.command in capsys.readouterr().out
    # A run without a new failure ends well, and the old one stays on record.
    assert main([*command[:2], "next:1", *command[3:]]) == 0
    assert load(tmp_path).failures == [failure]
    # The command that was printed fails as the soak did.
    with pytest.raises(AssertionError, match="unlucky"):
        main(failure.command.split()[3:])


def test_an_interrupted_run_keeps_what_it_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(seed: int) -> Counts:
        if seed == 2:
            raise KeyboardInterrupt
        return {"toy: seeds": 1}

    monkeypatch.setitem(kinds.KINDS, "toy", interrupted)
    main(["toy", "--seeds", "0:9", "--folder", str(tmp_path)])
    assert load(tmp_path).done == {"toy": [(0, 2)]}
    assert load(tmp_path).counts == {"toy: seeds": 2}


def test_seeds_and_kinds_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    for command in (["--seeds", "ten"], ["--seeds", "1:x"], ["--only", "toy,nothing"]):
        with pytest.raises(SystemExit):
            main([*command, "--folder", str(tmp_path)])


@pytest.mark.slow
def test_two_workers_count_what_one_counts(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.soak", "leases", "--seeds", "0:4", "--workers", "2"]
    subprocess.run([*command, "--folder", str(tmp_path)], check=True, capture_output=True)
    counted = load(tmp_path).counts
    assert main(["leases", "--seeds", "0:4", "--folder", str(tmp_path / "one")]) == 0
    assert counted == load(tmp_path / "one").counts != {}
