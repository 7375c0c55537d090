"""Programs of tests that are written in Go, built on first use."""

import os
import shutil
import subprocess
from functools import partial
from pathlib import Path

from tests.kits.install.cache import NotInstalled, made_once, text_of

BUILD_SECONDS_MAX = 900
OPTIONS = ("-trimpath", "-ldflags=-s -w")


def build(name: str, source: Path) -> Path:
    """The program made of a folder with a `go.mod`."""
    if shutil.which("go") is None:
        raise NotInstalled("there is no go")
    made_of = text_of(*sorted(source.iterdir()))
    return made_once(name, made_of, partial(_build, source))


def _build(source: Path, program: Path) -> None:
    try:
        # Fetches the modules that are compiled. `go mod download` would fetch ten times as many.
        _go(source, "list", "-deps")
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        raise NotInstalled(f"Go could not fetch its modules: {type(error).__name__}") from None
    # With all modules at hand, a program that cannot be built is a mistake in it.
    _go(source, "build", *OPTIONS, "-o", str(program))


def _go(source: Path, *command: str) -> None:
    subprocess.run(
        ("go", *command),
        cwd=source,
        env=os.environ | {"CGO_ENABLED": "0"},
        check=True,
        capture_output=True,
        timeout=BUILD_SECONDS_MAX,
    )
