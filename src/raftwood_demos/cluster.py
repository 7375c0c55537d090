"""A cluster under fire: its leader is killed, stores come and go, and nothing acked is lost.

Stores are real processes. Clients write unique keys all the time, through whoever leads; the parent
kills, starts, adds and removes stores as an operator would, by the same commands. A write that was
carried out twice shows in the metastore's version, which counts the transactions that changed
something: it must be the number of keys.
"""

import asyncio
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec
from xxhash import xxh3_64_hexdigest

from raftwood.base.errors import DeadlineExceeded, RaftwoodError
from raftwood.base.seams import MetaStore, SetKey
from raftwood.disk.real_environment import real_environment
from raftwood.metastore.raft_store import RaftMetaStore
from raftwood.net.stores import Stores
from raftwood.raft.admin import RaftAdmin
from raftwood.server.cluster import METASTORE_GROUP
from raftwood.server.cluster_client import connected_client, connected_stores
from raftwood.server.group_membership import (
    add_learner,
    promote_when_caught_up,
    remove_member,
    wait_until_caught_up,
)
from raftwood.server.store import DESCRIBE
from raftwood_demos.store_processes import StoreProcesses, store_name
from raftwood_demos.story import Story, StoryStep

PREFIX = "demo/"
_READ_EVERY = 10
_PAGE = 10_000
_ACK_S_MAX = 60.0
_REPORT_S = 0.25


class ClusterVerdict(msgspec.Struct, frozen=True):
    """What the last look found."""

    keys_found: int
    missing: int
    """Acked, and not there."""
    wrong: int
    """There with another value."""
    twice: int
    """Carried out more than once."""


class ClusterLoad:
    """Many writers on one store; `acked` counts what was promised."""

    def __init__(self, store: MetaStore, on_progress: Callable[[int], None]) -> None:
        """`on_progress` hears from time to time how many writes were acked so far."""
        self._store = store
        self._on_progress = on_progress
        self._acked: list[str] = []
        self._unknown: list[str] = []
        self._began = 0
        self._is_over = False
        self._last_ack = time.perf_counter()
        self._first_ack_after: list[tuple[float, asyncio.Future[float]]] = []
        self.reads = 0
        self.stale_reads = 0
        self.longest_pause_ms = self.recent_pause_ms = 0.0

    @property
    def acked(self) -> int:
        return len(self._acked)

    @property
    def unknown(self) -> int:
        """Writes that ended with an error, so that nothing was promised."""
        return len(self._unknown)

    @asynccontextmanager
    async def running(self, writers: int) -> AsyncIterator[None]:
        """Write during the block; at its end, what is under way is waited for."""
        tasks = [asyncio.create_task(self._write()) for _ in range(writers)]
        tasks.append(asyncio.create_task(self._report()))
        try:
            yield
            self._is_over = True
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _report(self) -> None:
        while not self._is_over:
            await asyncio.sleep(_REPORT_S)
            self._on_progress(self.acked)

    async def _write(self) -> None:
        while not self._is_over:
            self._began += 1
            number, began = self._began, time.perf_counter()
            key = f"{PREFIX}{number:09d}"
            try:
                await self._store.transact((), (SetKey(key, _value(key)),))
            except RaftwoodError:
                self._unknown.append(key)
                continue
            self._note_ack(key, began)
            if number % _READ_EVERY == 0:
                await self._read(random.choice(self._acked))

    def _note_ack(self, key: str, began: float) -> None:
        now = time.perf_counter()
        pause_ms = (now - self._last_ack) * 1000
        self.recent_pause_ms = max(self.recent_pause_ms, pause_ms)
        self.longest_pause_ms = max(self.longest_pause_ms, pause_ms)
        self._last_ack = now
        self._acked.append(key)
        for moment, future in self._first_ack_after:
            if began >= moment and not future.done():
                future.set_result((now - moment) * 1000)

    async def _read(self, key: str) -> None:
        try:
            found = await self._store.get(key)
        except RaftwoodError:
            return  # no answer is no wrong answer
        self.reads += 1
        self.stale_reads += found is None or found.value != _value(key)

    def watch_pauses(self) -> None:
        """Let `recent_pause_ms` tell of pauses from now on."""
        self.recent_pause_ms = 0.0

    async def next_ack_ms(self) -> float:
        """Milliseconds from now to the first ack of a write that is begun from now on."""
        future: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        waiter = (time.perf_counter(), future)
        self._first_ack_after.append(waiter)
        try:
            async with asyncio.timeout(_ACK_S_MAX):
                return await future
        except TimeoutError:
            raise DeadlineExceeded(f"no write was acked in {_ACK_S_MAX:g} s") from None
        finally:
            self._first_ack_after.remove(waiter)

    async def verify(self) -> ClusterVerdict:
        """Read everything back, after the end of all writes."""
        found: dict[str, bytes] = {}
        start = PREFIX
        while True:
            part = await self._store.range(prefix=PREFIX, start=start, limit=_PAGE)
            found |= {entry.key: entry.value for entry in part.entries}
            if part.next_start is None:
                break
            start = part.next_start
        status = await self._store.status()
        return ClusterVerdict(
            keys_found=len(found),
            missing=sum(key not in found for key in self._acked),
            wrong=sum(value != _value(key) for key, value in found.items()),
            twice=status.version - len(found),
        )


def _value(key: str) -> bytes:
    return xxh3_64_hexdigest(key.encode()).encode()


FIRST, LATER = (1, 2, 3), 4
_WAIT_S = 60.0
_ASK_MS = 5_000
_WRITE_TIMEOUT_MS = 30_000
_ASSIGNMENTS = {"raft.snapshot_entries": 5_000, "raft.snapshot_entries_kept": 1_000}
"""Often, so that who joins or comes back late starts from a snapshot."""


