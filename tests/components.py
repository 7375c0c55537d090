"""Components of the machine that some tests need; each check installs what can be installed."""

import os
import shutil
import socket
import subprocess
from collections.abc import Callable
from functools import cache

from tests import (
    bookkeeper_cluster,
    databases,
    debian,
    go_programs,
    kafka_broker,
    maven,
    python_libraries,
    zookeeper_server,
)
from tests.interop import lowest_versions, programs, sls_sdk
from tests.interop.zeppelin import redis_py


class Missing(Exception):
    """The component cannot be had on this machine; says why."""


@cache
def strace() -> None:
    """`strace`, able to trace a child: it injects faults into real system calls."""
    if shutil.which("strace") is None:
        _install("strace")
    traced = _succeeds("strace", "-f", "-o", "/dev/null", "true")
    if not traced:
        raise Missing("strace is not installed, or may not trace here")


@cache
def tmpfs() -> None:
    """A small file system of our own, in a mount namespace: a disk that is really full."""
    if not _succeeds(*NEW_MOUNTS, "true"):
        raise Missing("mount namespaces are not allowed here")


def memory_disk() -> None:
    """A file system in memory that is mounted already."""
    if not os.path.isdir("/dev/shm"):
        raise Missing("there is no /dev/shm here")


def zookeeper() -> None:
    """A ZooKeeper server, which runs on Java and is installed by Maven."""
    reason = _why_no_zookeeper()
    if reason is not None:
        raise Missing(reason)


@cache
def _why_no_zookeeper() -> str | None:
    """Asked once: an attempt to install it may take minutes."""
    try:
        zookeeper_server.install()
    except maven.NotInstalled as error:
        return str(error)
    return None


def bookkeeper() -> None:
    """A ZooKeeper server and bookies, which run on Java and are installed by Maven."""
    reason = _why_no_bookkeeper()
    if reason is not None:
        raise Missing(reason)


@cache
def _why_no_bookkeeper() -> str | None:
    """Asked once: an attempt to install it may take minutes."""
    try:
        bookkeeper_cluster.install()
    except maven.NotInstalled as error:
        return str(error)
    return None


@cache
def kafka() -> None:
    """A Kafka broker, which runs on Java and is installed by Maven."""
    try:
        kafka_broker.install()
    except maven.NotInstalled as error:
        raise Missing(str(error)) from error


def postgresql() -> None:
    """A PostgreSQL server, fetched by Maven."""
    reason = _why_no_database("postgresql")
    if reason is not None:
        raise Missing(reason)


def mariadb() -> None:
    """A MariaDB server, fetched by Maven."""
    reason = _why_no_database("mariadb")
    if reason is not None:
        raise Missing(reason)


@cache
def _why_no_database(name: str) -> str | None:
    """Asked once: an attempt to fetch it may take minutes."""
    try:
        databases.SERVERS[name].check()
    except (maven.NotInstalled, OSError, subprocess.SubprocessError) as error:
        return str(error)
    return None


def redis_clients() -> None:
    """The versions of redis-py that are not installed, fetched by pip."""
    reason = _why_no_redis_clients()
    if reason is not None:
        raise Missing(reason)


@cache
def _why_no_redis_clients() -> str | None:
    """Asked once: an attempt to install them may take long."""
    try:
        for version in redis_py.VERSIONS:
            redis_py.folder_of(version)
    except python_libraries.NotInstalled as error:
        return str(error)
    return None


def sls_python() -> None:
    """SLS's Python SDK and the libraries that it needs, fetched by pip."""
    reason = _why_no_sls_python()
    if reason is not None:
        raise Missing(reason)


@cache
def _why_no_sls_python() -> str | None:
    """Asked once: an attempt to install it may take long."""
    try:
        sls_sdk.install()
    except python_libraries.NotInstalled as error:
        return str(error)
    return None


def lowest_libraries() -> None:
    """The lowest versions that are allowed of libraries, fetched by pip."""
    reason = _why_no_lowest_libraries()
    if reason is not None:
        raise Missing(reason)


@cache
def _why_no_lowest_libraries() -> str | None:
    """Asked once: an attempt to install them may take long."""
    try:
        lowest_versions.install()
    except python_libraries.NotInstalled as error:
        return str(error)
    return None


def redis_tools() -> None:
    """`redis-cli` and `redis-benchmark`, of Debian's packages."""
    reason = _why_no_redis_tools()
    if reason is not None:
        raise Missing(reason)


@cache
def _why_no_redis_tools() -> str | None:
    """Asked once: an attempt to fetch them may take minutes."""
    try:
        debian.install("redis-tools")
    except debian.NotInstalled as error:
        return str(error)
    return None


