"""A batch on its way: what a shipper has made of lines, once, and sends as often as it takes."""

import msgspec

from raftwood.base.codecs import Codec
from raftwood.base.files import Buffer
from raftwood.clogs.frames import LOG_GROUP, Message, MessageType


class LineBatch(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Lines of one file, masked, encoded and compressed: nothing of it changes any more."""

    name: str
    """The file's."""
    producer: bytes
    """16 bytes: of one file in one life of a shipper."""
    sequence: int
    """From 1 on, without a gap, per producer."""
    count: int
    raw_bytes: int
    codec: Codec
    body: Buffer
    is_resumed: bool = False
    """An earlier life of the shipper made it, and may have sent it."""

    def message(self, *, system: int, place: str, follows: bool = False) -> Message:
        return Message(
            type=MessageType.DATA,
            system=system,
            name=self.name,
            producer=self.producer,
            sequence=self.sequence,
            count=self.count,
            raw_bytes=self.raw_bytes,
            codec=self.codec,
            format=LOG_GROUP,
            is_resumed=self.is_resumed and not place,
            follows=follows,
            place=place,
            body=self.body,
        )
