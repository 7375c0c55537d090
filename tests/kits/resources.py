"""What a test may leave behind: threads, child processes, sockets and event loops of this process,
by name.

Every test asks twice, most of them beside servers that last. The kernel is asked about this process
alone: psutil looks through every process and every connection of the machine, for 50 ms a time.
"""

import asyncio
import os
import socket
import stat
import threading
import weakref
from contextlib import suppress

import psutil

_TELLS_CHILDREN = os.path.exists("/proc/thread-self/children")
_TCP_CLOSE = 7
"""A state of the kernel's: such a socket is bound at most."""
_shared: set[int] = set()
"""Processes that several tests share, and may restart."""


_loops: "dict[int, weakref.ref[asyncio.AbstractEventLoop]]" = {}


class CountingPolicy(asyncio.DefaultEventLoopPolicy):
    """Event loops that are made are known. One that is left open says so only when it is collected
    as garbage, in the middle of another test.
    """

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        loop = super().new_event_loop()
        _loops[id(loop)] = weakref.ref(loop)
        return loop


def loops() -> set[str]:
    """All that are open."""
    for key, known in list(_loops.items()):
        loop = known()
        if loop is None or loop.is_closed():
            _loops.pop(key, None)
    return {f"event loop {key}" for key in list(_loops)}


def lasts(pid: int) -> None:
    _shared.add(pid)


def ended(pid: int) -> None:
    _shared.discard(pid)


def resources() -> set[str]:
    """All there is now, but for processes that several tests share and all below them."""
    threads = {f"thread {thread.name} {thread.ident}" for thread in threading.enumerate()}
    processes = {f"process {pid}" for pid in _descendants()}
    ours = {name for name in threads if "execnet" not in name}
    return ours | processes | _sockets() | loops()


def _descendants() -> set[int]:
    if not _has_children():
        return set()
    if not _TELLS_CHILDREN:
        everyone = psutil.Process().children(recursive=True)
        return {child.pid for child in everyone if _shared.isdisjoint(_line(child))}
    found: set[int] = set()
    waiting = [os.getpid()]
    while waiting:
        children = _children(waiting.pop()) - found - _shared
        found |= children
        waiting += children
    return found


def _line(child: psutil.Process) -> set[int]:
    """A process and those above it."""
    return {child.pid, *(parent.pid for parent in child.parents())}


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _children(pid: int) -> set[int]:
    found: set[int] = set()
    for task in _listed(f"/proc/{pid}/task"):
        # A thread may have ended meanwhile: its children are another's then.
        with suppress(OSError), open(f"/proc/{pid}/task/{task}/children", "rb") as stream:
            found.update(map(int, stream.read().split()))
    return found


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _sockets() -> set[str]:
    found = set()
    for name in os.listdir("/proc/self/fd"):
        # It may be closed meanwhile; the descriptor of the folder itself always is.
        with suppress(OSError):
            if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                continue
            with socket.socket(fileno=os.dup(int(name))) as copy:
                if copy.family in (socket.AF_INET, socket.AF_INET6) and _is_used(copy):
                    found.add(f"socket {copy.getsockname()}-{_peer(copy)}")
    return found


def _is_used(copy: socket.socket) -> bool:
    """Whether it listens, is connected, or takes datagrams."""
    if copy.type == socket.SOCK_STREAM:
        (state,) = copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
        return state != _TCP_CLOSE
    return bool(copy.getsockname()[1])


def _peer(copy: socket.socket) -> object:
    try:
        return copy.getpeername()
    except OSError:
        return ()
