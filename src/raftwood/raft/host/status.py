"""What a host tells of a group, for people, health checks and clients."""

import msgspec

from raftwood.raft.host.replica import Replica


class GroupStatus(msgspec.Struct, frozen=True):
    """One replica as its own store sees it."""

    group: int
    store: int
    role: str
    leader: int
    term: int
    first_index: int
    last_index: int
    commit: int
    applied: int
    snapshots: tuple[int, ...]
    voters: tuple[int, ...]
    learners: tuple[int, ...]
    epoch: int
    """The index of the last membership change that was applied."""
    is_joint: bool
    is_asleep: bool
    waiting_bytes: int
    """Proposals that are not applied yet."""
    cache_bytes: int
    sessions: int
    matches: dict[int, int]
    """At the leader: how far each member's log is known to agree."""
    addresses: dict[int, str]
    problem: str = ""
    """Why the replica does not serve, and what is being done about it."""


def status_of(replica: Replica, store: int, addresses: dict[int, str]) -> GroupStatus:
    raft = replica.node.raft
    configuration = replica.configuration
    storage = replica.storage
    matches = {}
    if replica.is_leader:
        matches = {node: progress.match for node, progress in raft.tracker.progress.items()}
    members = {*configuration.voters, *configuration.learners, *configuration.voters_outgoing}
    return GroupStatus(
        group=replica.group,
        store=store,
        role=raft.role.value.removeprefix("State").lower(),
        leader=raft.lead,
        term=raft.term,
        first_index=storage.first_index(),
        last_index=raft.log.last_index,
        commit=raft.log.committed,
        applied=replica.applied,
        snapshots=storage.state.snapshots,
        voters=configuration.voters,
        learners=configuration.learners,
        epoch=replica.applier.configuration_index,
        is_joint=bool(configuration.voters_outgoing),
        is_asleep=replica.is_asleep,
        waiting_bytes=replica.proposals.size_bytes,
        cache_bytes=storage.cache.size_bytes,
        sessions=len(replica.applier.sessions),
        matches=matches,
        addresses={node: addresses[node] for node in sorted(members) if node in addresses},
    )


def halted_status(group: int, store: int, problem: str) -> GroupStatus:
    """Of a replica whose data is bad, so that nothing else can be said."""
    return GroupStatus(
        group=group,
        store=store,
        role="halted",
        leader=0,
        term=0,
        first_index=0,
        last_index=0,
        commit=0,
        applied=0,
        snapshots=(),
        voters=(),
        learners=(),
        epoch=0,
        is_joint=False,
        is_asleep=False,
        waiting_bytes=0,
        cache_bytes=0,
        sessions=0,
        matches={},
        addresses={},
        problem=problem,
    )
