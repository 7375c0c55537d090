"""What a client of BookKeeper can be told."""

import msgspec


class BookKeeperSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of the connections to bookies."""

    connect_timeout_ms: int = 3_000
    """With TLS, if it is asked for."""
    request_timeout_ms: int = 5_000
    """A request ends between half of it and all of it, if the bookie does not answer."""
    reconnect_pause_ms: int = 200
    """How long a bookie that could not be reached is left alone."""
    frame_bytes_max: int = 5 << 20
    """As the bookies' own `nettyMaxFrameSizeBytes`."""
    in_flight_max: int = 20_000
    """Requests to one bookie that wait for their answers."""
    unsent_bytes_max: int = 64 << 20
    """Of requests that one bookie has not taken yet."""
    use_v3_alone: bool = False
    """Adds and reads by the third protocol as well."""
