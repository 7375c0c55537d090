"""Python libraries of others in folders of their own below `.cache`, fetched by pip on first use:
those that cannot live in one environment with what is installed.
"""

import fcntl
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.kits.install.maven import CACHE

INSTALL_S_MAX = 120.0


class NotInstalled(Exception):
    """They cannot be had here; says why."""


def install(name: str, *libraries: str) -> Path:
    """The folder, for the front of PYTHONPATH; libraries as `redis==5.3.1`, and them alone."""
    folder = CACHE / name / "-".join(libraries).replace("==", "-")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several processes may want it at once
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=folder.parent) as fresh:
                _install(Path(fresh) / "libraries", libraries)
                (Path(fresh) / "libraries").rename(folder)
    return folder


def _install(folder: Path, libraries: tuple[str, ...]) -> None:
    command = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps")
    try:
        subprocess.run(
            (*command, f"--target={folder}", *libraries),
            check=True,
            capture_output=True,
            timeout=INSTALL_S_MAX,
        )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        raise NotInstalled(f"pip could not install {', '.join(libraries)}: {error}") from None
