"""What a host tells of a group, for people, health checks and clients."""

import msgspec

from raftwood.raft.core import EntryKind
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
    is_joint: bool
    is_asleep: bool
    waiting_bytes: int
    """Proposals that are not applied yet."""
    cache_bytes: int
    sessions: int
    matches: dict[int, int]
    """At the leader: how far each member's log is known to agree."""
    addresses: dict[int, str]


class LogEntry(msgspec.Struct, frozen=True):
    """One committed entry, as a query of the log gives it."""

    index: int
    term: int
    kind: EntryKind
    payload: bytes


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
        is_joint=bool(configuration.voters_outgoing),
        is_asleep=replica.is_asleep,
        waiting_bytes=replica.proposals.size_bytes,
        cache_bytes=storage.cache.size_bytes,
        sessions=len(replica.applier.sessions),
        matches=matches,
        addresses={node: addresses[node] for node in sorted(members) if node in addresses},
    )
