"""What clients see of a table that doubles: nothing, but that watched keys count as touched."""

import asyncio
from typing import Any

from raftwood.zeppelin.model import PartitionId
from raftwood.zeppelin.node.stored_partition import StoredPartition
from raftwood.zeppelin.slots import SLOTS, slot_of
from tests.kits.zeppelin.node_cluster import TABLE, Cluster, scene
from tests.kits.zeppelin.simulation.clients import Connection

KEYS = [f"key{number}" for number in range(60)]


async def double(cluster: Cluster) -> None:
    await cluster.meta.client.double_partitions(TABLE)
    await cluster.simulation.wait_until(
        lambda: not cluster.meta.topology.tables[TABLE].is_doubling, timeout_s=5
    )
    await cluster.meta.client.wait_applied(cluster.meta.topology.epoch)


async def connected(cluster: Cluster) -> Connection:
    connection, answer = await cluster.connect(cluster.master.name)
    assert answer == "OK"
    return connection


async def fill(connection: Connection) -> None:
    assert await connection.ask(*(("SET", key, "1") for key in KEYS)) == ["OK"] * len(KEYS)


async def one(connection: Connection, *words: str) -> Any:
    (answer,) = await connection.ask(words)
    return answer


def stores(cluster: Cluster) -> list[StoredPartition]:
    """Of both partitions, on both nodes."""
    incarnation = cluster.meta.topology.tables[TABLE].incarnation
    found = []
    for node in cluster.nodes.values():
        for number in range(2):
            replica = node.replica(PartitionId(incarnation, number))
            assert replica is not None
            assert isinstance(replica.store, StoredPartition)
            found.append(replica.store)
    return found


def test_keys_are_found_scanned_and_counted_before_and_after_they_are_trimmed() -> None:
    async def body(cluster: Cluster) -> None:
        connection = await connected(cluster)
        await fill(connection)
        await double(cluster)
        for _ in range(2):
            assert await connection.ask(*(("GET", key) for key in KEYS)) == [b"1"] * len(KEYS)
            assert await one(connection, "DBSIZE") == len(KEYS)
            assert sorted(await one(connection, "KEYS", "*")) == sorted(map(str.encode, KEYS))
            await cluster.simulation.wait_until(
                lambda: all(store.engine.state.is_trimmed for store in stores(cluster))
            )
        (told,) = await one(connection, "CLUSTER", "SLOTS")
        assert told[:2] == [0, SLOTS - 1], "one node has both"
        assert await one(connection, "FLUSHDB") == "OK"
        assert await one(connection, "DBSIZE") == 0

    scene(body)


def test_a_scan_tells_each_key_although_the_table_doubles_meanwhile() -> None:
    async def body(cluster: Cluster) -> None:
        connection = await connected(cluster)
        await fill(connection)
        cursor, found = b"0", []
        for page in range(100):
            cursor, keys = await one(connection, "SCAN", cursor.decode(), "COUNT", "7")
            found += keys
            if cursor == b"0":
                break
            if page == 2:
                await double(cluster)
        assert set(found) == set(map(str.encode, KEYS))

    scene(body)


def test_a_batch_that_is_sent_again_after_a_split_is_done_once() -> None:
    async def body(cluster: Cluster) -> None:
        connection = await connected(cluster)
        words = [word for key in KEYS for word in (key, "1", "0")]
        batch = (("ONCE", "me", "1"), ("BULK", "INCR", *words))
        assert await connection.ask(*batch) == ["OK", "OK"]
        await double(cluster)
        assert await connection.ask(*batch) == ["OK", "OK"]
        assert await one(connection, "BULK", "GET", *KEYS) == [b"1"] * len(KEYS)

    scene(body)


def test_watched_keys_count_as_touched() -> None:
    async def body(cluster: Cluster) -> None:
        watching = [(await connected(cluster), key) for key in (KEYS[0], KEYS[1])]
        for connection, key in watching:
            assert await one(connection, "WATCH", key) == "OK"
        await double(cluster)
        for connection, key in watching:
            answers = await connection.ask(("MULTI",), ("SET", key, "2"), ("EXEC",))
            assert answers == ["OK", "QUEUED", None]

    scene(body)


def test_requests_wait_for_a_split_and_go_to_the_half_that_has_their_keys() -> None:
    async def body(cluster: Cluster) -> None:
        connection = await connected(cluster)
        await fill(connection)
        doubling = asyncio.create_task(double(cluster))
        rounds = 0
        while not doubling.done():
            answers = await connection.ask(*(("INCR", key) for key in KEYS))
            rounds += 1
            assert answers == [rounds + 1] * len(KEYS)
        await doubling
        assert rounds > 2
        table = cluster.meta.topology.tables[TABLE]
        for store in stores(cluster):
            slots = table.slots_of(store.home.partition.number)
            found = [key for key, _ in store.scan(after=None, now_ms=0)]
            assert sorted(found) == sorted(
                key.encode() for key in KEYS if slot_of(key.encode()) in slots
            )

    scene(body)


def test_a_node_that_was_away_has_both_halves_when_it_comes_back() -> None:
    async def body(cluster: Cluster) -> None:
        connection = await connected(cluster)
        await fill(connection)
        slave = next(node for node in cluster.nodes.values() if node is not cluster.master)
        slave.break_down(loses_power=True)
        await asyncio.sleep(2)
        await double(cluster)
        assert await connection.ask(*(("INCR", key) for key in KEYS)) == [2] * len(KEYS)
        slave.start()
        await cluster.simulation.wait_until(lambda: slave.server is not None)

        def are_equal() -> bool:
            found = [
                (store.epoch, store.last_sequence, [*store.scan(after=None, now_ms=0)])
                for store in stores(cluster)
            ]
            return found[:2] == found[2:]

        await cluster.simulation.wait_until(are_equal)

    scene(body)
