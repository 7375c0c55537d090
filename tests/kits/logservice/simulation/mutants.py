"""Bugs planted in the log service on purpose: a simulation that misses one of them proves nothing.

Each names the faults under which it shows, and the check that sees it.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager

import msgspec

from raftwood.simulation import NetworkProfile, SwarmProfile
from tests.kits.logservice.simulation import planted
from tests.kits.logservice.simulation.world import Plan, run_logs
from tests.kits.raft.hosts.planted import saves_the_membership_before_the_last_change


def partitions(seed: int) -> SwarmProfile:
    return SwarmProfile(seed=seed, every_s={"partition": 1.0})


def crashes(seed: int) -> SwarmProfile:
    return SwarmProfile(seed=seed, every_s={"kill": 1.5, "power_loss": 2.0})


def network(seed: int) -> SwarmProfile:
    every_s = {"kill": 4.0, "stall": 0.5, "reset": 1.0, "pause": 2.0}
    return SwarmProfile(seed=seed, every_s=every_s)


def pauses(seed: int) -> SwarmProfile:
    return SwarmProfile(seed=seed, every_s={"pause": 0.8, "stall": 0.5})


def far(seed: int) -> SwarmProfile:
    """Much is proposed before anything of it is applied."""
    return SwarmProfile(seed=seed, network=NetworkProfile(delay_s=(0.02, 0.1)))


def calm(seed: int) -> SwarmProfile:
    return SwarmProfile(seed=seed)


class Mutant(msgspec.Struct, frozen=True, kw_only=True):
    """A bug, the faults that show it, and a word of what is said then."""

    plant: Callable[[], AbstractContextManager[None]]
    profile: Callable[[int], SwarmProfile]
    caught_as: str
    plan: Plan = Plan(faults_s=8.0)

    def run(self, seed: int) -> None:
        with self.plant():
            run_logs(seed, self.plan, profile=self.profile(seed))


_LEASES = Plan(faults_s=8.0, has_leases=True)
_HASTY = Plan(faults_s=8.0, timeout_ms=500)
_CUTS = Plan(faults_s=8.0, cut_every_s=0.4)
_REPLACED = Plan(faults_s=15.0, is_replaced=True, pause_s=0.5)

MUTANTS = {
    "acks before applied": Mutant(
        plant=planted.acks_before_applied,
        profile=partitions,
        caught_as="acked and lost|one order|exactly once",
    ),
    "answers repetitions with their own place": Mutant(
        plant=planted.answers_repetitions_with_their_own_place,
        profile=network,
        caught_as="exactly once|acked and lost",
    ),
    "checks the lease when proposed": Mutant(
        plant=planted.checks_the_lease_when_proposed,
        profile=far,
        plan=_LEASES,
        caught_as="without the lease",
    ),
    "cuts to the applied index": Mutant(
        plant=planted.cuts_to_the_applied_index, profile=calm, caught_as="failed|can be read"
    ),
    "gives the last timestamp twice": Mutant(
        plant=planted.gives_the_last_timestamp_twice,
        profile=calm,
        plan=Plan(faults_s=8.0, pause_s=0.1),
        caught_as="timestamps given twice",
    ),
    "ignores the required LSN": Mutant(
        plant=planted.ignores_the_required_lsn,
        profile=calm,
        plan=_CUTS,
        caught_as="is required",
    ),
    "leaves holes out of snapshots": Mutant(
        plant=planted.leaves_holes_out_of_snapshots,
        profile=crashes,
        plan=_LEASES,
        caught_as="nothing invented|differ|without the lease",
    ),
    "leaves producers out of snapshots": Mutant(
        plant=planted.leaves_producers_out_of_snapshots, profile=crashes, caught_as="differ"
    ),
    "reads refused entries": Mutant(
        plant=planted.reads_refused_entries,
        profile=calm,
        plan=_LEASES,
        caught_as="are others",
    ),
    "reads without asking for the index": Mutant(
        plant=planted.reads_without_asking_for_the_index,
        profile=pauses,
        caught_as="no stale reads|is truncated after",
    ),
    "saves the membership before the last change": Mutant(
        plant=saves_the_membership_before_the_last_change,
        profile=crashes,
        plan=_REPLACED,
        caught_as="",
    ),
    "sends again as another producer": Mutant(
        plant=planted.sends_again_as_another_producer,
        profile=network,
        caught_as="exactly once",
    ),
    "shows the snapshot above the truncated LSN": Mutant(
        plant=planted.shows_the_snapshot_above_the_truncated_lsn,
        profile=calm,
        plan=_CUTS,
        caught_as="failed|can be read",
    ),
    "takes sequences with gaps": Mutant(
        plant=planted.takes_sequences_with_gaps,
        profile=network,
        plan=Plan(faults_s=8.0, pause_s=0.05),
        caught_as="calls out of order",
    ),
    "takes silence for a refusal": Mutant(
        plant=planted.takes_silence_for_a_refusal,
        profile=network,
        plan=_HASTY,
        caught_as="nothing invented",
    ),
    "takes the last word for the only one": Mutant(
        plant=planted.takes_the_last_word_for_the_only_one,
        profile=network,
        plan=_HASTY,
        caught_as="nothing invented",
    ),
    "wakes nobody": Mutant(plant=planted.wakes_nobody, profile=calm, caught_as="slept on"),
    "writes repetitions again": Mutant(
        plant=planted.writes_repetitions_again, profile=network, caught_as="exactly once"
    ),
}
