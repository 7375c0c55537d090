"""What a partition has in memory: all values that its engine has not got yet, and recent ones.

Recent values are kept in two generations. What is used goes into the young one; once that is full
it becomes the old one, and what was not used since is forgotten with the one before.
"""

from collections.abc import Iterable
from enum import Enum
from typing import Final, Literal, TypeAlias

from raftwood.zeppelin.node.seams import Value, Write


class Missing(Enum):
    """Nothing in memory tells; None would say that there is no such key."""

    MISSING = 0


MISSING: Final = Missing.MISSING
Found: TypeAlias = Value | Literal[Missing.MISSING] | None
_OBJECT_BYTES: Final = 250
"""About what a key and its value take besides their bytes."""


class Overlay:
    """For any key, what is found first counts: unapplied, young, old, then the engine."""

    def __init__(self, cache_bytes_max: int) -> None:
        self.unapplied: dict[bytes, Value | None] = {}
        self.flush_sequence = 0
        """Of the last flush that the engine has not got: what the engine holds is gone. 0: none."""
        self.cache_bytes_max = cache_bytes_max
        self._young: dict[bytes, Value | None] = {}
        self._old: dict[bytes, Value | None] = {}
        self._young_bytes = 0

    def find(self, key: bytes) -> Found:
        found: Found = self.unapplied.get(key, MISSING)
        if found is not MISSING:
            return found
        found = self._young.get(key, MISSING)
        if found is not MISSING:
            return found
        found = self._old.get(key, MISSING)
        if found is not MISSING:
            self.keep(key, found)
            return found
        return None if self.flush_sequence else MISSING

    def put(self, writes: Iterable[Write]) -> None:
        """From now on the keys have these values, whatever the engine says."""
        unapplied = self.unapplied
        for write in writes:
            data = write.data
            unapplied[write.key] = None if data is None else Value(data, write.expires_ms)

    def flush(self, sequence: int) -> None:
        """From now on no key has a value."""
        self.forget_all()
        self.flush_sequence = sequence

    def applied(self, writes: Iterable[Write], *, sequence: int) -> None:
        """The engine has these, the latest of each key up to a sequence."""
        if self.flush_sequence > sequence:
            return  # all of them are gone
        self.flush_sequence = 0
        unapplied, young = self.unapplied, self._young
        size = 0
        for write in writes:
            key, data = write.key, write.data
            value: Found = unapplied.get(key, MISSING)
            # A later write of the key may be still to come; the very same one changes nothing.
            if value is None:
                if data is not None:
                    continue
            elif value is MISSING or value.data is not data or value.expires_ms != write.expires_ms:
                continue
            else:
                size += len(data)
            del unapplied[key]
            young[key] = value
            size += _OBJECT_BYTES + len(key)
        self._grow(size)

    def keep(self, key: bytes, value: Value | None) -> None:
        """Remember what a key has, for a while."""
        self._young[key] = value
        self._grow(_OBJECT_BYTES + len(key) + (0 if value is None else len(value.data)))

    def _grow(self, size: int) -> None:
        self._young_bytes += size
        if self._young_bytes * 2 > self.cache_bytes_max:
            self._old, self._young = self._young, {}
            self._young_bytes = 0

    def forget_all(self) -> None:
        self.unapplied.clear()
        self._young.clear()
        self._old.clear()
        self._young_bytes = 0
        self.flush_sequence = 0
