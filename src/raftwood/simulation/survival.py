"""What a power loss leaves of changes that were not synced.

Every choice goes through a `Fate`, so that the simulated disk (by chance) and the crash images (by
plan) share one model. Changes are decided one by one: keeping a later one without an earlier one
is what a disk does that reorders.
"""

import random
from enum import Enum

import msgspec

from raftwood.simulation.content import Content

_SECTOR_BYTES = 512


class Outcome(Enum):
    """What became of one unsynced change."""

    KEPT = "kept"
    LOST = "lost"
    TORN = "torn"


class DataChange(msgspec.Struct, frozen=True):
    """A write, or with `data` of None a new length."""

    offset: int
    data: bytes | None


class Fate:
    """Decides by chance; subclasses decide by plan."""

    def __init__(self, source: random.Random, *, keep: float = 0.4, tear: float = 0.25) -> None:
        self.random = source
        self._keep = keep
        self._tear = tear

    def of_data(self, change: DataChange, *, is_last: bool) -> Outcome:  # noqa: ARG002
        draw = self.random.random()
        if draw < self._keep:
            return Outcome.KEPT
        if draw < self._keep + self._tear and change.data is not None and len(change.data) > 1:
            return Outcome.TORN
        return Outcome.LOST

    def keeps_directory_change(self) -> bool:
        return self.random.random() < 0.5

    def keeps_length(self) -> bool:
        """Whether the new length survived with the write that grew the file, or without it."""
        return self.random.random() < 0.6


class KeepAll(Fate):
    """Everything reached the disk by itself, just before the power went."""

    def of_data(self, change: DataChange, *, is_last: bool) -> Outcome:  # noqa: ARG002
        return Outcome.KEPT

    def keeps_directory_change(self) -> bool:
        return True

    def keeps_length(self) -> bool:
        return True


class LoseAll(Fate):
    """Only what was synced is there."""

    def of_data(self, change: DataChange, *, is_last: bool) -> Outcome:  # noqa: ARG002
        return Outcome.LOST

    def keeps_directory_change(self) -> bool:
        return False

    def keeps_length(self) -> bool:
        return False


class LoseDirectories(KeepAll):
    """All data is there, but files whose directory was not synced have no name."""

    def keeps_directory_change(self) -> bool:
        return False


class LoseData(KeepAll):
    """Names and lengths are there, unsynced contents read as zeros or as before."""

    def of_data(self, change: DataChange, *, is_last: bool) -> Outcome:  # noqa: ARG002
        return Outcome.LOST if change.data is not None else Outcome.KEPT


class TearLast(KeepAll):
    """All is there but the last write, which is torn."""

    def of_data(self, change: DataChange, *, is_last: bool) -> Outcome:
        if is_last and change.data is not None and len(change.data) > 1:
            return Outcome.TORN
        return Outcome.KEPT


def survivors(durable: Content, changes: list[DataChange], fate: Fate) -> Content:
    """The contents after a power loss; `durable` itself is left as it is."""
    if not changes:
        return durable
    content = durable.copy()
    last = changes[-1]
    for change in changes:
        outcome = fate.of_data(change, is_last=change is last)
        if change.data is None:
            if outcome is Outcome.KEPT:
                content.set_length(change.offset)
        elif outcome is Outcome.KEPT:
            _write(content, change.offset, change.data, fate)
        elif outcome is Outcome.TORN:
            for offset, part in _torn(change.offset, change.data, fate.random):
                _write(content, offset, part, fate)
        else:
            end = change.offset + len(change.data)
            if end > content.length and fate.keeps_length():
                content.set_length(end)
    return content


def _write(content: Content, offset: int, data: bytes, fate: Fate) -> None:
    if offset + len(data) > content.length and not fate.keeps_length():
        data = data[: max(0, content.length - offset)]
    if data:
        content.write(offset, data)


def _torn(offset: int, data: bytes, source: random.Random) -> list[tuple[int, bytes]]:
    """Part of a write: a beginning or an end cut at any byte, or any choice of its sectors."""
    draw = source.random()
    if draw < 0.35:
        return [(offset, data[: source.randrange(len(data))])]
    if draw < 0.5:
        start = source.randrange(1, len(data))
        return [(offset + start, data[start:])]
    parts = []
    position = 0
    while position < len(data):
        end = position + _SECTOR_BYTES - (offset + position) % _SECTOR_BYTES
        if source.random() < 0.5:
            parts.append((offset + position, data[position:end]))
        position = end
    return parts
