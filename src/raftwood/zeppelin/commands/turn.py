"""What commands on keys see and leave: a turn reads a partition, and gathers what it writes.

A turn is one command, or all of a transaction, which sees what it has written itself. What is left
of it becomes one record of the binlog: the outcome of each key, with absolute times.
"""

from collections.abc import Iterator
from typing import Final

from raftwood.zeppelin.commands.refusals import TOO_LARGE, Refused
from raftwood.zeppelin.node.seams import KEY_BYTES_MAX, Value, Write
from raftwood.zeppelin.node.view import PartitionCopy
from raftwood.zeppelin.resp.answers import Dialect
from raftwood.zeppelin.slots import tag_of

VALUE_BYTES_MAX: Final = 16 << 20
KEY_TOO_LARGE: Final = f"ERR a key has at most {KEY_BYTES_MAX} bytes"
OUTCOME_BYTES_MAX: Final = 15 << 20
"""Of all that one record writes: a record of the binlog has 16 MiB by default, with its heads."""
EXPIRY_MS_MAX: Final = (1 << 63) - 1


class Turn:
    """Reads through what it wrote; nothing of it is there before it is committed as a whole."""

    __slots__ = ("_copy", "_size", "dialect", "now_ms", "seen", "store", "writes")

    def __init__(self, copy: PartitionCopy, dialect: Dialect, *, now_ms: int) -> None:
        self._copy = copy
        self.store = copy.store
        self.dialect = dialect
        self.now_ms = now_ms
        self.writes: dict[bytes, Write] = {}
        """The last of each key."""
        self._size = 0
        """Bytes of values that were put, those that were replaced again too."""
        self.seen = 0
        """The last record that what it read depends on; 0: reads do not wait."""

    def get(self, key: bytes) -> Value | None:
        if self.writes and (write := self.writes.get(key)) is not None:
            return None if write.data is None else Value(write.data, write.expires_ms)
        last_writes = self._copy.last_writes
        if last_writes is not None and (sequence := last_writes.of(key)) > self.seen:
            self.seen = sequence
        return self.store.get(key, now_ms=self.now_ms)

    def data_of(self, key: bytes) -> bytes | None:
        value = self.get(key)
        return None if value is None else value.data

    def put(self, key: bytes, data: bytes, expires_ms: int = 0) -> None:
        """From now on the key has this; what has expired is not kept.

        A command that is refused has put nothing before: transactions count on it.
        """
        length = len(data)
        if length > VALUE_BYTES_MAX:
            raise Refused(TOO_LARGE)
        self._size += length
        if 0 < expires_ms <= self.now_ms:
            self.writes[key] = Write(key, None)
        else:
            self.writes[key] = Write(key, data, expires_ms)

    def delete(self, key: bytes) -> bool:
        """Whether there was something."""
        if self.get(key) is None:
            return False
        self.writes[key] = Write(key, None)
        return True

    def with_tag(self, tag: bytes) -> Iterator[tuple[bytes, bytes]]:
        """All keys with a tag, and their values; those of this turn come last."""
        self.seen = max(self.seen, self._copy.seen_of_all())
        for key, value in self.store.scan_tag(tag, now_ms=self.now_ms):
            if key not in self.writes:
                yield key, value.data
        for write in list(self.writes.values()):
            if write.data is not None and tag_of(write.key) == tag:
                yield write.key, write.data

    def outcome(self) -> tuple[Write, ...]:
        """For one record; refused where that would be too large."""
        writes = self.writes
        if self._size + sum(map(len, writes)) > OUTCOME_BYTES_MAX:
            raise Refused(f"ERR what is written at once is above {OUTCOME_BYTES_MAX} bytes")
        return tuple(writes.values())
