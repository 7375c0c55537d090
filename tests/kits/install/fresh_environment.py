"""Environments that have what a user gets who installs Raftwood, and nothing else."""

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

from tools.install import uv_environment

REPOSITORY = Path(__file__).parents[3]
WHEELS = ("--constraint", str(REPOSITORY / "constraints.txt"), "--only-binary", ":all:")
UV = Path(sys.executable).with_name("uv")
INSTALL_S_MAX = 800.0


def build_wheel(folder: Path) -> Path:
    if UV.exists():
        run(str(UV), "build", "--quiet", "--wheel", "--out-dir", str(folder), str(REPOSITORY))
    else:
        pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps")
        run(*pip, f"--wheel-dir={folder}", str(REPOSITORY))
    (wheel,) = folder.glob("*.whl")
    return wheel


def make_environment(folder: Path, *requirements: str) -> Path:
    """Its Python, which has these and what they need."""
    python = folder / "bin" / "python"
    if UV.exists():
        run(str(UV), "venv", "--quiet", "--python", sys.executable, str(folder))
        run(str(UV), "pip", "install", "--quiet", f"--python={python}", *WHEELS, *requirements)
    else:
        run(sys.executable, "-m", "venv", str(folder))
        run(str(python), "-m", "pip", "install", "--quiet", *WHEELS, *requirements)
    return python


def run(*command: str) -> None:
    done = subprocess.run(
        command,
        env=_environment(),
        capture_output=True,
        text=True,
        timeout=INSTALL_S_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@cache
def _environment() -> dict[str, str]:
    return uv_environment(sys.executable) if UV.exists() else dict(os.environ)