class ClusterOutcome(msgspec.Struct, frozen=True):
    """All steps, and what the last look found."""

    steps: list[StoryStep]
    seconds: float
    writes_acked: int
    writes_unknown: int
    writes_per_second: float
    reads: int
    reads_stale: int
    failover_ms: float
    """From the kill of the leader to the first ack of a write begun after it."""
    hand_over_ms: float
    """The longest time without an ack while the leader handed over and was removed."""
    catch_up_ms: float
    """From the restart of the killed store until it had what the leader had."""
    longest_pause_ms: float
    exit_statuses: dict[str, int]
    """Of the stores that were told to end."""
    verdict: ClusterVerdict

    @property
    def held(self) -> bool:
        verdict = self.verdict
        is_exact = not (verdict.missing or verdict.wrong or verdict.twice or self.reads_stale)
        return is_exact and self.writes_acked > 0 and not any(self.exit_statuses.values())


class _Demo:
    def __init__(
        self,
        processes: StoreProcesses,
        stores: Stores,
        load: ClusterLoad,
        *,
        seconds: float,
        story: Story,
    ) -> None:
        self._processes = processes
        self._stores = stores
        self._load = load
        self._seconds = seconds
        self._tell = story.tell
        self.failover_ms = self.hand_over_ms = self.catch_up_ms = 0.0

    async def run(self) -> None:
        first_ms = await self._load.next_ack_ms()
        self._tell(f"three stores serve; the first write was acked after {first_ms:,.0f} ms")
        await asyncio.sleep(self._seconds)
        killed = await self._kill_leader()
        await asyncio.sleep(self._seconds)
        await self._add_store()
        await asyncio.sleep(self._seconds)
        await self._remove_leader()
        await asyncio.sleep(self._seconds)
        await self._restart(killed)
        await asyncio.sleep(self._seconds)

    async def _leader(self) -> tuple[int, int]:
        """The leading store and its process id, as its status tells."""
        leader = await RaftAdmin(self._stores).leader_status(METASTORE_GROUP)
        channel = await self._stores.connected(leader.store, _ASK_MS)
        return leader.store, (await channel.ask(DESCRIBE, None, _ASK_MS)).pid

    async def _kill_leader(self) -> int:
        leader, pid = await self._leader()
        waiting = asyncio.create_task(self._load.next_ack_ms())
        os.kill(pid, signal.SIGKILL)
        self._tell(f"store {leader}, which leads, is killed with -9 (pid {pid})")
        self.failover_ms = await waiting
        after, _ = await self._leader()
        self._tell(f"store {after} leads; writes are acked again {self.failover_ms:,.0f} ms later")
        return leader

    async def _add_store(self) -> None:
        address = self._processes.addresses[LATER]
        await self._processes.start_store(LATER, joins=True)
        await add_learner(self._stores, METASTORE_GROUP, LATER, address)
        self._tell(f"store {LATER} is started with --join and added as a learner")
        began = time.perf_counter()
        await promote_when_caught_up(self._stores, METASTORE_GROUP, LATER, wait_s=_WAIT_S)
        elapsed_ms = (time.perf_counter() - began) * 1000
        self._tell(f"store {LATER} caught up and votes, {elapsed_ms:,.0f} ms later")

    async def _remove_leader(self) -> None:
        leader, _ = await self._leader()
        self._load.watch_pauses()
        status = await remove_member(self._stores, METASTORE_GROUP, leader)
        await self._load.next_ack_ms()
        self.hand_over_ms = self._load.recent_pause_ms
        self._tell(f"store {leader}, which led, handed over and was removed; {status.store} leads")
        self._processes.stop(store_name(leader))
        await self._processes.wait(store_name(leader))

    async def _restart(self, store: int) -> None:
        began = time.perf_counter()
        await self._processes.start_store(store)
        await wait_until_caught_up(self._stores, METASTORE_GROUP, store, wait_s=_WAIT_S)
        self.catch_up_ms = (time.perf_counter() - began) * 1000
        self._tell(f"store {store} is back, and caught up {self.catch_up_ms:,.0f} ms later")


async def run(
    folder: str,
    *,
    seconds: float,
    writers: int,
    on_step: Callable[[StoryStep], None],
    on_progress: Callable[[int], None],
) -> ClusterOutcome:
    """Play the whole story; each of its parts lasts so many seconds at the least."""
    with real_environment() as environment:
        async with StoreProcesses(
            folder, ("serve",), _ASSIGNMENTS, first=FIRST, later=(LATER,)
        ) as processes:
            await asyncio.gather(*(processes.start_store(store) for store in FIRST))
            settings = processes.client_settings()
            async with (
                connected_client(environment, settings, None) as client,
                connected_stores(environment, settings, None) as stores,
            ):
                meta = RaftMetaStore(client, METASTORE_GROUP, timeout_ms=_WRITE_TIMEOUT_MS)
                load = ClusterLoad(meta, on_progress)
                story = Story(on_step, lambda: load.acked)
                demo = _Demo(processes, stores, load, seconds=seconds, story=story)
                async with load.running(writers):
                    await demo.run()
                elapsed_s = story.elapsed_s
                verdict = await load.verify()
            statuses = await processes.end()
    return ClusterOutcome(
        steps=story.steps,
        seconds=elapsed_s,
        writes_acked=load.acked,
        writes_unknown=load.unknown,
        writes_per_second=load.acked / elapsed_s,
        reads=load.reads,
        reads_stale=load.stale_reads,
        failover_ms=demo.failover_ms,
        hand_over_ms=demo.hand_over_ms,
        catch_up_ms=demo.catch_up_ms,
        longest_pause_ms=load.longest_pause_ms,
        exit_statuses=statuses,
        verdict=verdict,
    )
