"""Fetches and builds all that tests need of others, beside whatever else the machine does.

python -m tests.kits.install
"""

import os
import time
from concurrent.futures import ThreadPoolExecutor

from tests.kits.components import INSTALLED, why_missing

AT_ONCE = 3
"""Most of the time is spent waiting for the network."""
NICE = 10


def _prepare(name: str) -> str:
    began = time.monotonic()
    reason = why_missing(name)
    return f"{name}: {reason or 'ready'} after {time.monotonic() - began:.1f} s"


def main() -> None:
    os.nice(NICE)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for line in pool.map(_prepare, INSTALLED):
            print(line, flush=True)


if __name__ == "__main__":
    main()
