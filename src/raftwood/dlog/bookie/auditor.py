"""The auditor: repairs the ledgers of bookies that are away for long, or have begun anew.

Without it a ledger keeps a copy less until an operator notices, and the next lost disk may be the
last copy (`test_the_ledgers_of_a_bookie_that_is_away_are_copied_to_another_one`).

Every bookie's process has one, and the one with the record `dlog/auditor`, under a lease, works.
The lease only saves work. Two that work at once do no harm: each ledger is changed by
compare-and-set.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from raftwood.base.errors import NotFound, RaftwoodError
from raftwood.base.logs import get_logger
from raftwood.base.metrics import Metrics
from raftwood.base.seams import MetaStore
from raftwood.dlog.bookie.membership import (
    bookies_in_limbo,
    end_limbo,
    known_bookies,
    limbo_version,
    running_bookies,
)
from raftwood.dlog.ledgers.metadata import BookieId
from raftwood.dlog.ledgers.repair import RepairedLedger

AUDITOR: Final = "dlog/auditor"
LEASE_MS: Final = 30_000
_LOOKS_PER_LEASE: Final = 4
_LOOK_S_MIN: Final = 0.1
_SHOWN_MAX: Final = 3
_log = get_logger("auditor")

Repairing = Callable[[BookieId], Awaitable[list[RepairedLedger]]]


async def repaired(
    store: MetaStore, bookie: BookieId, repairing: Repairing
) -> list[RepairedLedger]:
    """Repairs a bookie, and removes the note that it began anew if all ledgers went well.

    One ledger with a problem keeps the note: the bookie may lack entries of that one, and must go
    on doubting.
    """
    version = await limbo_version(store, bookie)
    results = await repairing(bookie)
    if not any(each.problem for each in results):
        await end_limbo(store, bookie, version=version)
    return results


class AuditRules:
    """Decides which bookies to repair, from a series of looks; no I/O."""

    def __init__(self, *, after_ms: float) -> None:
        self._after_ms = after_ms
        self._away_since: dict[BookieId, float] = {}
        self._not_before: dict[BookieId, float] = {}
        self._retry_ms: dict[BookieId, float] = {}

    def looked(
        self,
        *,
        now_ms: float,
        known: Sequence[BookieId],
        running: Sequence[BookieId],
        in_limbo: Sequence[BookieId],
    ) -> list[BookieId]:
        """The bookies that are due: away at every look for so long, or running without their data.

        A restart or a short cut of the network must not set off the copying of all of a bookie's
        entries, which takes the load of the disks that are left: so one look that finds the bookie
        begins the count anew
        (`test_a_bookie_is_due_once_it_was_away_at_every_look_for_long_enough`). Each is due once in
        that time, or sooner where a repair did not go well.
        """
        here = set(running)
        self._away_since = {
            each: self._away_since.get(each, now_ms) for each in known if each not in here
        }
        due = [each for each, since in self._away_since.items() if now_ms - since >= self._after_ms]
        due += [each for each in in_limbo if each in here]
        return [each for each in due if now_ms >= self._not_before.get(each, now_ms)]

    def repaired(self, bookie: BookieId, *, now_ms: float, is_whole: bool) -> None:
        """Sets the next time: after the usual wait, or sooner where something is left to be done,
        and then less and less often. A ledger whose only intact copies are away cannot be helped by
        asking ten times a second
        (`test_what_could_not_be_repaired_is_tried_again_soon_and_then_less_often`).
        """
        wait_ms = self._after_ms
        retry_ms = self._retry_ms.pop(bookie, min(self._after_ms, LEASE_MS))
        if not is_whole:
            wait_ms = retry_ms
            self._retry_ms[bookie] = min(2 * retry_ms, self._after_ms)
        self._not_before[bookie] = now_ms + wait_ms


class Auditor:
    """Repairs bookies that are due. Use `start`, and `close` when done; leaves the store open."""

    def __init__(
        self,
        store: MetaStore,
        repairing: Repairing,
        *,
        name: str,
        after_ms: int,
        metrics: Metrics | None = None,
    ) -> None:
        self._store = store
        self._repairing = repairing
        self._name = name
        self._rules = AuditRules(after_ms=after_ms)
        self._look_s = max(_LOOK_S_MIN, min(LEASE_MS, after_ms) / _LOOKS_PER_LEASE / 1000)
        self._lease = 0
        self._is_leading = False
        self._repair: asyncio.Task[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._under_replicated: dict[BookieId, int] = {}
        self.repaired_ledgers = 0
        self.copied_entries = 0
        if metrics is not None:
            self._show(metrics)

    def _show(self, metrics: Metrics) -> None:
        labels = {"bookie": self._name}
        for name, text, read in (
            ("bookie_auditor", "1 where this process repairs.", lambda: self._is_leading),
            (
                "bookie_underreplicated_ledgers",
                "Ledgers that the last repairs of this process had to leave with a copy less.",
                lambda: sum(self._under_replicated.values()),
            ),
        ):
            metrics.pull_gauge(name, text, read, labels)
        for name, text, count in (
            ("bookie_repaired_ledgers_total", "Ledgers repaired.", lambda: self.repaired_ledgers),
            ("bookie_repaired_entries_total", "Entries copied.", lambda: self.copied_entries),
        ):
            metrics.pull_counter(name, text, count, labels)

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._task = loop.create_task(self._run(), name=f"auditor of {self._name}")

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._look_s)
            try:
                self._is_leading = await self._lead()
                if self._is_leading:
                    await self.look()
                else:
                    self._under_replicated.clear()  # Another process shows these figures now.
            except RaftwoodError as error:
                _log.warning("no look for bookies that are away", reason=error.message)

    async def _lead(self) -> bool:
        """Whether this process is the auditor: the record is its own, under a live lease."""
        store = self._store
        if self._lease:
            try:
                await store.keep_alive(self._lease)
            except NotFound:
                self._lease = 0
            else:
                return True
        if await store.get(AUDITOR) is not None:
            return False
        lease = await store.grant_lease(ttl_ms=LEASE_MS)
        value = self._name.encode()
        if await store.compare_and_set(AUDITOR, value, version=0, lease=lease) is None:
            await store.revoke_lease(lease)
            return False
        self._lease = lease
        return True

    async def look(self) -> None:
        """Looks once; a repair that is due goes on in the background, one at a time."""
        store = self._store
        running = [each.id for each in await running_bookies(store)]
        in_limbo = await bookies_in_limbo(store)
        due = self._rules.looked(
            now_ms=_now_ms(), known=await known_bookies(store), running=running, in_limbo=in_limbo
        )
        for bookie in running:
            if bookie not in in_limbo:
                self._under_replicated.pop(bookie, None)
        if due and (self._repair is None or self._repair.done()):
            loop = asyncio.get_running_loop()
            self._repair = loop.create_task(self._repair_all(due), name=f"repair by {self._name}")

    async def _repair_all(self, due: Sequence[BookieId]) -> None:
        for bookie in due:
            is_whole = False
            try:
                results = await repaired(self._store, bookie, self._repairing)
                is_whole = not any(each.problem for each in results)
                self._tell(bookie, results)
            except RaftwoodError as error:
                _log.warning("a bookie is not repaired", bookie=bookie, reason=error.message)
            except Exception as error:
                # No caller awaits this task: a bug that is not logged here would never show.
                _log.error(
                    "a bookie is not repaired", bookie=bookie, reason=repr(error), exc_info=error
                )
            finally:
                self._rules.repaired(bookie, now_ms=_now_ms(), is_whole=is_whole)

    def _tell(self, bookie: BookieId, results: Sequence[RepairedLedger]) -> None:
        problems = [each.problem for each in results if each.problem]
        self._under_replicated[bookie] = len(problems)
        copied = sum(each.copied for each in results)
        self.repaired_ledgers += len(results) - len(problems)
        self.copied_entries += copied
        if results:
            tell = _log.warning if problems else _log.info
            tell(
                "the ledgers of a bookie were repaired",
                bookie=bookie,
                ledgers=len(results) - len(problems),
                entries=copied,
                left=len(problems),
                problems=problems[:_SHOWN_MAX],
            )

    async def close(self) -> None:
        """Stops; another process goes on at its next look."""
        tasks = [each for each in (self._task, self._repair) if each is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        if self._lease:
            try:
                await self._store.revoke_lease(self._lease)
            except RaftwoodError as error:
                _log.warning("the record of the auditor stays for a while", reason=error.message)


def _now_ms() -> float:
    return asyncio.get_running_loop().time() * 1000
