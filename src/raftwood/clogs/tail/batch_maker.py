"""`BatchMaker`: makes a block into a batch: masks it, splits it into lines, encodes, compresses.

`LineSplitter` handles a block as a whole, by searches and splits that run in C. The lines of a
block depend only on its bytes and the rules, so that a batch can be made again.
"""

import re
from enum import IntEnum
from itertools import pairwise

import msgspec

from raftwood.base.compression import Codec, compress
from raftwood.clogs.frames import LineBatch
from raftwood.clogs.lines import encode_lines
from raftwood.clogs.tail.checkpoints import BatchIntent
from raftwood.clogs.tail.seams import LineMasking
from raftwood.clogs.tail.settings import Multiline, TailSettings

_CONTINUATION_BYTES_MAX = 3
"""Limit of one character in UTF-8."""


class Forced(IntEnum):
    """What is taken from the end of a block though more may follow."""

    NOTHING = 0
    LINES = 1
    """The last record of several lines."""
    ALL = 2
    """A line without its newline, too."""


class LineSplitter:
    """Cuts blocks into lines by one tailer's rules."""

    def __init__(self, settings: TailSettings) -> None:
        self._line_bytes_max = settings.line_bytes_max
        self._lines_max = settings.batch_lines_max
        self._multiline = settings.multiline
        self._begins = self._splits = re.compile(b"")
        if settings.multiline is not None:
            self._begins, self._splits = _patterns(settings.multiline)

    # How much of a block is taken

    def taken(self, block: bytes, force: Forced) -> int:
        """Returns how many bytes at the beginning are whole lines, or must be taken as such."""
        size = self._bounded(block, block.rfind(b"\n") + 1)
        if self._multiline is not None and size:
            size = self._whole_records(block, size, force)
        elif not size and len(block) >= self._line_bytes_max:
            return self._piece(block, 0)
        if force is Forced.ALL and block.count(b"\n") < self._lines_max:
            return len(block)
        return size

    def _bounded(self, block: bytes, size: int) -> int:
        """Limits the size to the lines that a batch may have."""
        # The same result as `count`, which looks at every byte and so is slower.
        if len(block) - len(block.replace(b"\n", b"")) <= self._lines_max:
            return size
        while block.count(b"\n", 0, size) > self._lines_max:
            half = block.rfind(b"\n", 0, size // 2) + 1
            size = half or block.find(b"\n") + 1
        return size

    def _whole_records(self, block: bytes, size: int, force: Forced) -> int:
        """Returns where the last record begins, which may continue behind the block."""
        assert self._multiline is not None
        at = size - 1
        for _ in range(self._multiline.lines_max):
            at = block.rfind(b"\n", 0, at)
            if at < 0:
                break
            if self._begins.match(block, at + 1):
                return size if force else at + 1
        else:
            return size  # more lines than a record may have
        # The line behind it may be longer than a whole block, and so never end within one.
        is_long = len(block) >= self._line_bytes_max
        return size if force or is_long else 0

    # Which lines they are

    def lines(self, block: bytes, *, is_mid_line: bool = False) -> tuple[list[bytes], int]:
        """Returns the lines without their ends, and how many cuts were made in long ones.

        `is_mid_line`: the beginning of the first line was shipped before, as a line.
        """
        if b"\r" in block:
            block = block.replace(b"\r\n", b"\n")
        if is_mid_line and block.startswith(b"\n"):
            block = block[1:]
        if not block:
            return [], 0
        if self._multiline is not None:
            return self._records(block)
        lines = block.split(b"\n")
        if not lines[-1]:
            lines.pop()
        return self._short(lines) if self._has_long(block) else (lines, 0)

    def _has_long(self, block: bytes) -> bool:
        limit, at = self._line_bytes_max, 0
        while len(block) - at > limit:
            newline = block.rfind(b"\n", at, at + limit + 1)
            if newline < 0:
                return True
            at = newline + 1
        return False

    def _short(self, lines: list[bytes]) -> tuple[list[bytes], int]:
        limit = self._line_bytes_max
        pieces: list[bytes] = []
        for line in lines:
            at = 0
            while len(line) - at > limit:
                end = self._piece(line, at)
                pieces.append(line[at:end])
                at = end
            pieces.append(line[at:] if at else line)
        return pieces, len(pieces) - len(lines)

    def _piece(self, line: bytes, begin: int) -> int:
        """Returns where a piece of a long line ends: between two characters, not within one."""
        end = limit = begin + self._line_bytes_max
        for back in range(_CONTINUATION_BYTES_MAX + 1):
            if limit - back >= len(line) or line[limit - back] & 0xC0 != 0x80:
                end = limit - back
                break
        return end

    def _records(self, block: bytes) -> tuple[list[bytes], int]:
        end = len(block) - 1 if block.endswith(b"\n") else len(block)
        starts = (match.start() + 1 for match in self._splits.finditer(block))
        edges = [0, *(start for start in starts if start <= end), end + 1]
        records = [block[begin : next_one - 1] for begin, next_one in pairwise(edges)]
        assert self._multiline is not None
        lines_max = self._multiline.lines_max
        cuts = 0
        if any(record.count(b"\n") >= lines_max for record in records):
            bounded: list[bytes] = []
            for record in records:
                lines = record.split(b"\n")
                bounded += (
                    b"\n".join(lines[at : at + lines_max]) for at in range(0, len(lines), lines_max)
                )
            cuts, records = len(bounded) - len(records), bounded
        if max(map(len, records)) > self._line_bytes_max:
            records, more = self._short(records)
            cuts += more
        return records, cuts


def _patterns(multiline: Multiline) -> tuple[re.Pattern[bytes], re.Pattern[bytes]]:
    """Returns the patterns of a line that begins a record, and of the place between two records."""
    if multiline.start:
        begins = b"(?=(?:" + multiline.start.encode() + b"))"
    else:
        begins = b"(?!(?:" + multiline.continues.encode() + b"))"
    return re.compile(begins, re.MULTILINE), re.compile(b"\n" + begins, re.MULTILINE)


class MadeBatch(msgspec.Struct, frozen=True):
    """A batch, and what had to be done to its lines."""

    batch: LineBatch
    cut_lines: int


class BatchMaker:
    """Makes batches by one tailer's rules; several threads use it at once."""

    def __init__(self, settings: TailSettings, masking: LineMasking | None) -> None:
        self._settings = settings
        self._masking = masking
        self._tags = tuple(settings.tags.items())
        self._cutter = LineSplitter(settings)
        self.rules = settings.line_rules.digest

    def taken(self, block: bytes, force: Forced) -> int:
        """Returns how many bytes of a block are made into a batch."""
        return self._cutter.taken(block, force)

    def make(
        self, block: bytes, intent: BatchIntent, *, name: str, time_ns: int, is_resumed: bool
    ) -> MadeBatch | None:
        """Returns None for a block without a line: the newline of a line shipped before."""
        settings, masked = self._settings, block
        if self._masking is not None:
            masked = self._masking.mask_block(block)
        lines, cut_lines = self._cutter.lines(masked, is_mid_line=intent.begins_mid_line)
        if not lines:
            if masked == block:
                return None
            lines = [b""]  # masking removed all of the last line: it is a line all the same
        raw = encode_lines(
            lines,
            time_ns=time_ns,
            topic=settings.topic or name,
            source=settings.source,
            tags=self._tags,
            field=settings.field,
        )
        codec = Codec(intent.codec)
        batch = LineBatch(
            name=name,
            producer=intent.producer,
            sequence=intent.sequence,
            count=len(lines),
            raw_bytes=len(raw),
            codec=codec,
            body=compress(raw, codec),
            is_resumed=is_resumed,
        )
        return MadeBatch(batch, cut_lines)
