"""Bugs planted in the host on purpose: a simulation that misses one of them proves nothing.

Each names the faults under which it shows, so that few seeds are needed. Bugs of the core are
planted in the model without I/O (`raft/model/mutants.py`), where millions of events are cheap.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

from raftwood.base.environment import Environment
from raftwood.raft import group_log, snapshotter
from raftwood.raft.core import ConfState, Entry, Message
from raftwood.raft.engine import RaftEngine
from raftwood.raft.group_log import PlannedWrite
from raftwood.raft.replica import Applier, Replica
from raftwood.raft.requests import ProposalDone, ReadDone, Reads, split_batch
from raftwood.raft.sessions import SessionCommand, SessionPlan, SessionTable
from raftwood.raft.snapshot_format import SnapshotMeta
from raftwood.testing import SLOW_DISK, NetworkProfile, SwarmProfile
from tests.kits.disk.without_sync import without_sync
from tests.kits.models import Mutant, replaced, together
from tests.kits.raft.hosts import cluster
from tests.kits.raft.hosts.cluster import Cluster, run_hosts
from tests.kits.raft.hosts.store import StorePlan, serve_store

_apply_change = Applier._apply_change
_apply_commands = Applier._apply_commands
_begin_reads = Replica.begin_reads
_enter_proposals = Replica.enter_proposals
_is_new = SessionTable._is_new
_register = SessionTable._register
_release = RaftEngine._release
_submit = RaftEngine._submit

# Writes and answers


async def _serve_without_sync(environment: Environment, plan: StorePlan) -> None:
    await serve_store(without_sync(environment), plan)


def _submit_with_early_answers(
    turns: RaftEngine, planned: list[tuple[Replica, PlannedWrite, Message]]
) -> bool:
    early = [(replica, message.responses) for replica, _, message in planned]
    for _, _, message in planned:
        message.responses = []
    is_taken = _submit(turns, planned)
    for replica, responses in early:
        turns._respond(replica, responses)
    return is_taken


def _release_all(turns: RaftEngine, replica: Replica) -> None:
    """The first write that ends releases the answers of all."""
    for ticket in replica.tickets:
        ticket.is_done = True
    _release(turns, replica)


def _write_nothing(*_: object) -> None:
    pass


class _AnyTerm(int):
    def __ne__(self, other: object) -> bool:
        return False

    __eq__ = int.__eq__
    __hash__ = int.__hash__


def _enter_in_any_term(replica: Replica) -> None:
    """A proposal takes whatever was applied at its index for its own."""
    _enter_proposals(replica)
    for batch in replica.proposals.in_log:
        batch.term = _AnyTerm(batch.term)


def _apply_backwards(applier: Applier, entries: list[Entry]) -> Sequence[object]:
    return list(reversed(_apply_commands(applier, entries[::-1])))


# Reads


def _read_by_lease(replica: Replica) -> None:
    """A leader answers at once, trusting that it still leads."""
    if replica.is_leader:
        context = replica.reads.next_round()
        if context is not None:
            replica.reads.confirmed(context, replica.applied)
            replica.reads.applied(replica.applied)
    else:
        _begin_reads(replica)


def _join_a_round_under_way(reads: Reads, done: ReadDone) -> None:
    (reads._in_round or reads.waiting).append(done)


# Sessions


def _is_always_new(
    table: SessionTable, command: SessionCommand, plan: SessionPlan, position: int
) -> bool:
    session = table._sessions.get(command.session)
    if session is not None:
        session.kept.pop(command.sequence, None)
    return _is_new(table, command, plan, position)


def _propose_each_time(replica: Replica, entries: list[Entry], done: ProposalDone) -> None:
    """As a leader of release 0.1.0 does: the session table alone keeps repeats apart."""
    replica.propose(*split_batch(entries, replica.settings.message_bytes_max, done))


def _register_once(table: SessionTable, control: object, index: int) -> object:
    """Every client gets the session that there is already."""
    for number in table._sessions:
        return _register.__globals__["encode_session"](number)
    return _register(table, control, index)  # type: ignore[arg-type]


# Membership and snapshots


@contextmanager
def saves_the_membership_before_the_last_change() -> Iterator[None]:
    before: dict[ConfState, ConfState] = {}

    def apply_change(applier: Applier, entry: Entry) -> ConfState:
        old = applier.configuration
        new = _apply_change(applier, entry)
        before[new] = old
        return new

    def meta(group: int, index: int, term: int, configuration: ConfState, *rest: Any) -> Any:
        return SnapshotMeta(group, index, term, before.get(configuration, configuration), *rest)

    with (
        mock.patch.object(Applier, "_apply_change", apply_change),
        mock.patch.object(snapshotter, "SnapshotMeta", meta),
    ):
        yield


def _lose_some_changes(applier: Applier, entry: Entry) -> ConfState:
    assert applier.node is not None
    if (entry.index + applier.node.raft.id) % 3 == 0 and entry.index > 3:
        return applier.configuration
    return _apply_change(applier, entry)


def _encoded_without_sessions(_: SessionTable, encoded: bytes = SessionTable().encoded()) -> bytes:
    return encoded


# The weather

_FAR = NetworkProfile(delay_s=(0.001, 0.02), spike_probability=0.1, spike_s=(0.1, 0.9))
"""Stores hear of a write at moments far apart."""
_SHORT = Cluster(faults_s=15.0, pause_s=0.15)
_CHANGING = Cluster(faults_s=30.0, pause_s=0.15, change_every_s=0.6)


def _power(seed: int) -> SwarmProfile:
    return SwarmProfile(seed=seed, every_s={"power_loss_of_all": 2.0}, disk=SLOW_DISK)


def _crashes(seed: int) -> SwarmProfile:
    return SwarmProfile(seed=seed, every_s={"kill": 1.0, "power_loss": 1.5})


def _network(seed: int) -> SwarmProfile:
    every_s = {"kill": 6.0, "stall": 0.5, "partition": 4.0, "pause": 3.0}
    return SwarmProfile(seed=seed, every_s=every_s, network=_FAR)


def _pauses(seed: int) -> SwarmProfile:
    """Leaders that do not know yet that they lead no more."""
    return SwarmProfile(seed=seed, every_s={"pause": 0.8, "stall": 0.5})


def _kills_and_partitions(seed: int) -> SwarmProfile:
    return SwarmProfile(seed=seed, every_s={"kill": 1.5, "partition": 2.5})


def _weather(
    profile: Callable[[int], SwarmProfile], chosen: Cluster = _SHORT
) -> Callable[[int], object]:
    return lambda seed: run_hosts(seed, chosen, profile=profile(seed))


_IN_POWER_CUTS = _weather(_power)
_FAR_AWAY = _weather(_network)

MUTANTS = {
    "acks before sync": Mutant(
        _IN_POWER_CUTS, replaced(RaftEngine, _submit=_submit_with_early_answers), first=2
    ),
    "answers by place alone": Mutant(
        _weather(_pauses), replaced(Replica, enter_proposals=_enter_in_any_term), first=28
    ),
    # An answer without a write of its own doesn't wait for the writes before it.
    "answers out of order": Mutant(
        _weather(_power, Cluster(faults_s=15.0, pause_s=0.08)),
        replaced(RaftEngine, _respond_in_order=RaftEngine._respond),
        first=14,
    ),
    "applies out of order": Mutant(_FAR_AWAY, replaced(Applier, _apply_commands=_apply_backwards)),
    "disk without sync": Mutant(
        _IN_POWER_CUTS, replaced(cluster, serve_store=_serve_without_sync), first=2
    ),
    "forgets votes and terms": Mutant(
        _weather(_crashes), replaced(group_log, _plan_state=_write_nothing)
    ),
    "reads by lease": Mutant(_FAR_AWAY, replaced(Replica, begin_reads=_read_by_lease)),
    "reads join a round under way": Mutant(
        _FAR_AWAY, replaced(Reads, add=_join_a_round_under_way), first=1
    ),
    "releases answers of later writes": Mutant(
        _IN_POWER_CUTS, replaced(RaftEngine, _release=_release_all), first=4
    ),
    "reuses sessions": Mutant(_FAR_AWAY, replaced(SessionTable, _register=_register_once)),
    # A leader that looks for repeats in its log leaves few of them to the session table.
    "runs repeated commands again": Mutant(
        _FAR_AWAY,
        together(
            replaced(Replica, propose_again=_propose_each_time),
            replaced(SessionTable, _is_new=_is_always_new),
        ),
    ),
    "leaves sessions out of snapshots": Mutant(
        _FAR_AWAY, replaced(SessionTable, encoded=_encoded_without_sessions), first=1
    ),
    "loses membership entries": Mutant(
        _weather(_network, _CHANGING), replaced(Applier, _apply_change=_lose_some_changes), first=5
    ),
    "saves the membership before the last change": Mutant(
        _weather(_crashes, _CHANGING), saves_the_membership_before_the_last_change, first=1
    ),
    # After a start, a replica may be many changes behind what it knew.
    "stores changes without the commit index": Mutant(
        _weather(_kills_and_partitions, Cluster(faults_s=40.0, pause_s=0.3, change_every_s=0.5)),
        replaced(group_log, _plan_commit=_write_nothing),
        first=10,
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
