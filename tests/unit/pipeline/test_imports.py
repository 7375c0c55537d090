"""What a process of Spark's loads before it has read or written anything."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "module",
    ["raftwood.pipeline.source", "raftwood.pipeline.sink"],
)
def test_a_process_that_only_plans_does_not_load_pandas(module: str) -> None:
    # Spark starts one for each query: pandas would be a half of its work, and of its memory.
    code = f"import {module}, sys\nprint('pandas' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert shown.stdout.split() == ["False"]
