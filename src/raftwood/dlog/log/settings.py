"""Settings of whoever writes and reads logs; what belongs to one log stands in its `LogConfig`."""

from typing import Annotated, ClassVar

from msgspec import Meta

from raftwood.base.settings import Scope, Section


class DlogSettings(Section, frozen=True):
    """How a process writes and reads DLOGs."""

    scope: ClassVar[Scope] = "node"
    entry_bytes: Annotated[
        int,
        Meta(ge=1, le=12 << 20, description="Messages share an entry up to about so many bytes."),
    ] = 256 << 10
    message_bytes_max: Annotated[
        int,
        Meta(
            ge=1,
            le=12 << 20,
            description="The largest message; BookKeeper's bookies take entries below 5 MiB.",
        ),
    ] = (4 << 20) + (64 << 10)
    """A batch of 4 MiB, what LogHub takes at most, and its heads."""
    entries_in_flight_max: Annotated[
        int, Meta(ge=1, le=10_000, description="Entries of one log that wait for their ack.")
    ] = 256
    messages_in_flight_max: Annotated[
        int,
        Meta(ge=1, le=1_000_000, description="Messages of one log that wait; more are refused."),
    ] = 16_384
    bytes_in_flight_max: Annotated[
        int, Meta(ge=1, le=1 << 30, description="Bytes of one log that wait; more are refused.")
    ] = 64 << 20
    preallocates: Annotated[
        bool, Meta(description="Whether the next ledger is made before it is needed.")
    ] = True
    open_timeout_ms: Annotated[
        int,
        Meta(
            ge=1, le=3_600_000, description="How long a take-over, a rotation or the end may take."
        ),
    ] = 60_000
    pause_ms: Annotated[
        int, Meta(ge=1, le=60_000, description="Before the first retry; later ones wait longer.")
    ] = 20
    pause_max_ms: Annotated[
        int, Meta(ge=1, le=60_000, description="The longest pause before a retry.")
    ] = 1_000
    read_ahead_bytes: Annotated[
        int, Meta(ge=1, le=1 << 30, description="What a reader fetches before it is asked for.")
    ] = 1 << 20
    cache_bytes: Annotated[
        int, Meta(ge=0, le=1 << 40, description="Entries kept in memory, for all readers.")
    ] = 64 << 20
