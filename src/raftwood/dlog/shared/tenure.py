"""`Tenure`: the lease in the metastore that this process owns logs under.

It ends by this process's own clock, counted from before each renewal was asked for: so before the
metastore lets the records go, and also in a process that was stopped for a while.
"""

import asyncio
from collections.abc import Callable

from raftwood.base.errors import NotFound, RaftwoodError
from raftwood.base.logs import get_logger
from raftwood.base.seams import MetaStore

_log = get_logger("dlog")


class Tenure:
    """Use `start`, and `close` when done; `began` hears of each new lease, `ended` of its end."""

    def __init__(
        self,
        store: MetaStore,
        *,
        ttl_ms: int,
        began: Callable[[int], None],
        ended: Callable[[], None],
    ) -> None:
        self._store = store
        self._ttl_ms = ttl_ms
        self._began = began
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._lease = 0
        self._until = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def is_valid(self) -> bool:
        return self._lease != 0 and self._loop.time() < self._until

    @property
    def lease(self) -> int:
        """0 where there is none."""
        return self._lease

    def start(self) -> None:
        self._task = self._loop.create_task(self._keep(), name="lease of DLOG's owner")

    async def close(self) -> None:
        """Let go of it, and of all that is under it, at once."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        lease = self._lease
        self._end()
        if lease:
            try:
                await self._store.revoke_lease(lease)
            except RaftwoodError as error:
                _log.info("the lease ends by itself", reason=error.message)

    async def _keep(self) -> None:
        pause_s = self._ttl_ms / 3000
        while True:
            began = self._loop.time()
            try:
                if self._lease:
                    await self._store.keep_alive(self._lease)
                    self._renewed(began)
                else:
                    lease = await self._store.grant_lease(ttl_ms=self._ttl_ms)
                    self._lease = lease
                    self._renewed(began)
                    self._began(lease)
            except NotFound:
                self._end()
                continue
            except RaftwoodError as error:
                _log.warning("the lease of DLOG's owner is not renewed", reason=error.message)
            await asyncio.sleep(pause_s)

    def _renewed(self, began: float) -> None:
        if not self._lease:
            return  # it ended before the answer came
        self._until = began + self._ttl_ms / 1000
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(self._until, self._end)

    def _end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._lease:
            self._lease, self._until = 0, 0.0
            self._ended()
