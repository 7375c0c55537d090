"""Spark's starter of Python workers, which also waits for those that have ended.

The original leaves that to the kernel, and with it goes what they have used of the CPU.
"""

import contextlib
import os
import signal
from typing import Any

from pyspark import daemon

_original = signal.signal


def _wait(*_: object) -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _signal(number: int, handler: Any) -> Any:
    is_left_alone = number == signal.SIGCHLD and handler == signal.SIG_IGN
    return _original(number, _wait if is_left_alone else handler)


if __name__ == "__main__":
    signal.signal = _signal  # type: ignore[assignment]
    daemon.manager()
