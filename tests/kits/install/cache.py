"""What tests fetch and build, kept below `.cache` by a hash of what it is made of.

The environment variable RAFTWOOD_CACHE names another folder, which several clones may share.
"""

import fcntl
import hashlib
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

CACHE = Path(os.environ.get("RAFTWOOD_CACHE") or Path(__file__).parents[3] / ".cache").absolute()


class NotInstalled(Exception):
    """It cannot be had here; says why."""


def made_once(name: str, made_of: str, make: Callable[[Path], None]) -> Path:
    """The file or folder that `make` makes at a path, made on first use.

    `made_of` is all that it is made of: sources, versions, options.
    """
    path = CACHE / name / hashlib.sha256(made_of.encode()).hexdigest()[:16]
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several processes may want it at once
        if not path.exists():
            print(f"making {name} …", file=sys.__stderr__, flush=True)
            with tempfile.TemporaryDirectory(dir=path.parent) as fresh:
                make(Path(fresh) / "made")
                (Path(fresh) / "made").rename(path)
    return path


def text_of(*files: Path) -> str:
    """All sources of a program, as a part of what it is made of."""
    return "\n".join(f"{file.name}\n{file.read_text()}" for file in files)
