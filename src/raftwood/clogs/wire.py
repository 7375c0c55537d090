"""How frames travel: RPC methods of a receiver, and UDP datagrams.

The handshake of a connection authenticates the access key. A datagram is one frame with an HMAC
behind it, which requires the secret.
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
"""Sent instead of the cluster's name in the handshake."""
KEY_ROLE: Final = "key"
RECEIVER_ROLE: Final = "receiver"
_ROLES: Final = (KEY_ROLE,)
CONFIGURATION_WAIT_MS_MAX: Final = 60_000

STORE: Final = Method(MethodNumber.CLOGS_STORE, "clogs-store", roles=_ROLES)
"""A data or locate frame; answered by an ack frame once it is stored."""
PING: Final = Method(MethodNumber.CLOGS_PING, "clogs-ping", roles=_ROLES, urgent=True)
"""A ping frame; answered by a pong frame at once."""


class ConfigurationRequest(msgspec.Struct, frozen=True, array_like=True):
    """Answered when the ring's configuration differs from this one, or the wait is over."""

    ring: str
    version: int = 0
    digest: str = ""
    wait_ms: int = 0
    revision: int = 0
    """The revision of the client's last answer: a receiver that is behind it catches up first."""


class ConfigurationAnswer(msgspec.Struct, frozen=True, array_like=True):
    """The present configuration; its text is empty if it is the one that the request named."""

    version: int
    digest: str
    text: bytes
    """The canonical text of `encode_configuration`."""
    revision: int = 0
    """The metastore's version of the last set or roll-back, which only grows."""


CONFIGURATION: Final = TypedMethod(
    MethodNumber.CLOGS_CONFIGURATION,
    "clogs-configuration",
    request=ConfigurationRequest,
    response=ConfigurationAnswer,
    roles=_ROLES,
)


MAC_BYTES: Final = 16
DATAGRAM_BYTES_MAX: Final = 65_507
"""The largest datagram of UDP over IPv4."""


def encode_datagram(message: ClogsMessage, secret: bytes) -> bytes:
    frame = joined(encode_message(message))
    if len(frame) + MAC_BYTES > DATAGRAM_BYTES_MAX:
        raise TooLarge(
            f"a datagram of {len(frame) + MAC_BYTES} bytes: up to {DATAGRAM_BYTES_MAX} can be sent,"
            " make smaller batches"
        )
    return frame + _code(frame, secret)


def decode_datagram(data: bytes, secret: bytes) -> ClogsMessage:
    """`Unauthenticated` if the HMAC is wrong; nothing of the frame was decoded."""
    frame = memoryview(data)[:-MAC_BYTES]
    if not hmac.compare_digest(data[-MAC_BYTES:], _code(frame, secret)):
        raise Unauthenticated("a datagram has a wrong code: give both sides the same secret")
    return decode_message(frame)


def _code(frame: Buffer, secret: bytes) -> bytes:
    return hmac.digest(secret, frame, hashlib.sha256)[:MAC_BYTES]
