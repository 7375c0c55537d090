"""A cluster under load, and the last look at it: nothing acked is missing, nothing came twice."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from raftwood.disk.real_environment import real_environment
from tests.kits.raft.cluster import STORES, Cluster
from tests.kits.raft.ledger import EVERYTHING, Contents, contents_from
from tests.kits.raft.load import Load
from tests.kits.raft.node import GROUPS
from tests.kits.raft.proxy import Proxies

ANSWER_S_MAX = 60.0
"""How long a group may be without an answer after a fault, on a slow machine."""
AGREE_S_MAX = 60.0
RSS_BYTES_MAX = 100 << 20
TASKS_MAX = 30
WARNINGS_MAX = 100


class Scene:
    """What a test works with."""

    def __init__(self, cluster: Cluster, load: Load, proxies: Proxies | None) -> None:
        self.cluster = cluster
        self.load = load
        self._proxies = proxies
        self.expected_endings = 0
        """How many processes may have said `fatal`."""

    @property
    def proxies(self) -> Proxies:
        assert self._proxies is not None
        return self._proxies

    async def answered_again(
        self, what: str, since: float, within_s: float = ANSWER_S_MAX
    ) -> float:
        """Measure, and tell, how long it took after a fault until all groups answered."""
        took = await self.load.answered_again(since, within_s)
        quiet = await self.load.write_quietly()
        print(f"{what}: all groups answer after {took:.2f} s, the sleeping one in {quiet:.2f} s")
        for node in self.cluster.nodes.values():
            node.note_memory()
        return took

    async def caught_up(self, store: int) -> None:
        """Wait until a store has applied what the others had when it was asked."""
        others = [each for each in STORES if each != store]
        for group in GROUPS:
            goal = max(each.applied for each in await self.cluster.statuses(group, others))
            deadline = time.monotonic() + AGREE_S_MAX
            while not any(
                each.applied >= goal for each in await self.cluster.statuses(group, [store])
            ):
                assert time.monotonic() < deadline, await self._lag(store, group)
                await asyncio.sleep(0.02)

    async def _lag(self, store: int, group: int) -> str:
        statuses = await self.cluster.statuses(group)
        return f"store {store} does not catch up with group {group} in time: {statuses}"


@asynccontextmanager
async def scene(
    folder: Path,
    *,
    wrappers: Mapping[int, Sequence[str]] | None = None,
    with_proxies: bool = False,
    is_impatient: bool = False,
    hosts: Mapping[int, str] | None = None,
) -> AsyncIterator[Scene]:
    async with AsyncExitStack() as stack:
        environment = stack.enter_context(real_environment())
        cluster = await stack.enter_async_context(Cluster(environment, folder, hosts))
        proxies = None
        if with_proxies:
            proxies = await stack.enter_async_context(Proxies(cluster.members))
            cluster.members = proxies.addresses
        await cluster.start(wrappers)
        clients = [await stack.enter_async_context(cluster.client()) for _ in range(2)]
        impatient = [await stack.enter_async_context(cluster.client())] if is_impatient else []
        load = Load(clients, impatient)
        set_up = Scene(cluster, load, proxies)
        began = time.monotonic()
        async with load:
            await load.answered_again(began, ANSWER_S_MAX)
            await load.write_quietly()
            yield set_up
        await _last_look(cluster, load)
        await _end(set_up)


async def _last_look(cluster: Cluster, load: Load) -> None:
    for group in GROUPS:
        contents = await _agreed(cluster, group)
        for writer in load.writers:
            if writer.group != group:
                continue
            numbers = contents.numbers.get(writer.id, [])
            assert len(set(numbers)) == len(numbers), "a command was carried out twice"
            if writer.is_patient:
                assert numbers == sorted(numbers), "a command overtook one that was answered before"
            missing = sorted(set(writer.acked) - set(numbers))
            assert not missing, f"group {group} lacks {missing} of writer {writer.id}, all acked"
            assert not numbers or max(numbers) <= writer.sent
    unknown = sum(each.sent - len(each.acked) for each in load.writers)
    reads = sum(each.reads for each in load.readers)
    print(f"{load.acked_count()} commands acked, {unknown} open, {reads} reads: all there, once")


async def _agreed(cluster: Cluster, group: int) -> Contents:
    """What all replicas hold, once it is the same."""
    deadline = time.monotonic() + AGREE_S_MAX
    while True:
        answers = [await cluster.read_at(store, group, EVERYTHING) for store in STORES]
        if len(set(answers)) == 1:
            return contents_from(answers[0])
        assert time.monotonic() < deadline, f"the replicas of group {group} do not agree"
        await asyncio.sleep(0.05)


async def _end(scene: Scene) -> None:
    """All stores end in order, and neither grew nor filled their logs with noise."""
    endings = 0
    for node in scene.cluster.nodes.values():
        node.note_memory()
        tasks = await node.end_well()
        events = node.events()
        warnings = {what: count for (level, what), count in events.items() if level == "warning"}
        print(f"store {node.store}: {node.rss_peak_bytes >> 20} MiB, {tasks} tasks, {warnings}")
        assert node.rss_peak_bytes < RSS_BYTES_MAX
        assert tasks < TASKS_MAX
        assert sum(warnings.values()) < WARNINGS_MAX, warnings
        strange = [
            what
            for (level, what) in events
            if level not in {"info", "warning"} and not what.startswith("strace: ")
        ]
        endings += sum(what.startswith("fatal: ") for what in strange)
        assert not [what for what in strange if not what.startswith("fatal: ")], strange
    assert endings == scene.expected_endings
