"""Java libraries of others, fetched by Maven on first use, and programs that use them."""

import shutil
import subprocess
from functools import partial
from pathlib import Path

from tests.kits.install.cache import NotInstalled, made_once, text_of

INSTALL_SECONDS_MAX = 900
COMPILE_SECONDS_MAX = 900
Library = tuple[str, str, str]
"""Its group, its name and its version."""


def install(name: str, *libraries: Library, is_alone: bool = False) -> Path:
    """The folder with the libraries and all that they need, or them alone."""
    if shutil.which("java") is None:
        raise NotInstalled("there is no java")
    pom = _pom(name, libraries, is_alone=is_alone)
    return made_once(name, pom, partial(_fetch, pom))


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


def _fetch(pom: str, folder: Path) -> None:
    if shutil.which("mvn") is None:
        raise NotInstalled("there is no mvn to install it")
    (folder.parent / "pom.xml").write_text(pom)
    goal = ("dependency:copy-dependencies", "-DincludeScope=runtime")
    try:
        subprocess.run(
            ("mvn", "--batch-mode", "--quiet", *goal, f"-DoutputDirectory={folder}"),
            cwd=folder.parent,
            check=True,
            capture_output=True,
            timeout=INSTALL_SECONDS_MAX,
        )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        raise NotInstalled(f"Maven could not fetch it: {type(error).__name__}") from None


def compile_program(source: Path, jars: Path) -> str:
    """The class path of a program of one file, and of the libraries in a folder that it uses."""
    name, path = f"{source.stem.lower()}-classes", f"{jars}/*"
    classes = made_once(name, f"{path}\n{text_of(source)}", partial(_compile, source, path))
    return f"{classes}:{path}"


def _compile(source: Path, path: str, folder: Path) -> None:
    if shutil.which("javac") is None:
        raise NotInstalled("there is java, and no javac")
    subprocess.run(
        ("javac", "-nowarn", "-cp", path, "-d", str(folder), str(source)),
        check=True,
        capture_output=True,
        timeout=COMPILE_SECONDS_MAX,
    )
