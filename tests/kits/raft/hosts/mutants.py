"""Bugs planted in the host on purpose: a simulation that misses one of them proves nothing.

Each names the faults under which it shows, so that few seeds are needed. Bugs of the core are
planted in the model without I/O (`raft_model/mutants.py`), where millions of events are cheap.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import msgspec

from raftwood.simulation import SLOW_DISK, NetworkProfile, SwarmProfile
from tests.kits.raft.hosts import planted
from tests.kits.raft.hosts.cluster import Cluster, run_hosts

Plant = Callable[[], AbstractContextManager[None]]
_SHORT_S = 15.0
_FAR = NetworkProfile(delay_s=(0.001, 0.02), spike_probability=0.1, spike_s=(0.1, 0.9))
"""Stores hear of a write at moments far apart."""


def power(seed: int) -> SwarmProfile:
    return SwarmProfile(seed=seed, every_s={"power_loss_of_all": 2.0}, disk=SLOW_DISK)


def crashes(seed: int) -> SwarmProfile:
    return SwarmProfile(seed=seed, every_s={"kill": 1.0, "power_loss": 1.5})


def network(seed: int) -> SwarmProfile:
    every_s = {"kill": 6.0, "stall": 0.5, "partition": 4.0, "pause": 3.0}
    return SwarmProfile(seed=seed, every_s=every_s, network=_FAR)


def pauses(seed: int) -> SwarmProfile:
    """Leaders that do not know yet that they lead no more."""
    return SwarmProfile(seed=seed, every_s={"pause": 0.8, "stall": 0.5})


def kills_and_partitions(seed: int) -> SwarmProfile:
    return SwarmProfile(seed=seed, every_s={"kill": 1.5, "partition": 2.5})


class Mutant(msgspec.Struct, frozen=True, kw_only=True):
    """A bug, and the faults that show it."""

    profile: Callable[[int], SwarmProfile]
    plant: Plant = nullcontext
    cluster: Cluster = Cluster(faults_s=_SHORT_S, pause_s=0.15)

    @property
    def whole(self) -> Cluster:
        """The same without the bug."""
        return msgspec.structs.replace(self.cluster, environment=Cluster().environment)

    def run(self, seed: int) -> None:
        with self.plant():
            run_hosts(seed, self.cluster, profile=self.profile(seed))


_CHANGING = Cluster(faults_s=30.0, pause_s=0.15, change_every_s=0.6)

MUTANTS = {
    "acks before sync": Mutant(plant=planted.acks_before_sync, profile=power),
    "answers by place alone": Mutant(plant=planted.answers_by_place_alone, profile=pauses),
    "answers out of order": Mutant(
        plant=planted.answers_out_of_order,
        cluster=Cluster(faults_s=_SHORT_S, pause_s=0.08),
        profile=power,
    ),
    "applies out of order": Mutant(plant=planted.applies_out_of_order, profile=network),
    "disk without sync": Mutant(
        cluster=Cluster(faults_s=_SHORT_S, pause_s=0.15, environment=planted.without_sync),
        profile=power,
    ),
    "forgets votes and terms": Mutant(plant=planted.forgets_votes_and_terms, profile=crashes),
    "reads by lease": Mutant(plant=planted.reads_by_lease, profile=network),
    "reads join a round under way": Mutant(
        plant=planted.reads_join_a_round_under_way, profile=network
    ),
    "releases answers of later writes": Mutant(plant=planted.skips_tickets, profile=power),
    "reuses sessions": Mutant(plant=planted.reuses_sessions, profile=network),
    "runs repeated commands again": Mutant(
        plant=planted.runs_repeated_commands_again, profile=network
    ),
    "leaves sessions out of snapshots": Mutant(
        plant=planted.leaves_sessions_out_of_snapshots, profile=network
    ),
    "loses membership entries": Mutant(
        plant=planted.loses_membership_entries, cluster=_CHANGING, profile=network
    ),
    "saves the membership before the last change": Mutant(
        plant=planted.saves_the_membership_before_the_last_change,
        cluster=_CHANGING,
        profile=crashes,
    ),
    "stores changes without the commit index": Mutant(
        plant=planted.stores_changes_without_the_commit_index,
        cluster=Cluster(faults_s=40.0, pause_s=0.3, change_every_s=0.5),
        profile=kills_and_partitions,
    ),
}

CAUGHT_BY: dict[str, dict[str, str]] = {
    "no sync before ack": {
        "hosts": "acks before sync",
        "model": "acknowledged before durable",
    },
    "vote not durable": {"hosts": "forgets votes and terms", "model": "vote not durable"},
    "commit of an old term": {"model": "commit of an old term"},
    "stale lease read": {"hosts": "reads by lease", "model": "read without a quorum"},
    "snapshot without the last configuration change": {
        "hosts": "saves the membership before the last change",
        "model": "snapshot without the last change",
    },
    "lost membership entry": {
        "hosts": "loses membership entries",
        "model": "membership entry lost",
    },
    "reordered apply": {"hosts": "applies out of order", "model": "reordered apply"},
    "reused session": {"hosts": "reuses sessions"},
    "truncated below commit": {"model": "truncated below commit"},
    "learner counted as voter": {"model": "learner counted as voter"},
}
"""Where the bugs that every raft has to rule out are planted: by simulation, the mutant's name."""
