"""Versions of redis-py, each in a folder of its own, and programs that use them as they are."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.kits.install import python as python_libraries

VERSIONS = {"5": "redis==5.3.1", "7": "redis==7.4.1", "8": "redis==8.1.0"}
NEEDED = ("async-timeout==5.0.1", "PyJWT==2.10.1")
"""By some of them, on some Pythons."""
REPOSITORY = Path(__file__).parents[3]
SECONDS_MAX = 60


def folder_of(version: str) -> Path:
    """Raises `NotInstalled`."""
    return python_libraries.install("redis-py", VERSIONS[version], *NEEDED)


def start(version: str, program: str, given: dict[str, Any]) -> subprocess.Popen[str]:
    """A program of this folder, which is told in JSON what it needs to know."""
    path = os.pathsep.join([str(folder_of(version)), str(REPOSITORY)])
    return subprocess.Popen(
        [sys.executable, "-m", f"tests.kits.zeppelin.{program}", json.dumps(given)],
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(version: str, program: str, given: dict[str, Any]) -> Any:
    """What it says at its end."""
    with start(version, program, given) as started:
        try:
            output, errors = started.communicate(timeout=SECONDS_MAX)
        finally:
            started.kill()
    assert started.returncode == 0, output + errors
    return json.loads(output.splitlines()[-1])
