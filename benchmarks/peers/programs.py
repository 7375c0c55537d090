"""The programs of others: etcd from Debian's package, and the Go programs built from our sources.

All of it lands in `.cache/` below the repository and none of it needs root.
"""

import glob
import os
import pathlib
import shutil
import subprocess

from benchmarks.harness.system import NotAvailable

REPOSITORY = pathlib.Path(__file__).parents[2]
CACHE = REPOSITORY / ".cache" / "bench"
SOURCES = REPOSITORY / "benchmarks" / "peers"
BUILD_TIMEOUT_S = 600
DEBIAN_PACKAGE = "etcd-server"


def go_program(name: str) -> str:
    """Build one of the programs below benchmarks/peers; Go's own cache makes it quick again."""
    if shutil.which("go") is None:
        raise NotAvailable("Go is not installed, it builds benchmarks/peers")
    output = CACHE / "bin" / name
    output.parent.mkdir(parents=True, exist_ok=True)
    _run("go", "build", "-mod=readonly", "-o", str(output), f"./{name}", folder=SOURCES)
    return str(output)


def go_module_version(module: str) -> str:
    for line in (SOURCES / "go.mod").read_text().splitlines():
        words = line.split()
        if module in words:
            return words[words.index(module) + 1]
    raise NotAvailable(f"benchmarks/peers/go.mod does not name {module}")


def etcd() -> tuple[str, str]:
    """Debian's etcd, unpacked: the path of the program, and the package's version."""
    folder = CACHE / "etcd"
    program = folder / "usr" / "bin" / "etcd"
    if not _packages(folder) or not program.exists():
        folder.mkdir(parents=True, exist_ok=True)
        for tool in ("apt-get", "dpkg-deb"):
            if shutil.which(tool) is None:
                raise NotAvailable(f"{tool} is missing, it fetches Debian's {DEBIAN_PACKAGE}")
        _download(folder)
        _run("dpkg-deb", "-x", _packages(folder)[0], str(folder), folder=folder)
    version = os.path.basename(_packages(folder)[0]).split("_")[1]
    return str(program), version


def _packages(folder: pathlib.Path) -> list[str]:
    return glob.glob(f"{folder}/{DEBIAN_PACKAGE}_*.deb")


def _download(folder: pathlib.Path) -> None:
    try:
        _run("apt-get", "download", "-qq", DEBIAN_PACKAGE, folder=folder)
    except NotAvailable:
        if os.geteuid() != 0:
            raise
        # The lists of packages are not there yet.
        _run("apt-get", "update", "-qq", folder=folder)
        _run("apt-get", "download", "-qq", DEBIAN_PACKAGE, folder=folder)


def _run(*command: str, folder: pathlib.Path) -> None:
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=BUILD_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise NotAvailable(f"{' '.join(command[:2])} took over {BUILD_TIMEOUT_S} s") from None
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        reason = said[-1] if said else f"status {done.returncode}"
        raise NotAvailable(f"{' '.join(command[:2])} failed: {reason}")
