"""Where the programs with SLS's SDKs of other languages are, made on first use."""

import shutil
import subprocess
import sys
import tempfile
import zlib
from contextlib import suppress
from pathlib import Path

from tests import go_programs, maven

HERE = Path(__file__).parent
JAVA_LIBRARIES = (
    ("com.aliyun.openservices", "aliyun-log", "0.6.151"),
    ("com.aliyun.openservices", "loghub-client-lib", "0.6.41"),
)
_COMPILE_SECONDS_MAX = 120


def python_command() -> list[str]:
    return [sys.executable, str(HERE / "python" / "worker.py")]


def go_program() -> Path:
    """Raises `NotBuilt`."""
    return go_programs.build("sls-go", HERE / "go")


def ways_in_go_program() -> Path:
    """Raises `NotBuilt`."""
    return go_programs.build("ways-in-go", HERE / "ways_in_go")


def go_command() -> list[str]:
    return [str(go_program())]


def java_command() -> list[str]:
    """Raises `NotInstalled`."""
    jars = maven.install("sls-java", *JAVA_LIBRARIES)
    source = HERE / "java" / "Sls.java"
    classes = jars.parent / f"classes-{zlib.crc32(source.read_bytes()):08x}"
    path = f"{jars}/*"
    if not classes.exists():
        _compile(source, classes, path)
    return ["java", "-XX:TieredStopAtLevel=1", "-cp", f"{classes}:{path}", "Sls"]


def _compile(source: Path, classes: Path, path: str) -> None:
    if shutil.which("javac") is None:
        raise maven.NotInstalled("there is java, and no javac")
    with tempfile.TemporaryDirectory(dir=classes.parent) as folder:
        made = Path(folder) / "classes"
        subprocess.run(
            ("javac", "-nowarn", "-cp", path, "-d", str(made), str(source)),
            check=True,
            capture_output=True,
            timeout=_COMPILE_SECONDS_MAX,
        )
        with suppress(OSError):  # another process was faster
            made.rename(classes)
