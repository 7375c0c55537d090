"""The receivers' half of a configuration's way: long polls are answered from one watch per ring."""

import asyncio
from typing import Final

from raftwood.base.errors import (
    NotFound,
    OutOfRange,
    Overloaded,
    RaftwoodError,
    ShuttingDown,
    Unavailable,
)
from raftwood.base.logs import get_logger
from raftwood.base.names import checked_name
from raftwood.base.seams import MetaStore
from raftwood.clogs.configuration.meta_source import AGAIN_S, no_configuration
from raftwood.clogs.configuration.meta_store import ConfigurationStore, Stored
from raftwood.clogs.wire import (
    CONFIGURATION_WAIT_MS_MAX,
    ConfigurationAnswer,
    ConfigurationRequest,
)

RINGS_MAX: Final = 64
"""Rings that are watched at once; whoever asks may name any."""
WAITING_MAX: Final = 20_000
_FIRST_S: Final = 5.0
"""So long a request waits for the metastore, though it does not want to wait for a change."""
_log = get_logger("clogs")


class ConfigurationService:
    """Answers `wire.CONFIGURATION`; `start` it before, and `close` it when done."""

    def __init__(self, store: MetaStore) -> None:
        self._store = store
        self._rings: dict[str, _WatchedRing] = {}
        self._waiting = 0
        self._is_closed = True

    async def start(self) -> None:
        self._is_closed = False

    async def close(self) -> None:
        """Requests that wait end with `ShuttingDown`."""
        self._is_closed = True
        for ring in list(self._rings.values()):
            await ring.close()
        self._rings.clear()

    async def answer(self, request: ConfigurationRequest) -> ConfigurationAnswer:
        """The present configuration, once it is another one than the client has.

        `NotFound` where the ring has none, `Unavailable` while the metastore does not answer: then
        what is known here may be out of date, and another receiver may know better.
        """
        if self._waiting >= WAITING_MAX:
            raise Overloaded("too many clients wait for configurations here: ask another receiver")
        ring = await self._watched(request.ring)
        self._waiting += 1
        ring.waiting += 1
        try:
            return await self._waited(ring, request)
        finally:
            ring.waiting -= 1
            self._waiting -= 1

    async def _waited(
        self, ring: "_WatchedRing", request: ConfigurationRequest
    ) -> ConfigurationAnswer:
        loop = asyncio.get_running_loop()
        wait_s = max(0, min(request.wait_ms, CONFIGURATION_WAIT_MS_MAX)) / 1000
        deadline = loop.time() + wait_s
        if not ring.is_fresh:
            await ring.wait_changed(loop.time() + max(wait_s, _FIRST_S))
        while True:
            if self._is_closed:
                raise _shut()
            is_over = loop.time() >= deadline
            found = ring.found if ring.is_fresh else None
            # One that is behind what the client heard elsewhere catches up first. If it does not,
            # the client has heard of a metastore that is no more.
            if found is not None and (is_over or found.revision >= request.revision):
                is_known = (found.version, found.digest) == (request.version, request.digest)
                if is_over or not is_known:
                    text = b"" if is_known else found.text
                    return ConfigurationAnswer(found.version, found.digest, text, found.revision)
            if is_over:
                if ring.is_fresh:
                    raise NotFound(no_configuration(request.ring))
                raise Unavailable("the receiver cannot reach its metastore: ask another one")
            await ring.wait_changed(deadline)

    async def _watched(self, name: str) -> "_WatchedRing":
        checked_name("ring", name)
        while not self._is_closed:
            if name in self._rings:
                return self._rings[name]
            if len(self._rings) < RINGS_MAX:
                store = ConfigurationStore(self._store, name)
                return self._rings.setdefault(name, _WatchedRing(store))
            await self._forget_one()
        raise _shut()

    async def _forget_one(self) -> None:
        """The oldest that nobody waits for."""
        for name, ring in self._rings.items():
            if not ring.waiting:
                del self._rings[name]
                await ring.close()
                return
        raise Overloaded(f"{RINGS_MAX} rings are watched here already: ask another receiver")


class _WatchedRing:
    """What the metastore has of one ring, and those who wait for a change of it."""

    def __init__(self, store: ConfigurationStore) -> None:
        self.found: Stored | None = None
        self.is_fresh = False
        """The watch stands: nothing can have changed that was not told."""
        self.waiting = 0
        self._store = store
        self._changed = asyncio.Event()
        loop = asyncio.get_running_loop()
        self._task = loop.create_task(self._watch(), name=f"configuration of ring {store.ring}")

    async def wait_changed(self, deadline: float) -> None:
        """Until something is told, or the time is over."""
        try:
            async with asyncio.timeout_at(deadline):
                await self._changed.wait()
        except TimeoutError:
            return

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])
        self._tell()

    async def _watch(self) -> None:
        while True:
            try:
                async for found in self._store.following():
                    self.found, self.is_fresh = found, True
                    self._tell()
            except OutOfRange:
                pass  # all is read again, and watched after that
            except RaftwoodError as error:
                self.is_fresh = False
                _log.warning(
                    "a ring's configuration is not watched",
                    ring=self._store.ring,
                    reason=error.message,
                )
            await asyncio.sleep(AGAIN_S)

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def _shut() -> ShuttingDown:
    return ShuttingDown("the receiver ends: ask another one")
