"""A block of a file made into a batch: masked, cut into lines, encoded, compressed."""

import msgspec
import xxhash

from raftwood.base.codecs import Codec, compress
from raftwood.clogs.batches import LineBatch
from raftwood.clogs.lines import encode_lines
from raftwood.clogs.tail.blocks import Forced, LineCutter
from raftwood.clogs.tail.model import Intent
from raftwood.clogs.tail.seams import Masking
from raftwood.clogs.tail.settings import TailSettings


class Made(msgspec.Struct, frozen=True):
    """A batch, and what had to be done to its lines."""

    batch: LineBatch
    cut_lines: int


class BatchMaker:
    """Makes batches by one tailer's rules; used by several threads at once."""

    def __init__(self, settings: TailSettings, masking: Masking | None) -> None:
        self._settings = settings
        self._masking = masking
        self._tags = tuple(settings.tags.items())
        self._cutter = LineCutter(settings)
        rules = (
            settings.masks,
            settings.mask_rules,
            settings.multiline,
            settings.line_bytes_max,
            settings.field,
        )
        self.rules = xxhash.xxh3_64_intdigest(msgspec.msgpack.encode(rules))
        """Digest of what decides on the lines of a block."""

    def taken(self, block: bytes, force: Forced) -> int:
        """How many bytes of a block are made into a batch."""
        return self._cutter.taken(block, force)

    def make(
        self, block: bytes, intent: Intent, *, name: str, time_ns: int, is_resumed: bool
    ) -> Made | None:
        """None where the block has no line: it is the newline of one that was shipped before."""
        settings, masked = self._settings, block
        if self._masking is not None:
            masked = self._masking.mask_block(block)
        lines, cut_lines = self._cutter.lines(masked, is_mid_line=intent.begins_mid_line)
        if not lines:
            if masked == block:
                return None
            lines = [b""]  # all of a last line was masked, by nothing: it is a line all the same
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
        return Made(batch, cut_lines)
