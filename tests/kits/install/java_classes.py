"""A Java program starts with three quarters of the CPU if its classes are archived, and checked.

A first run of the program makes it, and ends in order.
"""

import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

from tests.kits.install.cache import NotInstalled, made_once


def with_archive(libraries: Path, train: Callable[[str], None]) -> tuple[str, ...]:
    """Options of Java for a program of these libraries; `train` runs it with one of its own.

    A Java that cannot archive is as quick as it is. An archive that does not fit is no reason for a
    warning: the classes are loaded as usual.
    """
    try:
        made_of = f"{java_version()}\n{libraries}"
        archive = made_once(
            f"{libraries.parent.name}-classes", made_of, lambda path: _make(path, train)
        )
    except NotInstalled:
        return ()
    return (f"-XX:SharedArchiveFile={archive}", "-Xlog:disable")


def _make(path: Path, train: Callable[[str], None]) -> None:
    train(f"-XX:ArchiveClassesAtExit={path}")
    if not path.exists():
        raise NotInstalled("this Java archives no classes")


@cache
def java_version() -> str:
    return subprocess.run(("java", "-version"), capture_output=True, text=True, check=True).stderr
