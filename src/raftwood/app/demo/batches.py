"""The demo's data: every batch can be told from its group and index alone, byte for byte."""

from typing import Final

from xxhash import xxh3_128_digest

GROUPS: Final = 8
RECORDS_PER_BATCH: Final = 50
RECORD_BYTES: Final = 100
BATCH_BYTES: Final = RECORDS_PER_BATCH * RECORD_BYTES
IN_FLIGHT: Final = 4
"""Batches of each group that are on their way to the disk at any moment."""
KEPT_BATCHES: Final = 4000
"""Of each group; older ones are truncated, so that segments are freed while the writer runs."""


def batch(group: int, index: int) -> bytes:
    """The batch that belongs at an index: nothing else can be mistaken for it."""
    digest = xxh3_128_digest(b"%d/%d" % (group, index))
    return (digest * (BATCH_BYTES // len(digest) + 1))[:BATCH_BYTES]
