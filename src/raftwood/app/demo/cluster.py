"""A cluster under fire: its leader is killed, stores come and go, and nothing acked is lost.

Stores are real processes. Clients write unique keys all the time, through whoever leads; the
parent kills, starts, adds and removes stores as an operator would, by the same commands.
"""

import asyncio
import os
import signal
import time
from collections.abc import Callable

import msgspec

from raftwood.app.connecting import connected_client, connected_stores
from raftwood.app.demo.cluster_load import Load, Verdict
from raftwood.app.demo.store_processes import StoreProcesses
from raftwood.app.demo.story import Step, Story
from raftwood.app.groups import METASTORE_GROUP
from raftwood.app.operating import (
    add_learner,
    promote_when_caught_up,
    remove_member,
    wait_until_caught_up,
)
from raftwood.app.store_service import DESCRIBE
from raftwood.disk.real_environment import real_environment
from raftwood.metastore.raft_store import RaftMetaStore
from raftwood.net.stores import Stores
from raftwood.raft.remote.admin import RaftAdmin

FIRST, LATER = (1, 2, 3), 4
_WAIT_S = 60.0
_ASK_MS = 5_000
_WRITE_TIMEOUT_MS = 30_000
_ASSIGNMENTS = {"raft.snapshot_entries": 5_000, "raft.snapshot_entries_kept": 1_000}
"""Often, so that who joins or comes back late starts from a snapshot."""


class Outcome(msgspec.Struct, frozen=True):
    """All steps, and what the last look found."""

    steps: list[Step]
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
    exit_statuses: dict[int, int]
    """Of the stores that were told to end."""
    verdict: Verdict

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
        load: Load,
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
        await self._processes.start(LATER, joins=True)
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
        self._processes.stop(leader)
        await self._processes.wait(leader)

    async def _restart(self, store: int) -> None:
        began = time.perf_counter()
        await self._processes.start(store)
        await wait_until_caught_up(self._stores, METASTORE_GROUP, store, wait_s=_WAIT_S)
        self.catch_up_ms = (time.perf_counter() - began) * 1000
        self._tell(f"store {store} is back, and caught up {self.catch_up_ms:,.0f} ms later")


async def run(
    folder: str,
    *,
    seconds: float,
    writers: int,
    on_step: Callable[[Step], None],
    on_progress: Callable[[int], None],
) -> Outcome:
    """Play the whole story; each of its parts lasts so many seconds at the least."""
    with real_environment() as environment:
        async with StoreProcesses(
            folder, ("serve",), _ASSIGNMENTS, first=FIRST, later=(LATER,)
        ) as processes:
            await asyncio.gather(*(processes.start(store) for store in FIRST))
            settings = processes.client_settings()
            async with (
                connected_client(environment, settings, None) as client,
                connected_stores(environment, settings, None) as stores,
            ):
                meta = RaftMetaStore(client, METASTORE_GROUP, timeout_ms=_WRITE_TIMEOUT_MS)
                load = Load(meta, on_progress)
                story = Story(on_step, lambda: load.acked)
                demo = _Demo(processes, stores, load, seconds=seconds, story=story)
                async with load.running(writers):
                    await demo.run()
                elapsed_s = story.elapsed_s
                verdict = await load.verify()
            statuses = await processes.end()
    return Outcome(
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
