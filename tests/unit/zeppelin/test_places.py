"""Where a table's partitions stand among its slots, before, while and after it doubles."""

import random

import pytest

from raftwood.zeppelin.model import NodeId, Parent, Partition, Table, TableConfig
from raftwood.zeppelin.slots import SLOTS, slots_of_place


def table(partitions: int) -> Table:
    made = tuple(Partition(epoch=1, master=NodeId("a")) for _ in range(partitions))
    config = TableConfig(partitions=partitions, replicas=1)
    return Table(name="t", incarnation=1, config=config, partitions=made)


def doubling(before: Table) -> Table:
    config = TableConfig(partitions=2 * before.config.partitions, replicas=1)
    return Table(name="t", incarnation=1, config=config, partitions=before.partitions)


def with_split(before: Table, number: int) -> Table:
    parent = Parent(number=number, epoch=1, sequence=7)
    child = Partition(epoch=2, master=NodeId("a"), parent=parent)
    return Table(
        name="t", incarnation=1, config=before.config, partitions=(*before.partitions, child)
    )


def check(found: Table) -> None:
    """Each slot is one partition's, and each partition's slots are neighbours."""
    of_slots = [found.partition_of_slot(slot) for slot in range(SLOTS)]
    for number, slots in enumerate(found.slots):
        assert [slot for slot, each in enumerate(of_slots) if each == number] == list(slots)
    assert set(of_slots) == set(range(len(found.partitions)))


@pytest.mark.parametrize("partitions", [1, 3, 16, 100])
def test_a_table_that_was_never_doubled_has_each_partition_at_its_own_place(
    partitions: int,
) -> None:
    made = table(partitions)
    assert made.places == tuple(range(partitions))
    assert made.slots == tuple(slots_of_place(each, partitions) for each in range(partitions))
    assert not made.is_doubling


def test_a_table_that_doubles_has_each_partition_at_two_neighbouring_places_at_first() -> None:
    before = table(3)
    after = doubling(before)
    assert after.places == (0, 0, 1, 1, 2, 2)
    assert after.slots == before.slots
    assert after.is_doubling


def test_what_is_split_off_has_the_second_place() -> None:
    after = with_split(with_split(doubling(table(3)), 2), 0)
    assert after.places == (0, 4, 1, 1, 2, 3)
    check(after)


@pytest.mark.parametrize("seed", range(5))
def test_partitions_have_all_slots_however_often_and_in_whatever_order_they_are_split(
    seed: int,
) -> None:
    chance = random.Random(seed)
    found = table(chance.choice([1, 2, 3, 5]))
    for _ in range(3):
        order = list(range(len(found.partitions)))
        chance.shuffle(order)
        found = doubling(found)
        for number in order:
            slots = found.slots_of(number)
            found = with_split(found, number)
            child = found.slots_of(len(found.partitions) - 1)
            assert [*found.slots_of(number), *child] == list(slots)
        check(found)
        assert not found.is_doubling
        assert sorted(found.places) == list(range(len(found.partitions)))
