"""Meta records of logs as readers know them: some are older than the metastore's, by a bound."""

import asyncio
from typing import Final

import msgspec

from raftwood.base.errors import NotFound
from raftwood.base.seams import MetaStore
from raftwood.dlog.log.meta import LogMeta, decode_meta, meta_key

AGE_MAX_S: Final = 1.0
"""What another process shrinks is no longer served after so long."""
RECORDS_MAX: Final = 10_000


class KnownMeta(msgspec.Struct, frozen=True):
    """A record, and when it was read."""

    meta: LogMeta
    version: int
    read_s: float


class MetaCache:
    """Of all logs that one process reads."""

    def __init__(self, metastore: MetaStore) -> None:
        self._metastore = metastore
        self._known: dict[str, KnownMeta] = {}

    async def get(self, name: str) -> KnownMeta:
        """Not older than the bound; `NotFound` where there is no such log."""
        known = self._known.get(name)
        if known is not None and asyncio.get_running_loop().time() - known.read_s <= AGE_MAX_S:
            return known
        return await self.read(name)

    async def read(self, name: str) -> KnownMeta:
        """As it is now."""
        now_s = asyncio.get_running_loop().time()
        found = await self._metastore.get(meta_key(name))
        if found is None:
            self._known.pop(name, None)
            raise NotFound(f"there is no log {name!r}")
        return self._keep(
            name, KnownMeta(decode_meta(found.value, name=name), found.version, now_s)
        )

    def note(self, name: str, meta: LogMeta, version: int) -> None:
        """It was changed here."""
        self._keep(name, KnownMeta(meta, version, asyncio.get_running_loop().time()))

    def forget(self, name: str) -> None:
        self._known.pop(name, None)

    def _keep(self, name: str, known: KnownMeta) -> KnownMeta:
        old = self._known.pop(name, None)
        if old is not None and old.version > known.version:
            known = old
        self._known[name] = known
        while len(self._known) > RECORDS_MAX:
            del self._known[next(iter(self._known))]
        return known

    async def wait_changed(self, name: str, *, version: int, timeout_s: float) -> None:
        """Until the record has another version, or the time is over."""
        key = meta_key(name)
        try:
            async with asyncio.timeout(timeout_s):
                # The record may be older than what a watch can tell of: the store's version is not.
                page = await self._metastore.range(prefix=key, limit=1)
                if not page.entries or (page.entries[0].key, page.entries[0].version) != (
                    key,
                    version,
                ):
                    return
                async for changes in self._metastore.watch(key, after_version=page.version):
                    if any(change.key == key for change in changes):
                        return
        except TimeoutError:
            pass
