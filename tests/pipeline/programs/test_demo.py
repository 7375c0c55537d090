"""The demo, as users start it; but Spark's helpers are forked, as each has ten seconds alone."""

import json
from pathlib import Path

from tests.kits.pipeline.processes import RAFTWOOD, run
from tests.kits.pipeline.quick_python import python_of_spark


def test_a_short_demo_agrees_from_end_to_end_and_draws_a_picture(tmp_path: Path) -> None:
    arguments = ("demo", "pipeline", "--lines", "3000", "--later", "500", "--format", "json")
    ended = run(*arguments, folder=tmp_path, before=RAFTWOOD, **python_of_spark())
    assert ended.returncode == 0, ended.stdout + ended.stderr
    outcome = json.loads(ended.stdout)
    assert outcome["figures"]["parsed"] == 3500
    assert outcome["figures"]["tail"] == 500
    assert all(each["expected"] == each["found"] for each in outcome["checks"])
    assert [each["what"] for each in outcome["consumers"]["changes"]] == [
        "dora joins",
        "ben is killed with -9",
        "shard 0 is split",
    ]
    assert (tmp_path / "raftwood-pipeline.png").read_bytes().startswith(b"\x89PNG")
