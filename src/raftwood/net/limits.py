"""Every bound of a connection and of a server, with its default. Units stand last in the names."""

import msgspec

from raftwood.base.names import FRAME_BYTES_MAX
from raftwood.base.settings import ConnectionSettings

HANDSHAKE_BYTES_MAX = 1 << 10
"""The largest payload read from a peer that is not authenticated."""

URGENT_REQUESTS_MAX = 16
"""Urgent requests that a connection may have under way while others must wait."""
URGENT_BYTES_MAX = 256 << 10
"""A larger request waits like all others, whatever its method."""
URGENT_TASKS_MAX = 256
"""Per server: tasks of urgent methods beyond `handler_tasks_max`."""


class ConnectionLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds that both sides of a connection keep."""

    frame_bytes_max: int = FRAME_BYTES_MAX
    ping_interval_ms: int = 10_000
    """Silence after which a PING asks whether the peer lives."""
    ping_timeout_ms: int = 10_000
    """Further silence after which the peer counts as dead."""
    frame_timeout_ms: int = 60_000
    """How long one frame may take to arrive, so that a trickle does not hold a connection."""


class ClientLimits(ConnectionLimits, frozen=True, kw_only=True):
    """What a client allows itself; the server's limits from WELCOME narrow it further."""

    connect_timeout_ms: int = 5_000
    requests_in_flight_max: int = 1_024
    bytes_in_flight_max: int = 64 << 20
    requests_waiting_max: int = 4_096
    """Calls that wait for room; beyond it, and beyond the bytes, a call raises Overloaded."""
    bytes_waiting_max: int = 64 << 20
    unsent_bytes_max: int = 64 << 20
    """Bytes the server has not taken; beyond it a one-way message is refused."""
    streams_max: int = 64
    stream_window_bytes: int = 1 << 20
    """What one stream buffers for a slow consumer, and one item."""


class ServerLimits(ConnectionLimits, frozen=True, kw_only=True):
    """What a server allows: the bounds below are per connection unless they say otherwise."""

    handshake_timeout_ms: int = 5_000
    connections_max: int = 1_024
    """Per server, authenticated or not."""
    connections: ConnectionSettings = ConnectionSettings()
    """The shares of one address, and of unauthenticated connections."""
    handler_tasks_max: int = 4_096
    """Per server: async handlers and streams under way; beyond it a request is Overloaded."""
    requests_in_flight_max: int = 1_024
    bytes_in_flight_max: int = 64 << 20
    """Request bytes not answered yet; beyond it one more is received, then reading pauses."""
    unsent_bytes_max: int = 4 << 20
    """Response bytes the peer has not taken; reading and streams pause beyond it."""
    streams_max: int = 64
    idle_timeout_ms: int = 900_000
    """A connection without requests for so long is closed; 0 keeps it."""
