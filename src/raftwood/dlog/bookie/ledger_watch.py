"""Waiting for changes of keys: one watch of the metastore serves all who wait."""

import asyncio
from typing import Final

from raftwood.base.errors import Overloaded, RaftwoodError, ShuttingDown
from raftwood.base.logs import get_logger
from raftwood.base.seams import MetaStore

WAITS_MAX: Final = 10_000
_AGAIN_S: Final = 0.2
_log = get_logger("ledgers")


class LedgerWatch:
    """Runs its watch while anybody waits, and a while longer."""

    def __init__(self, store: MetaStore, prefix: str, *, idle_s: float = 10.0) -> None:
        self._store = store
        self._prefix = prefix
        self._idle_s = idle_s
        self._waiting: dict[str, dict[asyncio.Future[None], None]] = {}
        self._count = 0
        self._task: asyncio.Task[None] | None = None
        self._began = asyncio.Event()
        self._ending: asyncio.TimerHandle | None = None
        self._is_closed = False

    async def wait(self, key: str, *, version: int, timeout_ms: int) -> None:
        """Until the key's version is another one, it is gone, or the time is over."""
        if self._is_closed:
            raise ShuttingDown("the ledgers' metadata are closed")
        if self._count >= WAITS_MAX:
            raise Overloaded(f"{self._count} wait for changes of ledgers already: try again later")
        self._count += 1
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._until_changed(key, version)
        except TimeoutError:
            return
        finally:
            self._count -= 1
            if not self._count and self._task is not None:
                loop = asyncio.get_running_loop()
                self._ending = loop.call_later(self._idle_s, self._end)

    async def _until_changed(self, key: str, version: int) -> None:
        self._begin()
        while True:
            await self._began.wait()
            # Before the key is read: a change behind what was read is told to this future.
            told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            waiting = self._waiting.setdefault(key, {})
            waiting[told] = None
            try:
                found = await self._store.get(key)
                if found is None or found.version != version:
                    return
                await told
            finally:
                del waiting[told]
                if not waiting and self._waiting.get(key) is waiting:
                    del self._waiting[key]
            if self._is_closed:
                raise ShuttingDown("the ledgers' metadata are closed")

    def _begin(self) -> None:
        if self._ending is not None:
            self._ending.cancel()
            self._ending = None
        if self._task is None:
            self._began.clear()
            loop = asyncio.get_running_loop()
            self._task = loop.create_task(self._run(), name=f"watch of {self._prefix}")

    def _end(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _run(self) -> None:
        while True:
            try:
                seen = (await self._store.range(prefix=self._prefix, limit=1)).version
                self._began.set()
                self._tell_all()  # what happened before is not told by the watch
                async for changes in self._store.watch(self._prefix, after_version=seen):
                    for change in changes:
                        self._tell(change.key)
            except RaftwoodError as error:
                _log.warning("the watch of ledgers begins anew", reason=error.message)
            self._began.clear()
            await asyncio.sleep(_AGAIN_S)

    def _tell(self, key: str) -> None:
        for future in self._waiting.get(key, ()):
            if not future.done():
                future.set_result(None)

    def _tell_all(self) -> None:
        for key in self._waiting:
            self._tell(key)

    async def close(self) -> None:
        """All waits end with `ShuttingDown`."""
        self._is_closed = True
        if self._ending is not None:
            self._ending.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None
        self._began.set()
        self._tell_all()
