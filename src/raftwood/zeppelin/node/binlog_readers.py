"""Who reads a partition's binlog by command, and from where on: that holds it, as a slave does.

In memory alone: whoever reads comes again, to the next master too. One that has not come for a
while is forgotten, and holds nothing any more.
"""

from typing import Final

from raftwood.base.errors import Overloaded

READERS_MAX: Final = 64
FORGOTTEN_NS: Final = 600_000_000_000
"""After so long without a read."""


class BinlogReaders:
    """Of one partition, by the names that they give."""

    __slots__ = ("_readers",)

    def __init__(self) -> None:
        self._readers: dict[bytes, tuple[int, int]] = {}
        """The first record that is needed, and when it was said."""

    def note(self, name: bytes, *, needs: int, now_ns: int) -> None:
        """A reader needs records from a sequence on."""
        if name not in self._readers and len(self._readers) >= READERS_MAX:
            self._forget(now_ns)
            if len(self._readers) >= READERS_MAX:
                raise Overloaded(
                    f"{READERS_MAX} others read this binlog already: stop one, or wait until it is "
                    "forgotten"
                )
        self._readers[name] = (needs, now_ns)

    def needed_from(self, now_ns: int) -> int | None:
        """The first record that any of them needs; None where nobody does."""
        if not self._readers:
            return None
        self._forget(now_ns)
        return min((needs for needs, _ in self._readers.values()), default=None)

    def _forget(self, now_ns: int) -> None:
        self._readers = {
            name: (needs, heard_ns)
            for name, (needs, heard_ns) in self._readers.items()
            if now_ns - heard_ns < FORGOTTEN_NS
        }
