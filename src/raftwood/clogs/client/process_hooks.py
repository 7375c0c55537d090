"""Handles a fork, and the end of the process, for shippers.

`atexit` runs its functions in reverse order. Shippers of handlers are left to `logging.shutdown`,
which comes after nearly all else, because other code logs at the end too. Together all shippers
take no longer at the end than the longest `exit_ms`.
"""

import atexit
import os
import sys
import time
import weakref
from typing import Final, Protocol

from raftwood.base.errors import RaftwoodError


class _Shipper(Protocol):
    @property
    def exit_ms(self) -> int: ...

    @property
    def is_closed_late(self) -> bool: ...

    def after_fork(self) -> None: ...

    def close(self, *, wait_ms: int | None = None) -> None: ...


_shippers: Final["weakref.WeakSet[_Shipper]"] = weakref.WeakSet()
_ends_at: float | None = None


def register(shipper: _Shipper) -> None:
    _shippers.add(shipper)


def register_child() -> None:
    """Registers in a child of `multiprocessing`, which runs its own list of exit functions."""
    util = sys.modules.get("multiprocessing.util")
    process = sys.modules.get("multiprocessing.process")
    if util is not None and process is not None and process.parent_process() is not None:
        util.Finalize(None, _end_all, exitpriority=0)


def wait_ms_at_end(wait_ms: int) -> int:
    """Returns the part of `wait_ms` that the end of the process has left."""
    if _ends_at is None:
        return wait_ms
    return max(0, min(wait_ms, int((_ends_at - time.monotonic()) * 1000)))


def tell(text: str) -> None:
    """Writes to standard error: a program that logs through clogs would not see a log line."""
    try:
        sys.stderr.write(f"raftwood: {text}\n")
    except (OSError, ValueError, AttributeError):
        return  # it is closed, or there is none


def _after_fork() -> None:
    for shipper in list(_shippers):
        shipper.after_fork()


def _at_exit() -> None:
    _end(is_late=False)


def _end_all() -> None:
    _end(is_late=True)


def _end(*, is_late: bool) -> None:
    global _ends_at  # noqa: PLW0603 (a process ends once)
    shippers = list(_shippers)
    longest_ms = max((shipper.exit_ms for shipper in shippers), default=0)
    _ends_at = time.monotonic() + longest_ms / 1000
    for shipper in shippers:
        if shipper.is_closed_late and not is_late:
            continue
        try:
            shipper.close()
        except RaftwoodError as error:
            tell(f"log lines may be lost: {error.message}")


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
