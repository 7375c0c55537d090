"""Real nodes under kills, pauses and cut links: what was acked stays, once, on all replicas."""

import asyncio
import contextlib
import time
from collections.abc import Iterator

import pytest

from raftwood.zeppelin.model import TableConfig
from raftwood.zeppelin.slots import slot_of
from tests.kits.running import run
from tests.kits.zeppelin.decoding import AnswerError
from tests.kits.zeppelin.processes import KvProcesses, Login, kv_processes
from tests.kits.zeppelin.writers import KvConnections, Writer

PARTITIONS = 4
WRITERS = 6
AGAIN_S_MAX = 20.0
REMOVED_S_MAX = 20.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KvProcesses]:
    with kv_processes(tmp_path_factory.mktemp("kv"), has_proxies=True) as cluster:
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


async def _served_by(
    cluster: KvProcesses, login: Login, *, until_s: float
) -> dict[int, list[float]]:
    """When each node has taken a write for one key."""
    connections = KvConnections(login)
    taken: dict[int, list[float]] = {number: [] for number in cluster.nodes}
    end = time.monotonic() + until_s

    async def ask(number: int) -> None:
        port = cluster.ports[cluster.nodes[number].name][0]
        while time.monotonic() < end:
            with contextlib.suppress(OSError):
                (answer,) = await connections.ask(port, ("SET", _key_of(0), str(number)))
                if not isinstance(answer, AnswerError):
                    taken[number].append(time.monotonic())
            await asyncio.sleep(0.02)

    try:
        await asyncio.gather(*(ask(number) for number in cluster.nodes))
    finally:
        connections.close()
    return taken


@pytest.mark.parametrize("on_meta_loss", ["stop", "serve"])
def test_a_master_that_meta_does_not_reach_stops_unless_its_table_serves_on(
    cluster: KvProcesses, on_meta_loss: str
) -> None:
    config = TableConfig(partitions=PARTITIONS, on_meta_loss=on_meta_loss)  # type: ignore[arg-type]
    login = cluster.create_table(f"{on_meta_loss}-table", config)

    async def main() -> None:
        old = await asyncio.to_thread(cluster.master_of, login.table, 0)
        await asyncio.to_thread(cluster.cut_from_meta, old)
        taken = await _served_by(cluster, login, until_s=4)
        await asyncio.to_thread(cluster.heal)
        (new,) = [number for number, times in taken.items() if times and number != old]
        assert taken[old]
        if on_meta_loss == "stop":
            assert taken[old][-1] < taken[new][0], "two masters took writes"
        else:
            assert taken[old][-1] > taken[new][0], "it did not go on"

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
    engines = cluster.nodes[2].folder.parent / "data" / "engines"
    known = {table.incarnation for table in cluster.topology().tables.values()} - {incarnation}
    deadline = time.monotonic() + REMOVED_S_MAX
    while not {int(path.name.partition("-")[0]) for path in engines.iterdir()} <= known:
        assert time.monotonic() < deadline, "what is left of the old table stays"
        time.sleep(0.05)


def test_slaves_keep_up_with_a_master_that_writes_as_fast_as_it_can(
    cluster: KvProcesses,
) -> None:
    login = cluster.create_table("fast", TableConfig(partitions=PARTITIONS))

    async def main() -> None:
        is_over = asyncio.Event()
        written = await asyncio.gather(
            *(_write_fast(cluster, login, partition, is_over) for partition in range(PARTITIONS)),
            _watch_lag(cluster, is_over),
        )
        *counts, lag_bytes = written
        await asyncio.to_thread(cluster.wait_equal, "fast")
        print(f"{sum(counts)} writes of 1 KiB, slaves at most {lag_bytes >> 10} KiB behind")
        assert lag_bytes < 16 << 20

    run(main())


async def _write_fast(
    cluster: KvProcesses, login: Login, partition: int, is_over: asyncio.Event
) -> int:
    """Pipelines of writes to the master, one after the other."""
    node = cluster.nodes[await asyncio.to_thread(cluster.master_of, "fast", partition)]
    key, value = _key_of(partition), "x" * 1024
    connections = KvConnections(login)
    count = 0
    while not is_over.is_set():
        sets = [("SET", f"{{{key}}}{count + each}", value) for each in range(50)]
        with contextlib.suppress(OSError):
            answers = await connections.ask(cluster.ports[node.name][0], *sets)
            count += answers.count("OK")
    connections.close()
    return count


async def _watch_lag(cluster: KvProcesses, is_over: asyncio.Event) -> int:
    """The most that a slave was behind, in some seconds."""
    most = 0
    for _ in range(12):
        await asyncio.sleep(0.1)
        for number in cluster.nodes:
            status = await asyncio.to_thread(cluster.status, number)
            most = max(most, *(copy.lag_bytes for copy in status.copies))
    is_over.set()
    return most
