"""What Spark Connect's client needs beside what is installed, in a folder of its own.

It wants a newer protobuf than SLS's own SDK allows, which the tests of interoperability use: the
two cannot live in one environment.
"""

import fcntl
import subprocess
import sys
from pathlib import Path

from tests.maven import CACHE

LIBRARIES = ("protobuf==6.33.5", "grpcio-status==1.85.1")
INSTALL_S_MAX = 120.0


class NotInstalled(Exception):
    """They cannot be had here; says why."""


def install() -> Path:
    """The folder, for the front of PYTHONPATH."""
    folder = CACHE / "spark-connect" / "-".join(LIBRARIES).replace("==", "-")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several processes may want it at once
        done = folder / "installed"
        if not done.exists():
            _install(folder)
            done.touch()
    return folder


def _install(folder: Path) -> None:
    command = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--upgrade")
    try:
        subprocess.run(
            (*command, f"--target={folder}", *LIBRARIES),
            check=True,
            capture_output=True,
            timeout=INSTALL_S_MAX,
        )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        raise NotInstalled(f"pip could not install {', '.join(LIBRARIES)}: {error}") from None