def nutcracker() -> None:
    """`nutcracker`, which is twemproxy, of Debian's packages."""
    reason = _why_no_nutcracker()
    if reason is not None:
        raise Missing(reason)


@cache
def _why_no_nutcracker() -> str | None:
    """Asked once: an attempt to fetch it may take minutes."""
    try:
        debian.install("nutcracker")
    except debian.NotInstalled as error:
        return str(error)
    return None


def delta() -> None:
    """Delta's jars for Spark, fetched by Maven."""
    reason = _why_no_delta()
    if reason is not None:
        raise Missing(reason)


@cache
def _why_no_delta() -> str | None:
    """Asked once: an attempt to fetch them may take minutes."""
    try:
        delta_jars()
    except maven.NotInstalled as error:
        return str(error)
    return None


def delta_jars() -> str:
    """As Spark takes them."""
    # What they need else is in Spark itself.
    folder = maven.install(
        "delta",
        *(("io.delta", name, "4.4.0") for name in DELTA_LIBRARIES),
        is_alone=True,
    )
    return ",".join(sorted(map(str, folder.glob("*.jar"))))


def sls_go() -> None:
    """A program with SLS's Go SDK, built by Go."""
    reason = _why_no_sls_go()
    if reason is not None:
        raise Missing(reason)


@cache
def _why_no_sls_go() -> str | None:
    """Asked once: the first build fetches modules, and may take minutes."""
    try:
        programs.go_program()
    except go_programs.NotBuilt as error:
        return str(error)
    return None


def ways_in_go() -> None:
    """A program with Go libraries that send logs, built by Go."""
    reason = _why_no_ways_in_go()
    if reason is not None:
        raise Missing(reason)


@cache
def _why_no_ways_in_go() -> str | None:
    """Asked once: the first build fetches modules, and may take minutes."""
    try:
        programs.ways_in_go_program()
    except go_programs.NotBuilt as error:
        return str(error)
    return None


def sls_java() -> None:
    """SLS's Java SDK, installed by Maven, and a program that uses it."""
    reason = _why_no_sls_java()
    if reason is not None:
        raise Missing(reason)


@cache
def _why_no_sls_java() -> str | None:
    """Asked once: an attempt to install it may take minutes."""
    try:
        programs.java_command()
    except maven.NotInstalled as error:
        return str(error)
    return None


@cache
def namespaces() -> None:
    """Network namespaces and bridges between them: a network that really loses packets."""
    name = f"probe{os.getpid()}"
    is_able = _succeeds("ip", "netns", "add", name) and _succeeds(
        *("ip", "link", "add", name, "type", "bridge")
    )
    _succeeds("ip", "link", "del", name)
    _succeeds("ip", "netns", "del", name)
    if not is_able:
        raise Missing("network namespaces are not allowed here, or there is no `ip`")


@cache
def ipv6() -> None:
    """The loopback address of version 6."""
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError as error:
        raise Missing(f"there is no ::1 here: {error.strerror}") from error


@cache
def port_80() -> None:
    """The right to listen there, on addresses that nobody else uses."""
    try:
        with socket.socket() as probe:
            probe.bind(("127.99.99.99", 80))
    except OSError as error:
        raise Missing(f"port 80 cannot be had: {error.strerror}") from error


NEW_MOUNTS = (
    ("unshare", "--mount", "--propagation", "private")
    if os.geteuid() == 0
    else ("unshare", "--map-root-user", "--mount", "--propagation", "private")
)

DELTA_LIBRARIES = (
    "delta-spark_4.2_2.13",
    "delta-storage",
    "delta-kernel-api",
    "delta-kernel-defaults",
    "delta-kernel-unitycatalog",
)

COMPONENTS: dict[str, Callable[[], None]] = {
    "bookkeeper": bookkeeper,
    "delta": delta,
    "ipv6": ipv6,
    "kafka": kafka,
    "mariadb": mariadb,
    "memory_disk": memory_disk,
    "namespaces": namespaces,
    "nutcracker": nutcracker,
    "port_80": port_80,
    "postgresql": postgresql,
    "redis_clients": redis_clients,
    "sls_python": sls_python,
    "lowest_versions": lowest_libraries,
    "redis_tools": redis_tools,
    "sls_go": sls_go,
    "sls_java": sls_java,
    "strace": strace,
    "tmpfs": tmpfs,
    "ways_in_go": ways_in_go,
    "zookeeper": zookeeper,
}


def _install(package: str) -> None:
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return
    _succeeds("apt-get", "update", "-qq")
    _succeeds("apt-get", "install", "-y", "-qq", package)


def _succeeds(*command: str) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False
