"""Replicas that move amid faults: bounds are kept, every migration ends, and nothing is lost.

Mutants of the plans are planted, and each is found.
"""

from collections.abc import Callable
from typing import Any

import pytest

from raftwood.zeppelin.meta import handover, migration
from raftwood.zeppelin.meta.changes import CancelHandover
from raftwood.zeppelin.meta.heard import Heartbeat, Reign
from raftwood.zeppelin.meta.migration import Moves
from raftwood.zeppelin.meta.view import Place, View
from raftwood.zeppelin.model import EPOCH_NONE
from tests.kits.zeppelin.meta.world.moving import MovingWorld
from tests.kits.zeppelin.meta.world.mutants import frozen_before_the_freeze
from tests.kits.zeppelin.meta.world.world import Wrong

QUIET_MS = 15_000


def live_through(seed: int, *, faults_ms: int = 20_000) -> MovingWorld:
    world = MovingWorld(seed)
    world.start()
    world.run(300)
    world.create_tables()
    world.run(2_000)
    pace_ms = world.rng.choice([150, 400, 1_000])
    end_ms = world.now_ms + faults_ms
    while world.now_ms < end_ms:
        world.run(world.rng.uniform(0, 2 * pace_ms))
        if world.now_ms < world.calm_until_ms:
            continue
        for _ in range(world.rng.randint(2, 4)):
            world.order()
        if world.rng.random() < 0.4:
            world.fault()
    world.heal()
    world.run(QUIET_MS)
    world.check_settled()
    return world


@pytest.mark.parametrize("seed", range(4))
def test_replicas_move_and_nothing_is_lost_whatever_happens(seed: int) -> None:
    world = live_through(seed)
    assert world.writes > 500
    assert world.moved > 0


def _judged_by_old_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was long on its way is believed, and a slave that has as much has enough."""
    hear, has_all = Reign.hear, handover._has_all

    def mutant(self: Reign, heartbeat: Heartbeat, now_ms: int) -> bool:
        heard = self.nodes.get(heartbeat.node)
        epoch = EPOCH_NONE
        if heard is not None:
            heard.after_ms, epoch = None, heard.applied_epoch
        counts = hear(self, heartbeat, now_ms)
        if heard is not None and counts:
            heard.applied_epoch = max(epoch, heard.applied_epoch)
        return counts

    def has_enough(view: View, place: Place, target: Any, *, master: Any) -> bool:
        frozen, reached = view.offset(master, place), view.offset(target, place)
        if frozen is None or reached is None or reached.position < frozen.position:
            return has_all(view, place, target, master=master)
        epoch = min(view.heard(node).applied_epoch for node in (master, target))
        return epoch >= place.partition.epoch

    monkeypatch.setattr(Reign, "hear", mutant)
    monkeypatch.setattr(handover, "_has_all", has_enough)


def _never_unstuck(monkeypatch: pytest.MonkeyPatch) -> None:
    step = handover.next_step

    def mutant(view: View, place: Place) -> Any:
        change = step(view, place)
        return None if isinstance(change, CancelHandover) else change

    monkeypatch.setattr(handover, "next_step", mutant)


def _slowed_down_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migration, "_is_slow_in_vain", lambda _view, _place: False)


def _forgotten_by_the_next_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has begun a migration sees it through, and nobody else does."""
    step, begun = migration.next_step, Moves.begun
    own: dict[int, dict[tuple[str, int], None]] = {}

    def mutant(view: View, place: Place) -> Any:
        is_own = (place.table.name, place.number) in own.get(view.reign.term, {})
        return step(view, place) if is_own else None

    def beginning(self: Moves) -> Any:
        changes = begun(self)
        for each in changes:
            own.setdefault(self._view.reign.term, {})[each.table, each.partition] = None
        return changes

    monkeypatch.setattr(migration, "next_step", mutant)
    monkeypatch.setattr(Moves, "begun", beginning)


def _source_gone_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migration, "_can_end", lambda _view, _place: True)


def _source_gone_by_what_the_target_told_of_another_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The target had a replica of this partition once, or follows nobody yet."""

    def is_well(view: View, place: Place, target: Any) -> bool:
        return view.offset(target, place) is not None and view.is_up(target)

    monkeypatch.setattr(migration, "_is_well", is_well)


def _any_number_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Moves, "_count", lambda _self, _master, _target: None)


def _nodes_without_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    def count(self: Moves, master: Any, target: Any) -> None:  # noqa: ARG001
        self._under_way += 1

    monkeypatch.setattr(Moves, "_count", count)


MUTANTS: dict[Callable[[pytest.MonkeyPatch], None], int] = {
    frozen_before_the_freeze: 1,
    _judged_by_old_heartbeats: 7,
    _never_unstuck: 1,
    _slowed_down_for_ever: 3,
    _forgotten_by_the_next_leader: 1,
    _source_gone_too_early: 0,
    _source_gone_by_what_the_target_told_of_another_time: 0,
    _any_number_at_once: 0,
    _nodes_without_a_bound: 0,
}
"""Each with the seed from which on it is looked for."""


@pytest.mark.parametrize("plant", MUTANTS, ids=lambda each: each.__name__.strip("_"))
def test_a_planted_mutant_is_caught(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    for seed in range(MUTANTS[plant], MUTANTS[plant] + 10):
        try:
            live_through(seed)
        except Wrong:
            return
    pytest.fail("nobody has noticed")
