"""Java libraries of others, fetched by Maven into a folder below `.cache` on first use.

Programs that use them are compiled beside them.
"""

import fcntl
import shutil
import subprocess
import sys
import tempfile
import zlib
from contextlib import suppress
from pathlib import Path

CACHE = Path(__file__).parents[3] / ".cache"
INSTALL_SECONDS_MAX = 240
COMPILE_SECONDS_MAX = 120
Library = tuple[str, str, str]
"""Its group, its name and its version."""


class NotInstalled(Exception):
    """The libraries cannot be had here; says why."""


def install(name: str, *libraries: Library, is_alone: bool = False) -> Path:
    """The folder with the libraries and all that they need, or them alone; the first one names the
    version.
    """
    pom = _pom(name, libraries, is_alone=is_alone)
    cache = CACHE / name
    jars = cache / f"{libraries[0][2]}-{zlib.crc32(pom.encode()):08x}"
    if shutil.which("java") is None:
        raise NotInstalled("there is no java")
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several processes may want it at once
        if not jars.exists():
            _fetch(name, pom, jars)
    return jars


def _pom(name: str, libraries: tuple[Library, ...], *, is_alone: bool) -> str:
    everything = "<exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion>"
    exclusions = f"<exclusions>{everything}</exclusions>" if is_alone else ""
    dependencies = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>"
        f"<version>{version}</version>{exclusions}</dependency>"
        for group, artifact, version in libraries
    )
    return f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>raftwood.tests</groupId><artifactId>{name}</artifactId><version>1</version>
  <packaging>pom</packaging>
  <dependencies>{dependencies}</dependencies>
</project>
"""


def _fetch(name: str, pom: str, jars: Path) -> None:
    if shutil.which("mvn") is None:
        raise NotInstalled("there is no mvn to install it")
    print(f"installing {name} with Maven …", file=sys.__stderr__, flush=True)
    with tempfile.TemporaryDirectory(dir=jars.parent) as folder:
        (Path(folder) / "pom.xml").write_text(pom)
        goal = ("dependency:copy-dependencies", "-DincludeScope=runtime", "-DoutputDirectory=jars")
        try:
            subprocess.run(
                ("mvn", "--batch-mode", "--quiet", *goal),
                cwd=folder,
                check=True,
                capture_output=True,
                timeout=INSTALL_SECONDS_MAX,
            )
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            raise NotInstalled(f"Maven could not fetch it: {type(error).__name__}") from None
        (Path(folder) / "jars").rename(jars)


def compile_program(source: Path, jars: Path) -> str:
    """The class path of a program of one file, and of the libraries in a folder that it uses."""
    classes = jars.parent / f"classes-{zlib.crc32(source.read_bytes()):08x}"
    path = f"{jars}/*"
    if not classes.exists():
        if shutil.which("javac") is None:
            raise NotInstalled("there is java, and no javac")
        with tempfile.TemporaryDirectory(dir=jars.parent) as folder:
            made = Path(folder) / "classes"
            subprocess.run(
                ("javac", "-nowarn", "-cp", path, "-d", str(made), str(source)),
                check=True,
                capture_output=True,
                timeout=COMPILE_SECONDS_MAX,
            )
            with suppress(OSError):  # another process was faster
                made.rename(classes)
    return f"{classes}:{path}"
