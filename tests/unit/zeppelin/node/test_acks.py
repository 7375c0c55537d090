"""When writes are done: by the master's own progress and by that of its slaves."""

import random

import pytest

from raftwood.zeppelin.model import Ack, NodeId
from raftwood.zeppelin.node.acks import Acks
from raftwood.zeppelin.node.seams import Record
from tests.zeppelin_kit.memory_store import MemoryPartitionStore


def store_with(records: int) -> MemoryPartitionStore:
    store = MemoryPartitionStore(is_written_at_once=False)
    for sequence in range(1, records + 1):
        store.commit(Record(1, sequence, ()))
    return store


@pytest.mark.parametrize(("ack", "reached"), [("memory", 5), ("written", 3), ("synced", 2)])
def test_a_master_alone_acks_what_its_table_asks_for(ack: Ack, reached: int) -> None:
    store = store_with(5)
    acks = Acks(store, ack=ack, min_replicas=1)
    store.sync(2)
    store.write(3)
    assert acks.reached == reached
    assert acks.is_immediate is (ack == "memory")


def test_so_many_slaves_have_to_have_a_write() -> None:
    acks = Acks(store_with(9), ack="memory", min_replicas=3)
    acks.replica_has(NodeId("a"), 9)
    assert acks.reached == 0
    acks.replica_has(NodeId("b"), 4)
    assert acks.reached == 4
    acks.replica_has(NodeId("c"), 7)
    assert acks.reached == 7
    acks.replica_left(NodeId("a"))
    acks.replica_has(NodeId("b"), 6)
    assert acks.reached == 7
    assert acks.replicas_with(6) == 2


def test_everyone_who_waits_is_called_once_and_in_time() -> None:
    source = random.Random(3)
    store = store_with(100)
    acks = Acks(store, ack="synced", min_replicas=1)
    called: list[int] = []
    expected = source.choices(range(1, 101), k=500)
    for sequence in expected:
        acks.wait(sequence, lambda sequence=sequence: called.append(sequence))  # type: ignore[misc]
    synced = 0
    while synced < 100:
        synced = min(synced + source.randint(0, 9), 100)
        store.sync(synced)
        assert sorted(called) == sorted(each for each in expected if each <= synced)


def test_nobody_is_called_after_the_end() -> None:
    store = store_with(1)
    acks = Acks(store, ack="synced", min_replicas=1)
    acks.wait(1, lambda: pytest.fail("called"))
    acks.close()
    store.sync(1)
