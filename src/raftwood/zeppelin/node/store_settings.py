"""The settings of a node's storage."""

from typing import Annotated

from msgspec import Meta

from raftwood.base.settings import Section


class StoreSettings(Section, frozen=True):
    """Sizes and bounds of a node's partitions; free to change between two starts."""

    cache_bytes: Annotated[
        int, Meta(ge=0, description="Memory for recent values, of all partitions together.")
    ] = 256 << 20
    engine_cache_bytes: Annotated[
        int, Meta(ge=0, description="Memory for the blocks of each partition's engine.")
    ] = 16 << 20
    unapplied_bytes_max: Annotated[
        int,
        Meta(
            ge=64 << 10,
            description="Bytes of a partition's records that wait for its engine before writes "
            "are refused.",
        ),
    ] = 64 << 20
    value_bytes_max: Annotated[
        int, Meta(ge=1, le=(4 << 20) - 64, description="The largest value of a key.")
    ] = 1 << 20
    sync_interval_ms: Annotated[
        int, Meta(ge=1, description="Wait before a sync that no write asks for.")
    ] = 50
    flush_bytes: Annotated[
        int, Meta(ge=1, description="Bytes written to an engine before it is flushed.")
    ] = 8 << 20
    flush_interval_ms: Annotated[
        int, Meta(ge=1, description="Wait before an engine that was written to is flushed.")
    ] = 30_000
    binlog_bytes_min: Annotated[
        int, Meta(ge=0, description="Bytes of a partition's binlog that stay for slaves.")
    ] = 64 << 20
    binlog_bytes_max: Annotated[
        int,
        Meta(
            ge=0,
            description="Bytes of a partition's binlog before it is cut back to the least that "
            "stays; what a connected slave needs stays longer.",
        ),
    ] = 256 << 20
    binlog_hours_max: Annotated[
        int, Meta(ge=1, description="Age of records that do not have to stay before they go.")
    ] = 30 * 24
    binlog_held_bytes_max: Annotated[
        int,
        Meta(
            ge=0,
            description="Bytes of a partition's binlog that stay for a connected slave; one that "
            "is further behind takes a whole copy.",
        ),
    ] = 8 << 30
