"""The benchmark of `raftwood ship`, with its processes, on a small file."""

from pathlib import Path

from benchmarks.clogs.shipping import COUNTED, measure
from benchmarks.clogs.shipping_lines import make_log_file


def test_raftwood_ship_is_measured_with_a_receiver_that_counts(tmp_path: Path) -> None:
    file = make_log_file(tmp_path / "access.log", 300_000, lines=1000)
    found = measure(COUNTED, file, tmp_path)
    assert found.cpu_s_per_gb > 0
    assert 0 < found.wire_share < 0.5
