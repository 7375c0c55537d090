"""What a partition has in memory: all writes that its engine has not got yet, and recent values.

A value is kept as the write that made it; one without data says that there is no such key. Recent
ones are in two generations. What is written or used goes into the young one; once that is full it
becomes the old one, and what was not used since is forgotten with the one before: a few at a time,
as to free hundreds of thousands of them would hold up everything.
"""

from collections.abc import Iterable
from typing import Final

from raftwood.zeppelin.node.seams import Write

_OBJECT_BYTES: Final = 250
"""About what a key and its value take besides their bytes."""
_FREED_PER_OBJECT: Final = 2
"""So many are freed for each that comes: all are gone before the next generation is full."""


class Overlay:
    """For any key, what is found first counts: young, unapplied, old, then the engine."""

    def __init__(self, cache_bytes_max: int) -> None:
        self.unapplied: dict[bytes, Write] = {}
        self.young: dict[bytes, Write] = {}
        """The same one for ever: whoever reads many keys looks here first."""
        self.flush_sequence = 0
        """Of the last flush that the engine has not got: what the engine holds is gone. 0: none."""
        self.cache_bytes_max = cache_bytes_max
        self._old: dict[bytes, Write] = {}
        self._forgotten: dict[bytes, Write] = {}
        """Nobody looks here; it is still to be freed."""
        self._young_bytes = 0

    def find(self, key: bytes) -> Write | None:
        """None where nothing in memory tells, and the engine has to be asked."""
        found = self.young.get(key) or self.unapplied.get(key)
        if found is not None:
            return found
        found = self._old.get(key)
        if found is not None:
            self.keep(found)
        elif self.flush_sequence:
            return Write(key, None)
        return found

    def put(self, writes: Iterable[Write]) -> None:
        """From now on the keys have these values, whatever the engine says."""
        unapplied, young = self.unapplied, self.young
        for write in writes:
            unapplied[write.key] = young[write.key] = write

    def flush(self, sequence: int) -> None:
        """From now on no key has a value."""
        self.forget_all()
        self.flush_sequence = sequence

    def applied(self, writes: Iterable[Write], *, sequence: int) -> None:
        """The engine has these, the latest of each key up to a sequence."""
        if self.flush_sequence > sequence:
            return  # all of them are gone
        self.flush_sequence = 0
        unapplied = self.unapplied
        for write in writes:
            # A later write of the key may be still to come.
            if unapplied.get(write.key) is write:
                del unapplied[write.key]

    def keep(self, write: Write) -> None:
        """Remember what a key has, for a while."""
        self.young[write.key] = write
        self.grow(_OBJECT_BYTES + len(write.key) + len(write.data or b""))

    def grow(self, size: int) -> None:
        """The young ones take so many bytes more."""
        self._young_bytes += size
        if self._forgotten:
            self._free(_FREED_PER_OBJECT * (1 + size // _OBJECT_BYTES))
        if self._young_bytes * 2 > self.cache_bytes_max:
            self._forgotten, self._old = self._old, self.young.copy()
            self.young.clear()
            self._young_bytes = 0

    def _free(self, count: int) -> None:
        popitem = self._forgotten.popitem
        for _ in range(min(count, len(self._forgotten))):
            popitem()

    def forget_all(self) -> None:
        self.unapplied.clear()
        self.young.clear()
        self._old.clear()
        self._young_bytes = 0
        self.flush_sequence = 0
