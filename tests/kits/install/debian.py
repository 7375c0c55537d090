"""Programs of Debian's packages, unpacked below `.cache` on first use: nothing is installed into
the system, and no right to do so is needed.

What a package needs comes with it where the system doesn't have it.

python -m tests.kits.install.debian redis-tools redis-server    # where they are
"""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.kits.install.cache import NotInstalled, made_once

FETCH_SECONDS_MAX = 900


@dataclass(frozen=True)
class Package:
    """Unpacked into a folder."""

    folder: Path
    version: str

    def program(self, name: str) -> str:
        return str(self.folder / "usr" / "bin" / name)

    @property
    def environment(self) -> dict[str, str]:
        """What its programs are run with, so that they find the libraries that came with them."""
        libraries = [str(each) for each in sorted((self.folder / "usr" / "lib").glob("*-linux-*"))]
        known = os.environ.get("LD_LIBRARY_PATH")
        return {
            **os.environ,
            "LD_LIBRARY_PATH": ":".join([*libraries, *([known] if known else [])]),
        }


def install(name: str, *others: str) -> Package:
    """A package, with others that are to be in the same folder."""
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise NotInstalled(f"{tool} is missing, it fetches Debian's {name}")
    packages = (name, *others)
    folder = made_once(name, "\n".join(packages), partial(_fetch, packages))
    return Package(folder, (folder / "version").read_text())


def _fetch(packages: tuple[str, ...], folder: Path) -> None:
    state = folder.parent / "apt"
    for each in (state / "lists" / "partial", state / "archives" / "partial", folder):
        each.mkdir(parents=True)
    command = _apt_get(state)
    # A hook of the system's may fail here for want of rights: what counts is what comes next.
    _run(*command, "update", is_checked=False)
    what = ("install", "--download-only", "--reinstall", "--yes", "--no-install-recommends")
    _run(*command, *what, *packages)
    for archive in sorted((state / "archives").glob("*.deb")):
        _run("dpkg-deb", "--extract", str(archive), str(folder))
    (own,) = (state / "archives").glob(f"{packages[0]}_*.deb")
    (folder / "version").write_text(_run("dpkg-deb", "--field", str(own), "Version").strip())


def _apt_get(state: Path) -> tuple[str, ...]:
    """The system's sources and keys, and what it has; all that is written is below `state`."""
    options = {
        "Dir::State::lists": f"{state}/lists",
        "Dir::Cache": str(state),
        "Dir::Log": str(state),
        "Debug::NoLocking": "true",
        "APT::Sandbox::User": "root",  # nobody else may write below a temporary folder
        "Acquire::Languages": "none",
        "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled": "false",
        "Acquire::Retries": "2",
        "Acquire::http::Timeout": "20",
        "Acquire::https::Timeout": "20",
    }
    return ("apt-get", "--quiet", *(f"--option={name}={value}" for name, value in options.items()))


def _run(*command: str, is_checked: bool = True) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=FETCH_SECONDS_MAX
        )
    except subprocess.TimeoutExpired:
        raise NotInstalled(f"{command[0]} took over {FETCH_SECONDS_MAX} s") from None
    if is_checked and done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        reason = said[-1] if said else f"status {done.returncode}"
        raise NotInstalled(f"{command[0]} failed: {reason}")
    return done.stdout


if __name__ == "__main__":
    installed = install(*sys.argv[1:])
    print(f"{installed.folder} has {sys.argv[1]} {installed.version}")
