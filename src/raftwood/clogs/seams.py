"""The seams of clogs: what its owner passes in."""

from collections.abc import AsyncIterator
from typing import Protocol

from raftwood.clogs.configuration import VersionedConfiguration
from raftwood.clogs.frames import ClogsMessage


class Sink(Protocol):
    """Where a receiver stores batches. Implemented over logstores (`server`) and plain files."""

    async def locate(self, key: str, name: str) -> str:
        """Returns the place where a file's batches go now. `key` is the caller's access key."""
        ...

    async def store(self, key: str, message: ClogsMessage) -> str:
        """Stores a batch, durably on return, and once by producer and sequence. Returns the place
        for the file's next batch.

        A batch with a place is stored there or nowhere: `PlaceMoved` says that it is not stored and
        never will be. A resumed one without a place is searched wherever it may have been stored.
        """
        ...


class ConfigurationSource(Protocol):
    """The source of a client's configuration: a file, a metastore, or the receivers."""

    def changes(self) -> AsyncIterator[VersionedConfiguration]:
        """Yields the present configuration, then changes; it may skip intermediate ones.

        An invalid one is logged, and the last good one stays. Ends when closed.
        """
        ...

    async def close(self) -> None: ...
