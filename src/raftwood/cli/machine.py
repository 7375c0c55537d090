"""Facts about this machine for `raftwood doctor`: ports, disks, clocks, limits, what is installed.

Nothing here judges: `doctor` has the rules. What a system does not tell is None or left out.
"""

import os
import resource
import socket
import tempfile
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib.util import find_spec
from typing import Final

import msgspec

from raftwood.base.errors import InvalidInput

SYNCS_MAX: Final = 200
SYNCS_S_MAX: Final = 1.0
SYNCED_BYTES: Final = 4096
_LOOPBACK: Final = "127.0.0.1"
_SAMPLE_S: Final = 0.05
_LISTENING: Final = "0A"


class Disk(msgspec.Struct, frozen=True):
    """The file system of a data folder, and how fast it syncs."""

    folder: str
    """Of the measurement: the nearest one that exists."""
    file_system: str
    free_bytes: int
    sync_ms: tuple[float, ...]
    """How long each of some writes of 4 KiB with fdatasync took, the shortest first."""
    error: str = ""
    """Why nothing could be written there."""


class Ports(msgspec.Struct, frozen=True):
    """The ports of a standalone."""

    first: int
    count: int
    taken: Mapping[int, str]
    """By whom, as far as the system says; else empty."""
    free_base: int | None = None
    """Another first port, if all that follow it are free."""


class Limits(msgspec.Struct, frozen=True):
    """What the system lets this user have."""

    open_files: int
    watches: int | None = None
    """Folders and files that inotify may watch; None where there is no inotify."""
    watchers: int | None = None


class ClockSample(msgspec.Struct, frozen=True):
    """The two clocks of this machine over a moment."""

    wall_s: float
    """Since 1970."""
    wall_passed_s: float
    monotonic_passed_s: float


def disk_of(folder: str) -> Disk:
    """Measures in the folder, or in the one above it that exists; leaves nothing behind."""
    found = os.path.abspath(folder)
    while not os.path.exists(found):
        found = os.path.dirname(found)
    if not os.path.isdir(found):
        raise InvalidInput(f"--data {folder}: {found} is no folder")
    status = os.statvfs(found)
    free_bytes = status.f_bavail * status.f_frsize
    file_system = _file_system(os.path.realpath(found))
    try:
        sync_ms = tuple(sorted(_sync_ms(found)))
    except OSError as error:
        return Disk(found, file_system, free_bytes, (), error.strerror or str(error))
    return Disk(found, file_system, free_bytes, sync_ms)


def _sync_ms(folder: str) -> Iterable[float]:
    descriptor, path = tempfile.mkstemp(prefix=".raftwood-doctor-", dir=folder)
    try:
        os.unlink(path)  # so that nothing is left behind, whatever happens
        sync = getattr(os, "fdatasync", os.fsync)
        block = os.urandom(SYNCED_BYTES)
        end = time.monotonic() + SYNCS_S_MAX
        for _ in range(SYNCS_MAX):
            os.write(descriptor, block)
            begin = time.perf_counter()
            sync(descriptor)
            yield (time.perf_counter() - begin) * 1000
            if time.monotonic() >= end:
                return
    finally:
        os.close(descriptor)


def _file_system(path: str) -> str:
    """The type of the mount that the path is on; empty if the system does not say."""
    best, kind = "", ""
    with suppress(OSError), open("/proc/self/mountinfo", encoding="utf-8") as file:
        for line in file:
            left, _, right = line.partition(" - ")
            point = left.split()[4].replace("\\040", " ")
            is_above = path == point or path.startswith(point.rstrip("/") + "/")
            if is_above and len(point) >= len(best):
                best, kind = point, right.split()[0]
    return kind


def ports_of(first: int, count: int) -> Ports:
    """Which of some ports in a row are taken, by whom, and another row that is free."""
    taken = {port: "" for port in range(first, first + count) if not _is_free(port)}
    if not taken:
        return Ports(first, count, {})
    bases = range(first + 100, min(first + 2_000, 65_535 - count), 100)
    free = (base for base in bases if all(map(_is_free, range(base, base + count))))
    return Ports(first, count, taken | _owners(taken), next(free, None))


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_LOOPBACK, port))
        except OSError:
            return False
    return True


def _owners(ports: Iterable[int]) -> dict[int, str]:
    """The processes that listen at them, of those that this user may look at."""
    wanted: dict[str, int] = {}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError), open(table, encoding="ascii") as file:
            for line in list(file)[1:]:
                fields = line.split()
                port = int(fields[1].rpartition(":")[2], 16)
                if fields[3] == _LISTENING and port in ports:
                    wanted[f"socket:[{fields[9]}]"] = port
    found: dict[int, str] = {}
    for process in filter(str.isdecimal, os.listdir("/proc") if wanted else ()):
        with suppress(OSError):
            for each in os.scandir(f"/proc/{process}/fd"):
                with suppress(OSError):
                    port = wanted.get(os.readlink(each.path), 0)
                    if port:
                        found[port] = f"process {process} ({_name(process)})"
    return found


def _name(process: str) -> str:
    with open(f"/proc/{process}/comm", encoding="utf-8", errors="replace") as file:
        return file.read().strip()


def limits_of() -> Limits:
    return Limits(
        resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        _kernel_number("max_user_watches"),
        _kernel_number("max_user_instances"),
    )


def _kernel_number(name: str) -> int | None:
    try:
        with open(f"/proc/sys/fs/inotify/{name}", encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return None


def clock_sample() -> ClockSample:
    wall_s, monotonic_s = time.time(), time.monotonic()
    time.sleep(_SAMPLE_S)
    return ClockSample(wall_s, time.time() - wall_s, time.monotonic() - monotonic_s)


def missing_modules(names: Iterable[str]) -> list[str]:
    """Those that cannot be imported; none of them is loaded."""
    return [name for name in names if find_spec(name) is None]
