"""Every kind of the soak runs, by one seed and at a small size, in one process and in two."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.kits.zeppelin.simulation.steps import failures_of
from tests.soak import kinds
from tests.soak.__main__ import main
from tests.soak.tally import load


@pytest.mark.parametrize("kind", [kind for kind in kinds.KINDS if kind != "processes"])
def test_a_seed_counts_something(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kinds, "IMAGES", 3)
    monkeypatch.setattr(kinds, "FUZZ_INPUTS", 20)
    monkeypatch.setattr(kinds, "HOSTS_FAULTS_S", 5.0)
    monkeypatch.setattr(kinds, "FLIPS_FAULTS_S", 5.0)
    monkeypatch.setattr(kinds, "SESSION_ENTRIES", 1_000)
    monkeypatch.setattr(kinds, "LOGS_FAULTS_S", 5.0)
    monkeypatch.setattr(kinds, "HUB_FAULTS_S", 5.0)
    monkeypatch.setattr(kinds, "DLOG_EVENTS", 5_000)
    monkeypatch.setattr(kinds, "HAKEEPER_EVENTS", 500)
    monkeypatch.setattr(
        kinds, "failures_of", lambda *which, **more: failures_of(*which, **more)[:2]
    )
    counts = kinds.KINDS[kind](1)
    assert any(counts.values())


def test_two_workers_count_what_one_counts(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.soak", "clogs_ha", "--seeds", "0:4"]
    by_two = tmp_path / "two.json"
    subprocess.run(
        [*command, "--workers", "2", "--tally", str(by_two)], check=True, capture_output=True
    )
    by_one = tmp_path / "one.json"
    assert main([*command[3:], "--tally", str(by_one)]) == 0
    assert load(by_two).counts() == load(by_one).counts() != {}
