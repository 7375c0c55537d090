"""Frames over UDP: one datagram each, with a code behind it that only who knows the secret makes.

    offset  size
    0       …     the frame (see `frames`)
    …       16    the first 16 bytes of HMAC-SHA256 over the frame

Nothing answers that a datagram came, but a pong to a ping, which is never longer than it. A copy
that somebody else sends again is not stored again, for as long as the log knows its producer: the
16,384 that wrote to it last.
"""

import hashlib
import hmac
from typing import Final

from raftwood.base.errors import TooLarge, Unauthenticated
from raftwood.base.files import Buffer
from raftwood.clogs.frames import Message, decode_message, encode_message, joined

MAC_BYTES: Final = 16
DATAGRAM_BYTES_MAX: Final = 65_507
"""What UDP over IPv4 carries."""


def encode_datagram(message: Message, secret: bytes) -> bytes:
    frame = joined(encode_message(message))
    if len(frame) + MAC_BYTES > DATAGRAM_BYTES_MAX:
        raise TooLarge(
            f"a datagram of {len(frame) + MAC_BYTES} bytes: up to {DATAGRAM_BYTES_MAX} can be sent,"
            " make smaller batches"
        )
    return frame + _code(frame, secret)


def decode_datagram(data: bytes, secret: bytes) -> Message:
    """`Unauthenticated` where the code is wrong: nothing of the frame was looked at."""
    frame = memoryview(data)[:-MAC_BYTES]
    if not hmac.compare_digest(data[-MAC_BYTES:], _code(frame, secret)):
        raise Unauthenticated("a datagram has a wrong code: give both sides the same secret")
    return decode_message(frame)


def _code(frame: Buffer, secret: bytes) -> bytes:
    return hmac.digest(secret, frame, hashlib.sha256)[:MAC_BYTES]
