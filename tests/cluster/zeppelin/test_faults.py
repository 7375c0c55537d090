"""Real nodes under kills, pauses and cut links: what was acked stays, once, on all replicas."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from raftwood.zeppelin.model import TableConfig
from raftwood.zeppelin.slots import slot_of
from tests.kits.running import run
from tests.kits.zeppelin.decoding import AnswerError
from tests.kits.zeppelin.processes import KvProcesses, Login, kv_processes
from tests.kits.zeppelin.writers import KvConnections, Writer

PARTITIONS = 4
WRITERS = 6
AGAIN_S_MAX = 60.0
REMOVED_S_MAX = 60.0
LATER_WRITES = 20
"""That another master takes, while the one before it takes none."""


@pytest.fixture(scope="module")
def cluster(module_folder: Path) -> Iterator[KvProcesses]:
    with kv_processes(module_folder, has_proxies=True) as cluster:
        yield cluster


async def _goes_on(writers: list[Writer]) -> None:
    """Until each of them was answered anew."""
    before = [writer.count for writer in writers]
    async with asyncio.timeout(AGAIN_S_MAX):
        while any(  # noqa: ASYNC110  others move them
            writer.count < count + 2 for writer, count in zip(writers, before, strict=True)
        ):
            await asyncio.sleep(0.05)


async def _suffer(cluster: KvProcesses, table: str, writers: list[Writer]) -> None:
    do = asyncio.to_thread
    await _goes_on(writers)
    killed = await do(cluster.master_of, table, 0)
    cluster.nodes[killed].kill_now()
    await _goes_on(writers)
    await do(cluster.nodes[killed].start)
    paused = await do(cluster.master_of, table, 1)
    cluster.nodes[paused].pause()
    await _goes_on(writers)
    cluster.nodes[paused].resume()
    cut = await do(cluster.master_of, table, 2)
    await do(cluster.cut_from_meta, cut)
    await _goes_on(writers)
    await do(cluster.heal)
    cut = await do(cluster.master_of, table, 3)
    await do(cluster.cut_from_nodes, cut)
    await asyncio.sleep(1)
    await do(cluster.heal)
    await _goes_on(writers)


async def _read_everywhere(
    cluster: KvProcesses, login: Login, keys: list[str]
) -> list[dict[str, object]]:
    """What each node's replicas have."""
    found = []
    connections = KvConnections(login)
    try:
        for name in (node.name for node in cluster.nodes.values()):
            reads = [("GET", key) for key in keys]
            _, *answers = await connections.ask(cluster.ports[name][0], ("READONLY",), *reads)
            found.append(dict(zip(keys, answers, strict=True)))
    finally:
        connections.close()
    return found


def test_nothing_acked_is_lost_or_counted_twice_and_replicas_are_equal(
    cluster: KvProcesses,
) -> None:
    config = TableConfig(partitions=PARTITIONS, min_replicas=2)
    login = cluster.create_table("safe", config)

    async def main() -> None:
        writers = [Writer(cluster, login, f"w{number}") for number in range(WRITERS)]
        async with asyncio.TaskGroup() as group:
            for writer in writers:
                group.create_task(writer.run())
            await _suffer(cluster, "safe", writers)
            for writer in writers:
                writer.is_writing = False
        await asyncio.to_thread(cluster.wait_equal, "safe")
        expected = {writer.counter: b"%d" % writer.count for writer in writers}
        for writer in writers:
            expected |= {key: value.encode() for key, value in writer.keys().items()}
        for found in await _read_everywhere(cluster, login, [*expected]):
            assert found == expected
        longest_s = max(writer.longest_s for writer in writers)
        print(f"{len(expected)} keys, silent for {longest_s:.1f} s at most")

    run(main())


def _key_of(partition: int) -> str:
    return next(
        f"k{n}" for n in range(1000) if slot_of(b"k%d" % n) * PARTITIONS // 16384 == partition
    )


class _Probe:
    """Asks all nodes for writes of one key, and notes who took the last ones."""

    def __init__(self, cluster: KvProcesses, login: Login) -> None:
        self._cluster = cluster
        self._connections = KvConnections(login)
        self.taken: list[int] = []
        """By whom, in order."""

    async def run(self, until: Callable[[list[int]], bool]) -> None:
        """Until what it has noted is enough."""
        try:
            async with asyncio.timeout(AGAIN_S_MAX), asyncio.TaskGroup() as tasks:
                for number in self._cluster.nodes:
                    tasks.create_task(self._ask(number, until))
        finally:
            self._connections.close()

    async def _ask(self, number: int, until: Callable[[list[int]], bool]) -> None:
        port = self._cluster.ports[self._cluster.nodes[number].name][0]
        while not until(self.taken):
            with contextlib.suppress(OSError):
                (answer,) = await self._connections.ask(port, ("SET", _key_of(0), str(number)))
                if not isinstance(answer, AnswerError):
                    self.taken.append(number)
            await asyncio.sleep(0.02)


def _both_take(taken: list[int], old: int) -> bool:
    """Whether the old master has gone on after another one began."""
    others = [place for place, number in enumerate(taken) if number != old]
    return bool(others) and old in taken[others[0] :]


@pytest.mark.parametrize("on_meta_loss", ["stop", "serve"])
def test_a_master_that_meta_does_not_reach_stops_unless_its_table_serves_on(
    cluster: KvProcesses, on_meta_loss: str
) -> None:
    config = TableConfig(partitions=PARTITIONS, on_meta_loss=on_meta_loss)  # type: ignore[arg-type]
    login = cluster.create_table(f"{on_meta_loss}-table", config)

    async def main() -> None:
        old = await asyncio.to_thread(cluster.master_of, login.table, 0)
        probe = _Probe(cluster, login)
        await asyncio.to_thread(cluster.cut_from_meta, old)
        try:
            if on_meta_loss == "stop":
                await probe.run(lambda taken: len(taken) - taken.count(old) >= LATER_WRITES)
            else:
                await probe.run(lambda taken: _both_take(taken, old))
        finally:
            await asyncio.to_thread(cluster.heal)
        assert _both_take(probe.taken, old) == (on_meta_loss == "serve"), probe.taken

    run(main())
    cluster.wait_equal(login.table)


def test_nothing_of_a_table_that_was_dropped_meanwhile_comes_back(cluster: KvProcesses) -> None:
    login = cluster.create_table("orders")
    client = cluster.redis(login)
    for number in range(50):
        client.set(f"old{number}", number)
    client.close()
    cluster.wait_equal("orders")
    cluster.nodes[2].kill_now()
    cluster.ask(lambda meta: meta.drop_table("orders"))
    cluster.wait_down(2)
    login = cluster.create_table("orders", TableConfig(partitions=PARTITIONS, replicas=2))
    client = cluster.redis(login)
    client.set("new", 1)
    cluster.nodes[2].start()
    incarnation = cluster.topology().tables["orders"].incarnation
    assert [client.get(f"old{number}") for number in range(50)] == [None] * 50
    assert client.get("new") == b"1"
    client.close()
    present = {copy.table for copy in cluster.status(2).copies}
    assert "orders" not in present
    engines = cluster.nodes[2].folder / "engines"
    known = {table.incarnation for table in cluster.topology().tables.values()} - {incarnation}
    deadline = time.monotonic() + REMOVED_S_MAX
    while not {int(path.name.partition("-")[0]) for path in engines.iterdir()} <= known:
        assert time.monotonic() < deadline, "what is left of the old table stays"
        time.sleep(0.05)
