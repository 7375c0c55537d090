"""The segment log's settings."""

from typing import Annotated

import msgspec


class LogSettings(msgspec.Struct, frozen=True):
    """Sizes and bounds of one shared log; a node's own, and free to change between starts."""

    segment_bytes: Annotated[
        int,
        msgspec.Meta(
            ge=16 << 10, le=1 << 30, description="size of a segment file; a record takes up to half"
        ),
    ] = 64 << 20
    flush_bytes_max: Annotated[
        int, msgspec.Meta(ge=4 << 10, description="bytes that one sync serves at the most")
    ] = 8 << 20
    pending_bytes_max: Annotated[
        int,
        msgspec.Meta(ge=64 << 10, description="bytes waiting for the disk before appends refuse"),
    ] = 128 << 20
    cache_bytes_max: Annotated[
        int, msgspec.Meta(ge=0, description="bytes of the latest records kept in memory")
    ] = 64 << 20
    runs_live_max: Annotated[
        int, msgspec.Meta(ge=1, description="runs in the index (28 bytes each) before refusing")
    ] = 20_000_000
    live_percent_min: Annotated[
        int,
        msgspec.Meta(
            ge=0, le=100, description="the oldest segment is copied forward below this live share"
        ),
    ] = 20
    full_retry_ms: Annotated[
        int, msgspec.Meta(ge=1, description="wait between attempts to get room on a full disk")
    ] = 1000

    @property
    def reserve_bytes(self) -> int:
        """Kept in the active segment for states and truncations when the disk is full."""
        return min(1 << 20, self.segment_bytes // 8)

    @property
    def write_bytes_max(self) -> int:
        """The most that one write (headers and payloads) may take."""
        return self.segment_bytes // 2
