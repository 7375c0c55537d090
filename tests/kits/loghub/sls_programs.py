"""Where the programs with SLS's SDKs of other languages are, made on first use."""

import sys
from pathlib import Path

from tests.kits.install import go as go_programs
from tests.kits.install import maven
from tests.kits.loghub import sls_sdk

HERE = Path(__file__).parents[2] / "interop"
JAVA_LIBRARIES = (
    ("com.aliyun.openservices", "aliyun-log", "0.6.151"),
    ("com.aliyun.openservices", "loghub-client-lib", "0.6.41"),
)


def python_command() -> list[str]:
    """Raises `NotInstalled`."""
    path = f"PYTHONPATH={sls_sdk.install()}"
    return ["env", path, sys.executable, str(HERE / "python" / "worker.py")]


def go_program() -> Path:
    """Raises `NotInstalled`."""
    return go_programs.build("sls-go", HERE / "go")


def ways_in_go_program() -> Path:
    """Raises `NotInstalled`."""
    return go_programs.build("ways-in-go", HERE / "ways_in_go")


def go_command() -> list[str]:
    return [str(go_program())]


def java_command() -> list[str]:
    """Raises `NotInstalled`."""
    jars = maven.install("sls-java", *JAVA_LIBRARIES)
    path = maven.compile_program(HERE / "java" / "Sls.java", jars)
    return ["java", "-XX:TieredStopAtLevel=1", "-cp", path, "Sls"]
