"""How frames travel: RPC methods of a receiver, and UDP datagrams.

The handshake of a connection has proved which access key calls. A datagram is one frame with an
HMAC behind it, which only those who know the secret can make.
"""

import hashlib
import hmac
from typing import Final

import msgspec

from raftwood.base.errors import TooLarge, Unauthenticated
from raftwood.base.files import Buffer
from raftwood.clogs.frames import ClogsMessage, decode_message, encode_message, joined
from raftwood.net import Method, TypedMethod
from raftwood.net.method_numbers import MethodNumber

CLUSTER: Final = "clogs"
"""Stands in for the cluster's name in the handshake."""
KEY_ROLE: Final = "key"
RECEIVER_ROLE: Final = "receiver"
_ROLES: Final = (KEY_ROLE,)
CONFIGURATION_WAIT_MS_MAX: Final = 60_000

STORE: Final = Method(MethodNumber.CLOGS_STORE, "clogs-store", roles=_ROLES)
"""A data or locate frame; answered by an ack frame once it is stored."""
PING: Final = Method(MethodNumber.CLOGS_PING, "clogs-ping", roles=_ROLES, urgent=True)
"""A ping frame; answered by a pong frame at once."""


class ConfigurationRequest(msgspec.Struct, frozen=True, array_like=True):
    """Answered when the ring's configuration is another one than this, or the wait is over."""

    ring: str
    version: int = 0
    digest: str = ""
    wait_ms: int = 0
    revision: int = 0
    """Of the answer that it came with: a receiver that is behind that waits until it is not."""


class ConfigurationAnswer(msgspec.Struct, frozen=True, array_like=True):
    """The present configuration; its text is empty where it still is the one that was named."""

    version: int
    digest: str
    text: bytes
    """As `encode_configuration` writes it."""
    revision: int = 0
    """The metastore's version when it was set or rolled back to; versions of rings go back."""


CONFIGURATION: Final = TypedMethod(
    MethodNumber.CLOGS_CONFIGURATION,
    "clogs-configuration",
    request=ConfigurationRequest,
    response=ConfigurationAnswer,
    roles=_ROLES,
)


MAC_BYTES: Final = 16
DATAGRAM_BYTES_MAX: Final = 65_507
"""What UDP over IPv4 carries."""


def encode_datagram(message: ClogsMessage, secret: bytes) -> bytes:
    frame = joined(encode_message(message))
    if len(frame) + MAC_BYTES > DATAGRAM_BYTES_MAX:
        raise TooLarge(
            f"a datagram of {len(frame) + MAC_BYTES} bytes: up to {DATAGRAM_BYTES_MAX} can be sent,"
            " make smaller batches"
        )
    return frame + _code(frame, secret)


def decode_datagram(data: bytes, secret: bytes) -> ClogsMessage:
    """`Unauthenticated` where the code is wrong: nothing of the frame was looked at."""
    frame = memoryview(data)[:-MAC_BYTES]
    if not hmac.compare_digest(data[-MAC_BYTES:], _code(frame, secret)):
        raise Unauthenticated("a datagram has a wrong code: give both sides the same secret")
    return decode_message(frame)


def _code(frame: Buffer, secret: bytes) -> bytes:
    return hmac.digest(secret, frame, hashlib.sha256)[:MAC_BYTES]
