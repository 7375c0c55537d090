"""What a member of a group says of itself: one line of JSON for each thing that happens.

Members are processes of their own, on one machine, whose monotonic clocks are the same.
"""

import sys
import time
from typing import Final

import msgspec

READY: Final = "ready"
"""The process waits for orders."""
BEGUN: Final = "begun"
"""A shard's first call of process() here begins."""
ENDED: Final = "ended"
"""A shard was given up; the time is that of the end of its last call of process()."""
STOLEN: Final = "stolen"
"""A lease of another was taken; the time is just before the commit."""
ROUND: Final = "round"
"""Leases were taken, or partitions assigned."""


class Note(msgspec.Struct, frozen=True):
    """One line."""

    kind: str
    ns: int
    shard: str = ""


def now_ns() -> int:
    return time.monotonic_ns()


def say(kind: str, shard: str = "", *, ns: int | None = None) -> None:
    note = Note(kind, now_ns() if ns is None else ns, shard)
    sys.stdout.buffer.write(msgspec.json.encode(note) + b"\n")
    sys.stdout.buffer.flush()
