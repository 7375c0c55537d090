"""`PendingLines`: lines of a file that are no batch yet; masks, encodes, compresses them.

`LineDelivery` is what the caller gets for its lines.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import msgspec
import xxhash

from raftwood.base.compression import Codec, compress
from raftwood.base.errors import RaftwoodError
from raftwood.clogs.client.settings import ClogsClientSettings
from raftwood.clogs.frames import LineBatch
from raftwood.clogs.lines import encode_fields, encode_lines, encoded_text
from raftwood.delivery.deliveries import Delivery

LINE_OVERHEAD_BYTES: Final = 96
"""What a line takes in memory beside its bytes."""

Fields = Mapping[str, str | bytes]
MaskLines = Callable[[list[bytes]], list[bytes]]


class LineDelivery(Delivery[None]):
    """Lines that were given in one call: done when each is stored or has another outcome."""

    __slots__ = ("_callbacks", "_left", "_outcome")

    def __init__(self, lines: int) -> None:
        self._left = lines
        self._outcome: RaftwoodError | None = None
        self._callbacks = None

    @property
    def is_done(self) -> bool:
        return self._left <= 0

    def settle(self, lines: int, error: RaftwoodError | None) -> None:
        """For the shipper: `lines` of them have an outcome; the first error counts."""
        self._outcome = self._outcome or error
        self._left -= lines
        if self._left <= 0:
            self._tell()


class PendingLines:
    """Lines of one file, in order."""

    __slots__ = ("deliveries", "extras", "has_extras", "lines", "name", "size", "times")

    def __init__(self, name: str) -> None:
        self.name = name
        self.lines: list[bytes] = []
        self.times: list[int] = []
        self.extras: list[Fields | None] = []
        self.has_extras = False
        self.deliveries: list[tuple[LineDelivery, int]] = []
        """The deliveries to settle, and their numbers of lines, in order."""
        self.size = 0

    def clear(self) -> None:
        """Releases the lines, which are a batch by now."""
        self.lines, self.times, self.extras, self.deliveries = [], [], [], []

    def add(self, lines: Sequence[bytes], time_ns: int, delivery: LineDelivery | None) -> int:
        """Adds lines of one time; returns how many bytes they take."""
        size = sum(map(len, lines)) + LINE_OVERHEAD_BYTES * len(lines)
        self.lines += lines
        self.times += [time_ns] * len(lines)
        self.extras += [None] * len(lines)
        if delivery is not None:
            self.deliveries.append((delivery, len(lines)))
        self.size += size
        return size

    def add_records(
        self, lines: Sequence[bytes], times_ns: Sequence[int], fields: Sequence[Fields]
    ) -> int:
        """Adds lines with further fields; returns how many bytes they take."""
        size = sum(map(len, lines)) + 2 * LINE_OVERHEAD_BYTES * len(lines)
        self.lines += lines
        self.times += times_ns
        self.extras += fields
        self.has_extras = True
        self.size += size
        return size


class BatchEncoding(msgspec.Struct, frozen=True):
    """How lines become batches, the same for all files of a shipper."""

    life: bytes
    """The random name of this life of the shipper, which makes its producer ids unique."""
    codec: Codec
    source: str
    tags: tuple[tuple[str, str], ...] = ()
    mask: MaskLines | None = None

    def producer(self, name: str, generation: int) -> bytes:
        """Returns the producer id of one file in this life."""
        return xxhash.xxh3_128_digest(self.life + generation.to_bytes(8, "little") + name.encode())

    def _fields(self, pending: PendingLines) -> list[bytes]:
        """Returns the encoded fields of each line; most records of a batch share theirs."""
        known: dict[int, bytes] = {}
        found = []
        for fields in pending.extras:
            encoded = known.get(id(fields))
            if encoded is None:
                masked = {} if fields is None else self._masked(fields)
                known[id(fields)] = encoded = encode_fields(masked)
            found.append(encoded)
        return found

    def _masked(self, fields: Fields) -> Fields:
        """Masks the fields beside the lines like the lines."""
        if self.mask is None:
            return fields
        values = [
            encoded_text(value) if isinstance(value, str) else value for value in fields.values()
        ]
        return dict(zip(fields, self.mask(values), strict=True))

    def batch(self, pending: PendingLines, producer: bytes, sequence: int) -> LineBatch:
        lines = pending.lines if self.mask is None else self.mask(pending.lines)
        times: int | list[int] = pending.times
        first = pending.times[0]
        if pending.times.count(first) == len(pending.times):
            times = first
        raw = encode_lines(
            lines,
            time_ns=times,
            topic=pending.name,
            source=self.source,
            tags=self.tags,
            more=self._fields(pending) if pending.has_extras else None,
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


def parts_of(lines: Sequence[bytes], settings: ClogsClientSettings) -> Iterator[Sequence[bytes]]:
    """Cuts lines into parts that fit a batch, except for a single line that is larger."""
    lines_max, bytes_max = settings.batch_lines_max, settings.batch_bytes_max
    if len(lines) <= lines_max and sum(map(len, lines)) <= bytes_max:
        yield lines
        return
    first = size = 0
    for at, line in enumerate(lines):
        if at > first and (at - first >= lines_max or size + len(line) > bytes_max):
            yield lines[first:at]
            first, size = at, 0
        size += len(line)
    yield lines[first:]
