"""`ConnectionCache`: a process's connections, each kept for the next task that needs the same.

A Python worker of Spark runs one task after the other.
"""

import atexit
import os
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

KEPT_MAX: Final = 4


class _Closable(Protocol):
    def close(self) -> None: ...


Access = TypeVar("Access")
Connection = TypeVar("Connection", bound=_Closable)


class ConnectionCache(Generic[Access, Connection]):
    """Connections by what they are made of; they are closed at the end of the process."""

    def __init__(self, connect: Callable[[Access], Connection]) -> None:
        self._connect = connect
        self._kept: dict[Access, Connection] = {}
        self._process = os.getpid()
        atexit.register(self.close)

    def get(self, access: Access) -> Connection:
        """One that is there already, or a new one."""
        if self._process != os.getpid():
            # A process that was forked has no thread of its parent's.
            self._process = os.getpid()
            self._kept.clear()
        found = self._kept.get(access)
        if found is None:
            while len(self._kept) >= KEPT_MAX:
                self._kept.pop(next(iter(self._kept))).close()
            found = self._kept[access] = self._connect(access)
        return found

    def close(self) -> None:
        """Close all of this process."""
        if self._process == os.getpid():
            while self._kept:
                self._kept.popitem()[1].close()
