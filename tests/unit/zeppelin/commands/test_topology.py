"""The topology in the words of Redis Cluster: neighbours joined, the lost left out."""

from raftwood.zeppelin.commands.cluster import (
    info_lines,
    nodes_answer,
    redis_id,
    shards_answer,
    slot_ranges,
    slots_answer,
)
from raftwood.zeppelin.model import NodeId, Partition, TableConfig, Topology
from raftwood.zeppelin.resp import RESP3
from raftwood.zeppelin.slots import SLOTS
from tests.kits.zeppelin.decoding import decoded
from tests.kits.zeppelin.static_view import TABLE, node, topology_of

A, B, C = NodeId("a"), NodeId("b"), NodeId("c")


def topology(*partitions: Partition) -> Topology:
    config = TableConfig(partitions=len(partitions), replicas=2)
    known = [node("a", 7001), node("b", 7002), node("c", 7003, is_up=False)]
    return topology_of(known, partitions, config)


WORLD = topology(
    Partition(epoch=1, master=A, slaves=(B,)),
    Partition(epoch=1, master=A, slaves=(B, C)),
    Partition(epoch=1, master=None, slaves=(A,)),
    Partition(epoch=1, master=A, slaves=(B,)),
)


def test_neighbours_are_one_range_and_a_gap_parts_them() -> None:
    assert [tuple(each) for each in slot_ranges(WORLD, WORLD.tables[TABLE])] == [
        (0, 8191, A, (B,)),
        (12288, 16383, A, (B,)),
    ]


def test_slots_tell_masters_first() -> None:
    told = decoded(slots_answer(WORLD, WORLD.tables[TABLE], reads_slaves=False))
    assert told[0] == [
        0,
        8191,
        [b"127.0.0.1", 7001, redis_id(A).encode(), []],
        [b"127.0.0.1", 7002, redis_id(B).encode(), []],
    ]


def test_slots_tell_of_masters_as_slaves_only_to_those_who_read_from_slaves() -> None:
    world = topology(
        Partition(epoch=1, master=A, slaves=(B,)),
        Partition(epoch=1, master=B, slaves=(A,)),
        Partition(epoch=1, master=A, slaves=(B,)),
        Partition(epoch=1, master=B, slaves=(A,)),
    )
    told = decoded(slots_answer(world, world.tables[TABLE], reads_slaves=False))
    nodes_told = [[each[1] for each in row[2:]] for row in told]
    assert nodes_told == [[7001], [7002], [7001], [7002]]
    told = decoded(slots_answer(world, world.tables[TABLE], reads_slaves=True))
    nodes_told = [[each[1] for each in row[2:]] for row in told]
    assert nodes_told == [[7001], [7002], [7001, 7002], [7002, 7001], [7001, 7002], [7002, 7001]]
    slots_told = [slot for row in told for slot in range(row[0], row[1] + 1)]
    assert sorted(slots_told) == list(range(SLOTS))


def test_shards_gather_the_ranges_of_the_same_nodes() -> None:
    told = decoded(shards_answer(WORLD, WORLD.tables[TABLE], RESP3))
    assert [each[b"slots"] for each in told] == [[0, 8191, 12288, 16383]]
    assert [each[b"role"] for each in told[0][b"nodes"]] == [b"master", b"replica"]


def test_nodes_have_one_role_each() -> None:
    lines = decoded(nodes_answer(WORLD, WORLD.tables[TABLE], B)).decode().splitlines()
    words = [line.split(" ") for line in lines]
    assert [line[0] for line in words] == [redis_id(A), redis_id(B)]
    assert words[0][1:4] == ["127.0.0.1:7001@7001", "master", "-"]
    assert words[0][8:] == ["0-8191", "12288-16383"]
    assert words[1][2:4] == ["myself,slave", redis_id(A)]


def test_a_cluster_with_slots_that_nobody_serves_is_not_well() -> None:
    told = dict(line.split(":") for line in info_lines(WORLD, WORLD.tables[TABLE]).split())
    assert told["cluster_state"] == "fail"
    assert told["cluster_slots_assigned"] == str(3 * 4096)
    assert told["cluster_size"] == "1"
