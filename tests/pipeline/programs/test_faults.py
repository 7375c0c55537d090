"""Exactly once from a logstore into another one, whoever is killed on the way."""

from pathlib import Path

from tests.kits.pipeline.storm import DRIVER, FAULTS, GATEWAY, STORE, WORKER, run_pipeline_storm


def test_what_is_killed_in_mid_batch_changes_nothing_in_the_sink(tmp_path: Path) -> None:
    counts = run_pipeline_storm(tmp_path, 1, (WORKER, GATEWAY, STORE, DRIVER))
    assert all(counts[f"killed {fault} in mid-batch"] == 1 for fault in FAULTS)
