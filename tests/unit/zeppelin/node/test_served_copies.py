"""What clients see of a node's copies follows its replicas and its lease, however these change."""

import random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from raftwood.zeppelin.model import NodeId, PartitionId
from raftwood.zeppelin.node.served_copies import ServedCopies
from raftwood.zeppelin.records import Acks
from raftwood.zeppelin.replication.replica import PartitionReplica, ReplicaRole, ServingLease


class World:
    """A node with some replicas, whose clock is turned by hand."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.lease = ServingLease()
        self.copies = ServedCopies(NodeId("n1"), cast("Any", self), self.lease)
        self.replicas: list[Any] = []
        for number in range(3):
            store = SimpleNamespace(recent={}, last_writes=None)
            replica = SimpleNamespace(
                partition=PartitionId(1, number),
                store=store,
                acks=Acks(is_immediate=True, count=lambda _: 0),
                epoch=1,
                role=ReplicaRole.MASTER,
                leads=False,
            )
            self.replicas.append(replica)
            self.change(replica)

    def monotonic_ns(self) -> int:
        return self.now_ns

    def wall_ns(self) -> int:
        return self.now_ns

    def change(self, replica: Any) -> None:
        may = replica.leads and self.lease.is_on(self.now_ns)
        replica.is_leading = replica.may_write = may
        self.copies.replica_changed(cast("PartitionReplica", replica))

    def look(self) -> list[bool]:
        """Which copies are served, for a client that asks now."""
        for replica in self.replicas:
            replica.is_leading = replica.may_write = replica.leads and self.lease.is_on(self.now_ns)
        self.copies.copies("t")
        return [copy.is_serving for copy in self.copies._copies.values()]

    def renew(self, *, leads_now: int | None = None) -> None:
        """A heartbeat is answered: a replica may begin to lead before the view hears of it."""
        self.lease.renew(asked_ns=self.now_ns, length_ns=10)
        if leads_now is not None:
            self.replicas[leads_now].leads = True
            self.change(self.replicas[leads_now])
        for replica in self.replicas:
            replica.is_leading = replica.may_write = replica.leads and self.lease.is_on(self.now_ns)
        self.copies.lease_changed()


def test_all_copies_are_served_again_though_one_leads_anew_as_the_lease_is_renewed() -> None:
    world = World()
    world.renew(leads_now=0)
    assert world.look() == [True, False, False]
    world.now_ns = 10
    assert world.look() == [False, False, False]
    world.renew(leads_now=1)
    assert world.look() == [True, True, False]


@pytest.mark.parametrize("seed", range(20))
def test_after_each_heartbeat_what_is_served_is_what_the_replicas_may(seed: int) -> None:
    rng, world = random.Random(seed), World()
    for _ in range(200):
        world.now_ns += rng.choice((0, 1, 4, 12))
        match rng.randrange(3):
            case 0:
                world.renew(leads_now=rng.choice((None, 0, 1, 2)))
                assert world.look() == [each.leads for each in world.replicas]
            case 1:
                replica = rng.choice(world.replicas)
                replica.leads = rng.random() < 0.5
                world.change(replica)
            case 2:
                is_on = world.lease.is_on(world.now_ns)
                assert world.look() == [each.leads and is_on for each in world.replicas]
