"""Captured changes as what is to be done to a table, in order. No I/O.

Writes are absolute: of those between two flushes the last one of each key counts.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from raftwood.capture.events import slots_of, write_of
from raftwood.zeppelin.node.seams import Write

WRITES_MAX: Final = 2_000
WRITES_BYTES_MAX: Final = 1 << 20
"""Of one step, plus one."""


class Apply(msgspec.Struct, frozen=True):
    """Give keys what they have from now on."""

    writes: tuple[Write, ...]


class Clear(msgspec.Struct, frozen=True):
    """Delete all keys in these slots."""

    slots: range


Step = Apply | Clear


def steps_of(contents: Iterable[Mapping[str, str | bytes]]) -> Iterator[Step]:
    """What some records of a shard come to."""
    pending: dict[bytes, Write] = {}
    size = 0
    for each in contents:
        match each.get("op"):
            case "set" | "delete":
                write = write_of(each)
                pending[write.key] = write
                size += len(write.key) + len(write.data or b"")
            case "flush":
                if pending:
                    yield Apply(tuple(pending.values()))
                    pending, size = {}, 0
                yield Clear(slots_of(each))
            case _:
                continue
        if len(pending) >= WRITES_MAX or size >= WRITES_BYTES_MAX:
            yield Apply(tuple(pending.values()))
            pending, size = {}, 0
    if pending:
        yield Apply(tuple(pending.values()))
