"""Making room: what a bookie has of ledgers that were deleted is dropped.

A ledger's metadata are there before its first entry, so what the bookie had before a look began,
and the look did not find, was deleted. It goes when two looks in a row say so.
"""

import asyncio
from collections.abc import Sequence

from raftwood.base.errors import RaftwoodError
from raftwood.base.logs import get_logger
from raftwood.dlog.bookie.bookie import Bookie
from raftwood.dlog.errors import NoSuchLedger
from raftwood.dlog.ledgers.seams import LedgerMetadataStore

_log = get_logger("bookie")


class GarbageRules:
    """Which ledgers may go, from one look after the other; no I/O."""

    def __init__(self) -> None:
        self._missing: dict[int, None] = {}

    def looked(self, *, held: Sequence[int], existing: Sequence[int]) -> list[int]:
        """`held` is from before the look began; answers those to drop, in order."""
        known = set(existing)
        missing = [ledger for ledger in held if ledger not in known]
        gone = [ledger for ledger in missing if ledger in self._missing]
        self._missing = dict.fromkeys(each for each in missing if each not in self._missing)
        return gone


class GarbageCollector:
    """Looks from time to time; use `start`, and `close` when done."""

    def __init__(self, bookie: Bookie, ledgers: LedgerMetadataStore, *, interval_ms: int) -> None:
        self._bookie = bookie
        self._ledgers = ledgers
        self._interval_s = interval_ms / 1000
        self._rules = GarbageRules()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._task = loop.create_task(self._run(), name=f"garbage of {self._bookie.id}")

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            try:
                await self.look()
            except RaftwoodError as error:
                _log.warning("no look for deleted ledgers", reason=error.message)

    async def look(self) -> list[int]:
        """One look; answers what was dropped."""
        held = self._bookie.ledgers()
        existing = [ledger async for ledger in self._ledgers.ledgers()] if held else []
        gone = [
            each
            for each in self._rules.looked(held=held, existing=existing)
            if await self._is_gone(each)
        ]
        self._bookie.drop(gone)
        if gone:
            _log.info("deleted ledgers dropped", bookie=self._bookie.id, count=len(gone))
        return gone

    async def _is_gone(self, ledger: int) -> bool:
        """Asked by itself once more: what is dropped does not come back."""
        try:
            await self._ledgers.get(ledger)
        except NoSuchLedger:
            return True
        return False

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
