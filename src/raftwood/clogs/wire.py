"""What a shipper calls at a receiver. Calls carry frames (see `frames`); the handshake has proved
which access key calls.
"""

from typing import Final

import msgspec

from raftwood.net import Method, TypedMethod

CLUSTER: Final = "clogs"
"""Stands in for the cluster's name in the handshake."""
KEY_ROLE: Final = "key"
RECEIVER_ROLE: Final = "receiver"
_ROLES: Final = (KEY_ROLE,)
CONFIGURATION_WAIT_MS_MAX: Final = 60_000

STORE: Final = Method(150, "clogs-store", roles=_ROLES)
"""A data or locate frame; answered by an ack frame once it is stored."""
PING: Final = Method(151, "clogs-ping", roles=_ROLES, urgent=True)
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
    152,
    "clogs-configuration",
    request=ConfigurationRequest,
    response=ConfigurationAnswer,
    roles=_ROLES,
)
