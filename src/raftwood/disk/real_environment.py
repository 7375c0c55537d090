"""The `Environment` of a real process: the machine's clocks, entropy and disk."""

import asyncio
import os
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from raftwood.base.environment import Environment, SystemClock
from raftwood.disk.thread_files import ThreadFiles

EXIT_CODE_ENDED = 70
"""The exit code of a process that ended itself because it could not go on safely."""


@contextmanager
def real_environment() -> Iterator[Environment]:
    """An environment with disk threads of its own, which end with the block."""
    files = ThreadFiles()
    try:
        yield Environment(
            clock=SystemClock(),
            random=random.SystemRandom(),
            files=files,
            end_process=end_process,
            compute=asyncio.to_thread,
        )
    finally:
        files.close()


def end_process(reason: str) -> NoReturn:
    """Say why and end at once: no clean-up may run that would write or answer anything."""
    try:
        sys.stderr.write(f"fatal: {reason}\n")
        sys.stderr.flush()
    finally:
        os._exit(EXIT_CODE_ENDED)  # also where standard error is closed, or its disk full
