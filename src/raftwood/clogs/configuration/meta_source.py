"""A ring's configuration from a metastore that the client itself reaches."""

import asyncio
from typing import Final

from raftwood.base.errors import OutOfRange, RaftwoodError
from raftwood.base.seams import MetaStore
from raftwood.clogs.configuration.meta_store import ConfigurationStore
from raftwood.clogs.configuration.source import FollowingSource

AGAIN_S: Final = 0.5
"""After an error of the metastore, which has tried for long already."""


class MetaSource(FollowingSource):
    """Follows one ring by a watch."""

    def __init__(self, store: MetaStore, ring: str) -> None:
        super().__init__(f"ring {ring}")
        self._store = ConfigurationStore(store, ring)

    async def _follow(self) -> None:
        while True:
            try:
                async for found in self._store.following():
                    if found is not None:
                        self._take(found.accepted)
                    else:
                        self._complain(no_configuration(self._store.ring))
            except OutOfRange:
                pass  # all is read again, and watched after that
            except RaftwoodError as error:
                self._complain(error.message)
            await asyncio.sleep(AGAIN_S)


def no_configuration(ring: str) -> str:
    return f"ring {ring!r} has no configuration: set one by `raftwood clogs config set FILE`"
