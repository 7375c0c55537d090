"""Where the programs with SLS's SDKs of other languages are, made on first use."""

import subprocess
import sys
import zlib
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
    if not (classes / "Sls.class").exists():
        classes.mkdir(exist_ok=True)
        try:
            subprocess.run(
                ("javac", "-cp", path, "-d", str(classes), str(source)),
                check=True,
                capture_output=True,
                timeout=_COMPILE_SECONDS_MAX,
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise maven.NotInstalled(f"javac could not compile it: {error!r}") from None
    return ["java", "-XX:TieredStopAtLevel=1", "-cp", f"{classes}:{path}", "Sls"]
