"""The programs of others: etcd from Debian's package, and the Go programs built from our sources.

All of it lands in `.cache/` below the repository and none of it needs root.
"""

import pathlib
import shutil
import subprocess

from tests.kits.install import debian
from tests.kits.install.cache import NotInstalled

from benchmarks.harness.system import NotAvailable

REPOSITORY = pathlib.Path(__file__).parents[2]
CACHE = REPOSITORY / ".cache" / "bench"
SOURCES = REPOSITORY / "benchmarks" / "peers"
BUILD_TIMEOUT_S = 600


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
    try:
        package = debian.install("etcd-server")
    except NotInstalled as error:
        raise NotAvailable(str(error)) from None
    return package.program("etcd"), package.version


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
