"""Taking a log from the process that owns it, for a while and from outside."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from raftwood.dlog.log.dlogs import Dlogs
from raftwood.dlog.log.log_writer import LogWriter
from raftwood.dlog.shared.owner_records import remove_owner


@asynccontextmanager
async def taken_over(dlogs: Dlogs, name: str) -> AsyncIterator[LogWriter]:
    """The log's writer; at the end whoever owned the log hears that it does so no longer."""
    writer = await dlogs.open_writer(name)
    try:
        yield writer
        await writer.close()
    finally:
        await writer.abandon()  # nothing where it is closed
        await remove_owner(dlogs.metastore, name)
