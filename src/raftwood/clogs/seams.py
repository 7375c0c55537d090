"""What clogs needs of others."""

from collections.abc import AsyncIterator
from typing import Protocol

from raftwood.clogs.configuration import VersionedConfiguration
from raftwood.clogs.frames import ClogsMessage


class Sink(Protocol):
    """Where a receiver stores batches. Implemented over logstores (`server`) and plain files."""

    async def locate(self, key: str, name: str) -> str:
        """The place where a file's batches go now. `key` is the access key that asks."""
        ...

    async def store(self, key: str, message: ClogsMessage) -> str:
        """Durable when it returns, and there once by producer and sequence; the place for the
        file's next batch.

        A batch with a place is stored there or nowhere: `PlaceMoved` says that it is not, nor ever
        will be. A resumed one without a place is looked for wherever it may have been stored.
        """
        ...


class ConfigurationSource(Protocol):
    """Where a client's configuration comes from: a file, a metastore, or the receivers."""

    def changes(self) -> AsyncIterator[VersionedConfiguration]:
        """The present one, then each that follows; not every step in between need be told.

        What cannot be read is told in the log, and the last good one stays. Ends when closed.
        """
        ...

    async def close(self) -> None: ...
