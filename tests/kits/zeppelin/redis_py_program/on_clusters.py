"""Commands on all keys, on the cluster, and reads from slaves."""

import asyncio
import functools
from typing import Any

import redis
from redis.asyncio.cluster import RedisCluster as AsyncRedisCluster
from redis.cluster import LoadBalancingStrategy, RedisCluster

from tests.kits.zeppelin.redis_py_program.given import VERSION, Given, refused, until

KEYS = 300
ALL = RedisCluster.PRIMARIES


def whole(given: Given) -> None:
    expected = sorted(b"whole%d" % number for number in range(KEYS))
    with given.cluster() as client:
        assert client.flushdb()
        with client.pipeline() as pipeline:
            for key in expected:
                pipeline.set(key, 1)
            pipeline.execute()
        assert sorted(client.scan_iter(count=37)) == expected
        assert sorted(client.scan_iter(match="whole?")) == expected[:1] + sorted(
            b"whole%d" % number for number in range(1, 10)
        )
        assert list(client.scan_iter(_type="hash")) == []
        assert sorted(client.keys("whole*", target_nodes=ALL)) == expected
        assert client.dbsize(target_nodes=ALL) == KEYS
        assert client.randomkey() in expected
        assert client.flushall()
        assert client.dbsize(target_nodes=ALL) == 0
        assert client.randomkey() is None


def whole_tables(given: Given) -> None:
    """What our own tools read tables by is for users as well."""
    with given.plain("foo") as client:
        client.set("foo", "bar")
        assert client.execute_command("PARTITIONS")
        assert client.execute_command("BINLOG", "PARTITIONS")
        assert client.execute_command("CHECKPOINT", "LIST") == []
        assert client.execute_command("FENCE", "nobody") == -1
        read = ("CHECKPOINT", "READ", "none", "", 1000)
        refused(redis.ResponseError, "NOCHECKPOINT", client.execute_command, *read)


def cluster_commands(given: Given) -> None:
    with given.cluster() as client:
        info = client.cluster_info()
        assert (info["cluster_state"], info["cluster_slots_ok"]) == ("ok", "16384")
        known = client.cluster_nodes()
        assert len(known) == given.nodes
        covered = sum(
            int(last) - int(first) + 1 for node in known.values() for first, last in node["slots"]
        )
        assert covered == 16384
        assert len(client.get_primaries()) == sum(bool(node["slots"]) for node in known.values())
        ranges = client.cluster_slots()
        assert sum(last - first + 1 for first, last in ranges) == 16384
        assert len(client.cluster_shards()) >= 1
        node = client.get_node_from_key("foo")
        assert client.cluster_myid(node).decode() in {each["node_id"] for each in known.values()}
        if hasattr(client, "cluster_myshardid"):
            assert len(client.cluster_myshardid(target_nodes=node)) == 40
        assert client.cluster_keyslot("foo") == 12182
        client.set("foo", "bar")
        assert client.cluster_countkeysinslot(12182) == 1
        assert client.cluster_get_keys_in_slot(12182, 10) in ([b"foo"], ["foo"])
        refused(redis.ResponseError, "unknown subcommand", client.cluster_links, node)


def _is_there(client: Any, number: int) -> bool:
    return bool(client.get(f"r{number}") == b"%d" % number)


def reads_from_slaves(given: Given) -> None:
    ways: list[dict[str, Any]] = [{"read_from_replicas": True}]
    ways += [{"load_balancing_strategy": each} for each in LoadBalancingStrategy]
    with given.cluster() as writer:
        writer.flushdb()
        for number in range(30):
            writer.set(f"r{number}", number)
    for way in ways:
        with given.cluster(**way) as client:
            slot = client.keyslot("r1")
            assert len(client.nodes_manager.slots_cache[slot]) == given.nodes
            for number in range(30):
                is_there = functools.partial(_is_there, client, number)
                for _ in range(given.nodes):
                    until(is_there)
            assert client.set("r0", 0)
            assert client.dbsize(target_nodes=ALL) == 30
            assert len(set(client.scan_iter())) == len(list(client.scan_iter())) == 30


def transactions_of_clusters(given: Given) -> None:
    if VERSION < 6:
        return  # its cluster client has none
    with given.cluster() as client:
        with client.pipeline(transaction=True) as pipeline:
            pipeline.set("{t}n", 5).incr("{t}n").get("{t}n")
            assert pipeline.execute()[1:] == [6, b"6"]
        with client.pipeline(transaction=True) as pipeline:
            pipeline.watch("{t}n")
            value = int(pipeline.get("{t}n"))
            pipeline.multi()
            pipeline.set("{t}n", value + 1)
            assert pipeline.execute() in ([True], [b"OK"])
        with client.pipeline(transaction=True) as pipeline:
            pipeline.watch("{t}n")
            client.set("{t}n", "taken")
            pipeline.multi()
            pipeline.set("{t}n", "mine")
            refused(redis.WatchError, "", pipeline.execute)
        assert client.get("{t}n") == b"taken"
        with client.pipeline(transaction=True) as pipeline:
            pipeline.set("one", 1).set("another", 2)
            refused(redis.exceptions.CrossSlotTransactionError, "", pipeline.execute)


def asynchronous(given: Given) -> None:
    async def main() -> None:
        client = AsyncRedisCluster(
            host=given.host,
            port=given.port,
            username=given.user,
            password=given.password,
            protocol=given.protocol,
        )
        async with client:
            await asyncio.gather(*(client.set(f"a{number}", number) for number in range(50)))
            found = await asyncio.gather(*(client.get(f"a{number}") for number in range(50)))
            assert found == [b"%d" % number for number in range(50)]
            async with client.pipeline() as pipeline:
                for number in range(50):
                    pipeline.incr(f"a{number}")
                assert await pipeline.execute() == list(range(1, 51))
            assert await client.incrbyfloat("a0", 1.5) == 2.5
            assert await client.delete(*(f"a{number}" for number in range(50))) == 50

    asyncio.run(main())


SCENARIOS = (
    whole,
    whole_tables,
    cluster_commands,
    reads_from_slaves,
    transactions_of_clusters,
    asynchronous,
)
