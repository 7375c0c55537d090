"""Bugs planted in LogHub on purpose: a simulation that misses one of them proves nothing.

Each names the faults under which it shows, and the check that sees it.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager

import msgspec

from raftwood.simulation import SwarmProfile
from tests.kits.loghub.simulation import planted
from tests.kits.loghub.simulation.world import Plan, run_hub


def calm(seed: int) -> SwarmProfile:
    return SwarmProfile(seed=seed)


def network(seed: int) -> SwarmProfile:
    return SwarmProfile(seed=seed, every_s={"stall": 0.3, "reset": 0.15})


def stalls(seed: int) -> SwarmProfile:
    """A gateway hears of what others did later than its clients do."""
    return SwarmProfile(seed=seed, every_s={"stall": 0.1, "reset": 0.15})


def pauses(seed: int) -> SwarmProfile:
    """A gateway that stands still stores what it was sent, once it goes on."""
    return SwarmProfile(seed=seed, every_s={"pause": 0.3, "reset": 0.3})


def crashes(seed: int) -> SwarmProfile:
    return SwarmProfile(seed=seed, every_s={"kill": 1.0, "pause": 1.0})


_BUSY = Plan(faults_s=6.0, pause_s=0.02, reshard_every_s=0.3, churners=0)
_HASTY = Plan(faults_s=6.0, pause_s=0.05, reshard_every_s=0.5, timeout_ms=400, churners=0)
_DYING = Plan(faults_s=6.0, reshard_every_s=0.3, crash_share=0.1, churners=1)
_STALE = Plan(faults_s=6.0, gateways=3, pause_s=0.02, reshard_every_s=0.3, churners=0)
_FREED = Plan(faults_s=6.0, pause_s=0.05, reshard_every_s=2.0, retained_bytes_max=400, churners=0)


class Mutant(msgspec.Struct, frozen=True, kw_only=True):
    """A bug, the faults that show it, and a word of what is said then."""

    plant: Callable[[], AbstractContextManager[None]]
    profile: Callable[[int], SwarmProfile] = calm
    caught_as: str
    plan: Plan = _BUSY

    def run(self, seed: int) -> None:
        with self.plant():
            run_hub(seed, self.plan, profile=self.profile(seed))


MUTANTS = {
    "ends a shard before its end": Mutant(
        plant=planted.ends_a_shard_before_its_end,
        caught_as="said to be over|not answered|after number",
    ),
    "forgets the producer": Mutant(
        plant=planted.forgets_the_producer, profile=network, plan=_HASTY, caught_as="exactly once"
    ),
    "frees more than it may": Mutant(
        plant=planted.frees_more_than_it_may, plan=_FREED, caught_as="may keep"
    ),
    "hands over without a seal": Mutant(
        plant=planted.hands_over_without_a_seal, caught_as="behind|is not read|given up"
    ),
    "ignores the sibling": Mutant(
        plant=planted.ignores_the_sibling, caught_as="before its parent has ended|do not cover"
    ),
    "leaves things half-done": Mutant(
        plant=planted.leaves_things_half_done, plan=_DYING, caught_as="half-done|not answered"
    ),
    "opens the children at once": Mutant(
        plant=planted.opens_the_children_at_once, caught_as="before its parent has ended|do not"
    ),
    "reads children before their parents": Mutant(
        plant=planted.reads_children_before_their_parents, caught_as="of its key"
    ),
    "sends again as another batch": Mutant(
        plant=planted.sends_again_as_another_batch,
        profile=pauses,
        plan=_HASTY,
        caught_as="exactly once",
    ),
    "takes silence for an end": Mutant(
        plant=planted.takes_silence_for_an_end,
        profile=crashes,
        plan=_HASTY,
        caught_as="exactly once|said not to be stored",
    ),
    "takes the end before the seal": Mutant(
        plant=planted.takes_the_end_before_the_seal,
        caught_as="behind|is not read|acked and|given up: InvalidCursor",
    ),
    "trusts what it knew of new shards": Mutant(
        plant=planted.trusts_what_it_knew_of_new_shards,
        profile=stalls,
        plan=_STALE,
        caught_as="which is there",
    ),
}
