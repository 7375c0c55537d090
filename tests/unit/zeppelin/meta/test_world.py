"""Leaders, nodes and writers with faults: one master at a time, and no write lost that must not be.

Mutants of the rules and plans are planted, and each is found.
"""

from collections.abc import Callable
from typing import Any

import pytest

from raftwood.base.errors import Conflict
from raftwood.zeppelin.meta import failover, planning
from raftwood.zeppelin.meta.draft import Draft
from raftwood.zeppelin.meta.heard import Heard, Reign
from raftwood.zeppelin.meta.queries import Lease
from raftwood.zeppelin.meta.state_machine import MetaMachine
from raftwood.zeppelin.meta.view import View
from tests.kits.zeppelin.meta.world.mutants import (
    frozen_before_the_freeze,
    frozen_with_offsets_from_before,
)
from tests.kits.zeppelin.meta.world.world import SETTINGS, World, Wrong

FAULTS_MS = 20_000
QUIET_MS = 12_000


def live_through(
    seed: int, *, faults_ms: int = FAULTS_MS, more_faults: Callable[[World], None] | None = None
) -> World:
    world = World(seed)
    world.start()
    world.run(300)
    world.create_tables()
    world.run(2_000)
    pace_ms = world.rng.choice([150, 400, 1_000])
    end_ms = world.now_ms + faults_ms
    while world.now_ms < end_ms:
        world.run(world.rng.uniform(0, 2 * pace_ms))
        world.fault()
        if more_faults is not None:
            more_faults(world)
    world.heal()
    world.run(QUIET_MS)
    world.check_settled()
    return world


@pytest.mark.parametrize("seed", range(8))
def test_one_master_serves_and_nothing_is_lost_whatever_happens(seed: int) -> None:
    world = live_through(seed)
    assert world.writes > 1_000
    assert world.failovers > 0
    assert world.handovers > 0


@pytest.mark.parametrize("seed", [1, 3])
def test_nothing_is_lost_where_nodes_leave(seed: int) -> None:
    world = live_through(seed, more_faults=World.leave)
    assert world.writes > 1_000
    assert world.handovers > 5


def _offset_of_another_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        View, "offset", lambda self, node, place: _any(self.heard(node).offsets, place.key)
    )


def _any(offsets: dict[Any, Any], key: Any) -> Any:
    others = [each for each in offsets if each != key]
    return offsets[others[0]] if others else offsets.get(key)


def _stale_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failover, "_candidates_by_lag", lambda _place, reports, _lagging: reports)


def _no_quorum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failover, "_candidates_by_quorum", lambda _place, reports: reports)
    monkeypatch.setattr(failover, "_has_reported", lambda _view, _place, _node: True)


def _judged_by_arrival(monkeypatch: pytest.MonkeyPatch) -> None:
    """Offsets count as of when they were heard, not of when they were looked at."""
    monkeypatch.setattr(Reign, "_after_ms", lambda _self, _heartbeat: 1 << 60)


def _global_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    def planned(self: Draft, table: str, number: int, epoch: int) -> Any:
        if self._before.epoch != epoch:
            raise Conflict("it has moved")
        return self.partition(table, number)

    monkeypatch.setattr(Draft, "planned", planned)


def _judges_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def noted(self: Reign, node: Any, now_ms: int) -> Heard:
        heard = self.nodes.get(node.id)
        if heard is None or heard.run != node.run:
            return Heard(node.run, now_ms - SETTINGS.down_ms)
        return heard

    monkeypatch.setattr(Reign, "_noted_node", noted)


def _lease_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease that is as long as it takes to be declared down."""
    hear = MetaMachine._hear

    def mutant(self: Any, heartbeat: Any) -> Any:
        lease = hear(self, heartbeat)
        longer_ms = lease.lease_ms and SETTINGS.down_ms + 400
        return Lease(longer_ms, lease.heartbeat_ms, lease.delta, lease.moment)

    monkeypatch.setattr(MetaMachine, "_hear", mutant)


def _proven_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a replica is removed the others are taken to have all that it had acked."""
    monkeypatch.setattr(failover, "_is_proven", lambda *_, **__: True)


def _unfit_masters_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "is_unfit", lambda _view, _place: False)


MUTANTS: dict[Callable[[pytest.MonkeyPatch], None], int] = {
    _offset_of_another_partition: 0,
    _stale_replica: 8,
    _no_quorum: 0,
    _judged_by_arrival: 13,
    _global_epoch: 0,
    _judges_at_once: 15,
    _lease_too_long: 15,
    frozen_before_the_freeze: 0,
    frozen_with_offsets_from_before: 10,
    _unfit_masters_stay: 0,
    _proven_at_once: 3,
}
"""Each with the seed from which on it is looked for."""


@pytest.mark.parametrize("plant", MUTANTS, ids=lambda each: each.__name__.strip("_"))
def test_a_planted_mutant_is_caught(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    for seed in range(MUTANTS[plant], MUTANTS[plant] + 20):
        try:
            live_through(seed)
        except Wrong:
            return
    pytest.fail("nobody has noticed")
