"""What partitions have of the keys that are in their engines, once they were split.

The engines of both are what that of the one was, and so each has keys of the other at first. Nobody
is told of those, and they are taken out bit by bit on each node by itself, not by the binlog: what
replicas hold of slots that are not theirs does not matter.
"""

import msgspec

from raftwood.zeppelin.model import Table


class Share(msgspec.Struct, frozen=True):
    """Of one partition."""

    slots: range
    begins: int
    """The last record that may be of other slots."""


def shares_of(table: Table) -> dict[int, Share]:
    """By number; partitions that were never split have all that they hold."""
    begins: dict[int, int] = {}
    for number, each in enumerate(table.partitions):
        if each.parent is not None:
            for half in (number, each.parent.number):
                begins[half] = max(begins.get(half, 0), each.parent.sequence)
    return {number: Share(table.slots_of(number), last) for number, last in begins.items()}
