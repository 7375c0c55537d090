"""Ports for servers of tests: no two processes that run tests are given the same one.

Each process that runs tests locks a block of ports for as long as it lives, so that a server that
is down for a while finds its port again. All blocks lie below the ports that the system gives to
those who dial.
"""

import fcntl
import itertools
import os
import socket
import tempfile
from functools import cache
from pathlib import Path

LOCAL = "127.0.0.1"
_FIRST = 10_000
_LAST_FILE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_BLOCK = 500


class _Block:
    """Ports that this process alone hands out, in turn."""

    def __init__(self) -> None:
        folder = Path(tempfile.gettempdir()) / f"raftwood-test-ports-{os.getuid()}"
        folder.mkdir(exist_ok=True)
        below = int(_LAST_FILE.read_text().split()[0])
        for first in range(_FIRST, below - _BLOCK + 1, _BLOCK):
            lock = os.open(folder / str(first), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
                continue
            self._places = itertools.cycle(range(first, first + _BLOCK))
            return
        raise AssertionError(f"all blocks of ports are taken: see the locks in {folder}")

    def row(self, count: int) -> int:
        """The first of so many in a row that nobody listens at."""
        found: list[int] = []
        for port in itertools.islice(self._places, 2 * _BLOCK):
            if found and port != found[-1] + 1:
                found.clear()
            if not _is_free(port):
                found.clear()
                continue
            found.append(port)
            if len(found) == count:
                return found[0]
        raise AssertionError(f"no {count} ports in a row are free")


@cache
def _block(_: int) -> _Block:
    """Of a process: one that was forked takes a block of its own."""
    return _Block()


def consecutive_ports(count: int) -> int:
    """The first of some ports in a row."""
    return _block(os.getpid()).row(count)


def free_ports(count: int) -> list[int]:
    first = consecutive_ports(count)
    return [*range(first, first + count)]


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
