"""Java libraries of others, fetched by Maven into a folder below `.cache` on first use."""

import fcntl
import shutil
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

CACHE = Path(__file__).parents[1] / ".cache"
INSTALL_SECONDS_MAX = 240
Library = tuple[str, str, str]
"""Its group, its name and its version."""


class NotInstalled(Exception):
    """The libraries cannot be had here; says why."""


def install(name: str, *libraries: Library) -> Path:
    """The folder with the libraries and all that they need; the first one names the version."""
    pom = _pom(name, libraries)
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


def files(name: str, *libraries: Library) -> list[Path]:
    """The libraries' own files, without what they say that they need."""
    if shutil.which("java") is None:
        raise NotInstalled("there is no java")
    folder = CACHE / name
    folder.mkdir(parents=True, exist_ok=True)
    found = [folder / f"{artifact}-{version}.jar" for _, artifact, version in libraries]
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for library, file in zip(libraries, found, strict=True):
            if not file.exists():
                _fetch_one(library, file)
    return found


def _pom(name: str, libraries: tuple[Library, ...]) -> str:
    dependencies = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>"
        f"<version>{version}</version></dependency>"
        for group, artifact, version in libraries
    )
    return f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>raftwood.tests</groupId><artifactId>{name}</artifactId><version>1</version>
  <packaging>pom</packaging>
  <dependencies>{dependencies}</dependencies>
</project>
"""


def _fetch_one(library: Library, file: Path) -> None:
    print(f"installing {library[1]} with Maven …", file=sys.__stderr__, flush=True)
    with tempfile.TemporaryDirectory(dir=file.parent) as folder:
        artifact = f"-Dartifact={':'.join(library)}"
        _run_maven("dependency:copy", artifact, "-DoutputDirectory=.", folder=folder)
        (Path(folder) / file.name).rename(file)


def _fetch(name: str, pom: str, jars: Path) -> None:
    print(f"installing {name} with Maven …", file=sys.__stderr__, flush=True)
    with tempfile.TemporaryDirectory(dir=jars.parent) as folder:
        (Path(folder) / "pom.xml").write_text(pom)
        goal = ("dependency:copy-dependencies", "-DincludeScope=runtime", "-DoutputDirectory=jars")
        _run_maven(*goal, folder=folder)
        (Path(folder) / "jars").rename(jars)


def _run_maven(*goal: str, folder: str) -> None:
    if shutil.which("mvn") is None:
        raise NotInstalled("there is no mvn to install it")
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
