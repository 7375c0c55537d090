"""A file's lines that are no batch yet, and how they become one: masked, encoded, compressed."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec
import xxhash

from raftwood.base.codecs import Codec, compress
from raftwood.clogs.batches import LineBatch
from raftwood.clogs.client.deliveries import Delivery
from raftwood.clogs.lines import encode_lines, encode_records

LINE_OVERHEAD_BYTES: Final = 96
"""What a line takes in memory beside its bytes."""
_MESSAGE: Final = "message"

Fields = Mapping[str, str | bytes]
MaskLines = Callable[[list[bytes]], list[bytes]]


class Pending:
    """Lines of one file, in order."""

    __slots__ = ("deliveries", "extras", "has_extras", "lines", "name", "size", "times")

    def __init__(self, name: str) -> None:
        self.name = name
        self.lines: list[bytes] = []
        self.times: list[int] = []
        self.extras: list[Fields | None] = []
        self.has_extras = False
        self.deliveries: list[tuple[Delivery, int]] = []
        """Whom to tell, of how many lines, in order."""
        self.size = 0

    def clear(self) -> None:
        """They are a batch by now: nothing of them is held any more."""
        self.lines, self.times, self.extras, self.deliveries = [], [], [], []

    def add(self, lines: Sequence[bytes], time_ns: int, delivery: Delivery | None) -> int:
        """Lines of one time; how many bytes they take."""
        size = sum(map(len, lines)) + LINE_OVERHEAD_BYTES * len(lines)
        self.lines += lines
        self.times += [time_ns] * len(lines)
        self.extras += [None] * len(lines)
        if delivery is not None:
            self.deliveries.append((delivery, len(lines)))
        self.size += size
        return size

    def add_record(self, line: bytes, time_ns: int, fields: Fields) -> int:
        """A line that has more fields than its text; how many bytes it takes."""
        size = len(line) + 2 * LINE_OVERHEAD_BYTES
        self.lines.append(line)
        self.times.append(time_ns)
        self.extras.append(fields)
        self.has_extras = True
        self.size += size
        return size


class Encoding(msgspec.Struct, frozen=True):
    """How lines become batches, the same for all files of a shipper."""

    life: bytes
    """Random, of this life of the shipper: no other batch has its producers' ids."""
    codec: Codec
    source: str
    tags: tuple[tuple[str, str], ...] = ()
    mask: MaskLines | None = None

    def producer(self, name: str, generation: int) -> bytes:
        """Of one file in this life."""
        return xxhash.xxh3_128_digest(self.life + generation.to_bytes(8, "little") + name.encode())

    def _masked_extras(self, pending: Pending) -> list[Fields | None]:
        """Fields beside the lines are masked as lines are, all values of a batch at once."""
        if self.mask is None:
            return pending.extras
        values = [
            value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value
            for fields in pending.extras
            if fields is not None
            for value in fields.values()
        ]
        masked = iter(self.mask(values))
        return [
            None if fields is None else {key: next(masked) for key in fields}
            for fields in pending.extras
        ]

    def batch(self, pending: Pending, producer: bytes, sequence: int) -> LineBatch:
        lines = pending.lines if self.mask is None else self.mask(pending.lines)
        times: int | list[int] = pending.times
        first = pending.times[0]
        if pending.times.count(first) == len(pending.times):
            times = first
        if pending.has_extras:
            records: list[Fields] = [
                {_MESSAGE: line} if fields is None else {_MESSAGE: line, **fields}
                for line, fields in zip(lines, self._masked_extras(pending), strict=True)
            ]
            raw = encode_records(
                records, time_ns=times, topic=pending.name, source=self.source, tags=self.tags
            )
        else:
            raw = encode_lines(
                lines, time_ns=times, topic=pending.name, source=self.source, tags=self.tags
            )
        return LineBatch(
            name=pending.name,
            producer=producer,
            sequence=sequence,
            count=len(lines),
            raw_bytes=len(raw),
            codec=self.codec,
            body=compress(raw, self.codec),
        )
