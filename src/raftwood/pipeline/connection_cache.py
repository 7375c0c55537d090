"""`ConnectionCache`: a process's connections, each kept for the next task that needs it.

A Python worker of Spark runs one task after the other.
"""

import atexit
import os
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

from raftwood.base.caches import LruCache

KEPT_MAX: Final = 4


class _Closable(Protocol):
    def close(self) -> None: ...


Access = TypeVar("Access")
Connection = TypeVar("Connection", bound=_Closable)


class ConnectionCache(Generic[Access, Connection]):
    """Connections by their parameters; they are closed at the end of the process."""

    def __init__(self, connect: Callable[[Access], Connection]) -> None:
        self._connect = connect
        self._kept: LruCache[Access, Connection] = LruCache(KEPT_MAX)
        self._process = os.getpid()
        atexit.register(self.close)

    def get(self, access: Access) -> Connection:
        """Returns a cached connection, or a new one."""
        if self._process != os.getpid():
            # A forked process does not have its parent's threads.
            self._process = os.getpid()
            self._kept.pop_all()
        found = self._kept.get(access)
        if found is None:
            found = self._connect(access)
            for displaced in self._kept.put(access, found):
                displaced.close()
        return found

    def close(self) -> None:
        """Closes all connections of this process."""
        if self._process == os.getpid():
            for each in self._kept.pop_all():
                each.close()
