"""A store that loses the synced end of its log in a power cut, and nothing on it can tell.

Two of three stores have acked lines that the third has not. One of the two loses them: its segment
ends with zeroes, and its HORIZON is older than them. Together with the third it is a majority.
"""

import asyncio
import random

from raftwood.base import files as seam
from raftwood.disk.segment_log.format import FLUSH_MAGIC
from raftwood.raft.client import AsyncRaftClient
from raftwood.raft.leadership import LogEnd, VoteFloor
from raftwood.raft.log_ends import LogEnds
from raftwood.testing import Machine
from raftwood.testing.file_system import DescriptorTable
from tests.kits.models import Mutant, Violation, replaced
from tests.kits.raft.damage import files_of
from tests.kits.raft.host_cluster import GROUP, Cluster, run_cluster, write

_SHARED = 20
_LINES = 40


def put_file(machine: Machine, path: str, content: bytes) -> None:
    """Replace a file's contents on the disk of a machine that is off."""
    disk, session = machine.disk.file_system, DescriptorTable()
    disk.apply(session, seam.Open(path))
    disk.apply(session, seam.Truncate(path, 0))
    disk.apply(session, seam.Write(path, 0, (content,)))
    disk.apply(session, seam.DataSync(path))
    session.end()


def horizon_of(machine: Machine) -> bytes:
    return machine.disk.file_system.contents(files_of(machine, "HORIZON")[0])


def lose_tail(machine: Machine, *, first: bytes, horizon: bytes) -> None:
    """Zero all flushes from the one with a text on; the horizon is one from before them."""
    for path in files_of(machine, ".segment"):
        content = machine.disk.file_system.contents(path)
        if first in content:
            start = content.rindex(FLUSH_MAGIC, 0, content.index(first))
            put_file(machine, path, content[:start] + bytes(len(content) - start))
            break
    put_file(machine, files_of(machine, "HORIZON")[0], horizon)


async def follower_without_tail(
    cluster: Cluster, client: AsyncRaftClient, *, kept: int, lost: int
) -> int:
    """A follower that has acknowledged so many lines, is off, and has lost the last of them."""
    await write(client, kept)
    await cluster.agree(1, 2, 3)
    store = (await cluster.wait_for_leader()) % 3 + 1
    machine = cluster.machines[store]
    horizon = horizon_of(machine)
    await write(client, lost, start=kept)
    await cluster.agree(1, 2, 3)
    machine.power_off()
    lose_tail(machine, first=b"line %d" % kept, horizon=horizon)
    return store


async def _lose(cluster: Cluster, chosen: random.Random) -> None:
    cluster.start(1, 2, 3)
    async with cluster.client() as client:
        await write(client, _SHARED)
        await cluster.agree(1, 2, 3)
        leader = await cluster.wait_for_leader()
        follower, late = chosen.sample([store for store in (1, 2, 3) if store != leader], 2)
        cluster.machines[late].power_off()
        victim = chosen.choice((leader, follower))
        horizon = horizon_of(cluster.machines[victim])
        await write(client, _LINES - _SHARED, start=_SHARED)
    cluster.machines[leader].power_off()
    cluster.machines[follower].power_off()
    lose_tail(cluster.machines[victim], first=b"line %d" % _SHARED, horizon=horizon)
    for store in chosen.sample((1, 2, 3), 3):
        cluster.start(store)
        await asyncio.sleep(chosen.uniform(0, 1))


def run_lost_tail(seed: int) -> None:
    """Whoever stands first, what was acked is there once all three stores are up."""

    async def scenario(cluster: Cluster) -> None:
        await _lose(cluster, random.Random(seed))
        async with cluster.client() as client:
            await client.propose(GROUP, b"the end", timeout_ms=60_000)
        lines = await cluster.agree(1, 2, 3)
        expected = [*(b"line %d" % number for number in range(_LINES)), b"the end"]
        if lines != expected:
            raise Violation("acked lines are gone", f"{len(lines) - 1} of {_LINES} are left")

    run_cluster(scenario, seed=seed)


def _hold_nothing(*_: object) -> None:
    pass


def _hear_nothing(floor: VoteFloor, store: int, _: LogEnd | None) -> None:
    floor.unanswered.pop(store, None)


def _hear_terms_alone(floor: VoteFloor, store: int, end: LogEnd | None) -> None:
    floor.unanswered.pop(store, None)
    floor.term = max(floor.term, end.term if end is not None else 0)


def _compare_terms_alone(floor: VoteFloor, last: tuple[int, int]) -> bool:
    return not floor.is_asking and last[0] >= floor.last[0]


_GONE = "acked lines are gone"
MUTANTS = {
    "does not ask": Mutant(run_lost_tail, replaced(LogEnds, hold_votes=_hold_nothing), harm=_GONE),
    "forgets what it heard": Mutant(
        run_lost_tail, replaced(VoteFloor, answered=_hear_nothing), harm=_GONE
    ),
    "hears of terms alone": Mutant(
        run_lost_tail, replaced(VoteFloor, answered=_hear_terms_alone), harm=_GONE
    ),
    "votes while it asks": Mutant(run_lost_tail, replaced(VoteFloor, is_asking=False), harm=_GONE),
    "compares terms of logs alone": Mutant(
        run_lost_tail, replaced(VoteFloor, admits=_compare_terms_alone), harm=_GONE
    ),
}
