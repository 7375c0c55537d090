"""Spools on a disk in memory, and batches for them."""

from typing import Final

from raftwood.base.compression import Codec
from raftwood.base.files import Files
from raftwood.clogs.client.shipping_rules import QueuedBatch
from raftwood.clogs.client.spool import Spool
from raftwood.clogs.frames import LineBatch
from raftwood.disk.segment_log import LogSettings
from tests.kits.disk.log_in_memory import environment_over

SLOT: Final = "/data/0"
SMALL: Final = LogSettings(
    segment_bytes=16 << 10, cache_bytes_max=0, pending_bytes_max=64 << 10, full_retry_ms=10
)
LARGER: Final = LogSettings(
    segment_bytes=256 << 10, cache_bytes_max=0, pending_bytes_max=128 << 10, full_retry_ms=10
)


async def open_spool(
    files: Files,
    *,
    path: str = SLOT,
    bytes_max: int = 1 << 20,
    log_settings: LogSettings = SMALL,
) -> Spool:
    return await Spool.open(
        environment_over(files), path, bytes_max=bytes_max, log_settings=log_settings
    )


def batch_of(name: str, sequence: int, *, size: int = 200, count: int = 3) -> LineBatch:
    body = f"{name} {sequence} ".encode().ljust(size, b".")
    return LineBatch(
        name=name,
        producer=name.encode().ljust(16, b"-")[:16],
        sequence=sequence,
        count=count,
        raw_bytes=len(body),
        codec=Codec.NONE,
        body=body,
    )


def entry_of(batch: LineBatch) -> QueuedBatch:
    return QueuedBatch(batch, lambda _: None)


def body_of(batch: LineBatch) -> str:
    return bytes(batch.body).rstrip(b".").decode().strip()
