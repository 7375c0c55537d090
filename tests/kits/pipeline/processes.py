"""Programs of the pipeline as processes of their own, with a Spark of their own."""

import os
import subprocess
import sys
from pathlib import Path

from tests.kits.pipeline.quick_java import quick_java

REPOSITORY = Path(__file__).parents[3]
RAFTWOOD = (sys.executable, "-c", "from raftwood.cli.command_line import main; main()")
TIMEOUT_S = 900.0


def environment(folder: Path, **more: str) -> dict[str, str]:
    """Ours, with Spark's scratch files in the test's own folder."""
    return {
        **os.environ,
        "SPARK_LOCAL_DIRS": str(folder),
        "JDK_JAVA_OPTIONS": quick_java(),
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        **more,
    }


def run(
    *arguments: str, folder: Path, before: tuple[str, ...] = RAFTWOOD, **more: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*before, *arguments],
        cwd=folder,
        env=environment(folder, **more),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
