"""`Registration`: keeps a bookie on the list of those that run, with its rack and state."""

import asyncio
from typing import Final

import msgspec

from raftwood.base.errors import NotFound, RaftwoodError
from raftwood.base.logs import get_logger
from raftwood.base.seams import MetaStore, SetKey
from raftwood.dlog.bookie.bookie import Bookie
from raftwood.dlog.bookie.membership import BOOKIES, Registered, limbo_version

_LOOKS_PER_LEASE: Final = 4
_LOOK_S_MAX: Final = 1.0
_log = get_logger("bookie")


class Registration:
    """Renews the lease, tells when the bookie turns read-only and back, comes back when the lease
    was lost. Use `start`, and `close` when done.
    """

    def __init__(
        self, store: MetaStore, bookie: Bookie, *, rack: str, lease_ms: int, address: str = ""
    ) -> None:
        self._store = store
        self._bookie = bookie
        self._rack = rack
        self._address = address
        self._lease_ms = lease_ms
        self._lease = 0
        self._told: Registered | None = None
        self._renewed_at = 0.0
        self._task: asyncio.Task[None] | None = None
        self._has_told_of_doubts = False
        self.problem = ""
        """Why the metastore does not know of the bookie at the moment; empty where it does."""

    async def start(self) -> None:
        """Returns once the bookie is on the list."""
        await self._tell()
        loop = asyncio.get_running_loop()
        self._task = loop.create_task(self._run(), name=f"registration of {self._bookie.id}")

    async def _run(self) -> None:
        look_s = min(_LOOK_S_MAX, self._lease_ms / 1000 / _LOOKS_PER_LEASE)
        while True:
            await asyncio.sleep(look_s)
            try:
                await self._tell()
            except RaftwoodError as error:
                if not self.problem:
                    _log.warning(
                        "the bookie is not registered now",
                        bookie=self._bookie.id,
                        reason=error.message,
                    )
                self.problem = error.message
                continue
            self.problem = ""
            try:
                await self._end_doubts()
            except RaftwoodError as error:
                if not self._has_told_of_doubts:
                    _log.warning(
                        "the bookie does not know yet whether its ledgers were repaired",
                        bookie=self._bookie.id,
                        reason=error.message,
                    )
                self._has_told_of_doubts = True
            else:
                self._has_told_of_doubts = False

    async def _tell(self) -> None:
        now = asyncio.get_running_loop().time()
        bookie = self._bookie
        current = Registered(bookie.instance, self._rack, bookie.is_read_only, self._address)
        if not self._lease:
            self._lease = await self._store.grant_lease(ttl_ms=self._lease_ms)
            self._told = None
        try:
            if current != self._told:
                key = f"{BOOKIES}{self._bookie.id}"
                value = msgspec.json.encode(current)
                await self._store.transact((), (SetKey(key, value, self._lease),))
                self._told = current
            elif now - self._renewed_at >= self._lease_ms / 1000 / _LOOKS_PER_LEASE:
                await self._store.keep_alive(self._lease)
            else:
                return
        except NotFound:
            self._lease = 0  # the next look begins with a new one
            raise
        self._renewed_at = now

    async def _end_doubts(self) -> None:
        """A repair that went through all ledgers has removed the note that it began anew."""
        bookie = self._bookie
        if bookie.has_doubts and not await limbo_version(self._store, bookie.id):
            await bookie.end_doubts()
            _log.info("all ledgers of the bookie were repaired", bookie=bookie.id)

    async def close(self) -> None:
        """Take the bookie off the list."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if self._lease:
            try:
                await self._store.revoke_lease(self._lease)
            except RaftwoodError as error:
                _log.warning("the bookie stays registered for a while", reason=error.message)
