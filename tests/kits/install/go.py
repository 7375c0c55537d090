"""Programs of tests that are written in Go, built into a folder below `.cache` on first use."""

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

CACHE = Path(__file__).parents[3] / ".cache"
BUILD_SECONDS_MAX = 600


class NotBuilt(Exception):
    """The program cannot be had here; says why."""


def build(name: str, source: Path) -> Path:
    """The program made of a folder with a `go.mod`; built again only where the source changed."""
    if shutil.which("go") is None:
        raise NotBuilt("there is no go")
    check = 0
    for file in sorted(source.iterdir()):
        check = zlib.crc32(file.read_bytes(), check)
    cache = CACHE / name
    cache.mkdir(parents=True, exist_ok=True)
    program = cache / f"{name}-{check:08x}"
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several processes may want it at once
        if not program.exists():
            _build(name, source, program)
    return program


def _build(name: str, source: Path, program: Path) -> None:
    print(f"building {name} with Go …", file=sys.__stderr__, flush=True)
    try:
        _go(source, "mod", "download")
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        raise NotBuilt(f"Go could not fetch its modules: {type(error).__name__}") from None
    with tempfile.TemporaryDirectory(dir=program.parent) as folder:
        made = Path(folder) / "program"
        # With all modules at hand, a program that cannot be built is a mistake in it.
        _go(source, "build", "-o", str(made), ".")
        os.replace(made, program)


def _go(source: Path, *command: str) -> None:
    subprocess.run(
        ("go", *command), cwd=source, check=True, capture_output=True, timeout=BUILD_SECONDS_MAX
    )
