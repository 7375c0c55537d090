"""A newer protobuf, which Spark's remote client needs and a client of others' services forbids.

It is kept below `.cache`, and goes first on the path of those who need it.
"""

import fcntl
import shutil
import subprocess
import sys
from pathlib import Path

CACHE = Path(__file__).parents[2] / ".cache" / "newer-protobuf"
PACKAGES = ("protobuf==6.33.6", "grpcio-status==1.78.0")
INSTALL_S_MAX = 120


def newer_protobuf() -> str:
    """The folder, filled on first use."""
    CACHE.mkdir(parents=True, exist_ok=True)
    packages = CACHE / "packages"
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several processes may want it at once
        if not packages.exists():
            unfinished = CACHE / "unfinished"
            shutil.rmtree(unfinished, ignore_errors=True)
            subprocess.run(
                [
                    *(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"),
                    *("--disable-pip-version-check", "--target", str(unfinished), *PACKAGES),
                ],
                check=True,
                timeout=INSTALL_S_MAX,
            )
            unfinished.rename(packages)
    return str(packages)
