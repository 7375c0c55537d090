"""Components of the machine that some tests need: what can be installed is installed on first use.

`COMPONENTS` has a function for each, which raises an error that says why it cannot be had.
"""

import os
import shutil
import socket
import subprocess
from collections.abc import Callable
from functools import cache, partial

from tests.kits.install import debian, lowest_versions
from tests.kits.install.cache import NotInstalled
from tests.kits.loghub import sls_programs, sls_sdk
from tests.kits.pipeline import delta, quick_java
from tests.kits.servers import bookkeeper, databases, kafka, zookeeper
from tests.kits.zeppelin import redis_py

NEW_MOUNTS = (
    ("unshare", "--mount", "--propagation", "private")
    if os.geteuid() == 0
    else ("unshare", "--map-root-user", "--mount", "--propagation", "private")
)


@cache
def why_missing(name: str) -> str | None:
    """Nothing where the component is there. Asked once: to install one may take minutes."""
    try:
        COMPONENTS[name]()
    except (NotInstalled, OSError) as error:
        return str(error)
    return None


def _strace() -> None:
    """Able to trace a child: it injects faults into real system calls."""
    if shutil.which("strace") is None and os.geteuid() == 0 and shutil.which("apt-get"):
        _succeeds("apt-get", "update", "-qq")
        _succeeds("apt-get", "install", "-y", "-qq", "strace")
    if not _succeeds("strace", "-f", "-o", "/dev/null", "true"):
        raise NotInstalled("strace is not installed, or may not trace here")


def _tmpfs() -> None:
    """A small file system of our own, in a mount namespace: a disk that is really full."""
    if not _succeeds(*NEW_MOUNTS, "true"):
        raise NotInstalled("mount namespaces are not allowed here")


def _memory_disk() -> None:
    """A file system in memory that is mounted already."""
    if not os.path.isdir("/dev/shm"):
        raise NotInstalled("there is no /dev/shm here")


def _namespaces() -> None:
    """Network namespaces and bridges between them: a network that really loses packets."""
    name = f"probe{os.getpid()}"
    is_able = _succeeds("ip", "netns", "add", name) and _succeeds(
        *("ip", "link", "add", name, "type", "bridge")
    )
    _succeeds("ip", "link", "del", name)
    _succeeds("ip", "netns", "del", name)
    if not is_able:
        raise NotInstalled("network namespaces are not allowed here, or there is no `ip`")


def _ipv6() -> None:
    """The loopback address of version 6."""
    with socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::1", 0))


def _port_80() -> None:
    """The right to listen there, on addresses that nobody else uses."""
    with socket.socket() as probe:
        probe.bind(("127.99.99.99", 80))


def _succeeds(*command: str) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def _redis_clients() -> None:
    for version in redis_py.VERSIONS:
        redis_py.folder_of(version)


INSTALLED: dict[str, Callable[[], object]] = {
    "spark_classes": quick_java.spark_classes,
    "ways_in_go": sls_programs.ways_in_go_program,
    "sls_go": sls_programs.go_program,
    "bookkeeper": bookkeeper.install,
    "mariadb": databases.MariaServer.check,
    "postgresql": databases.PostgresServer.check,
    "kafka": kafka.install,
    "delta": delta.delta_jars,
    "sls_java": sls_programs.java_command,
    "redis_clients": _redis_clients,
    "redis_tools": partial(debian.install, "redis-tools"),
    "nutcracker": partial(debian.install, "nutcracker"),
    "lowest_versions": lowest_versions.install,
    "sls_python": sls_sdk.install,
    "zookeeper": zookeeper.install,
}
"""Those that are fetched or built below `.cache`, the longest work first."""

COMPONENTS: dict[str, Callable[[], object]] = {
    **INSTALLED,
    "ipv6": _ipv6,
    "memory_disk": _memory_disk,
    "namespaces": _namespaces,
    "port_80": _port_80,
    "strace": _strace,
    "tmpfs": _tmpfs,
}
