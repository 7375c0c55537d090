"""Bugs planted in the host on purpose: a simulation that misses one of them proves nothing.

Each names the faults under which it shows, so that few seeds are needed. Bugs of the core are
planted in the model without I/O (`raft_model/mutants.py`), where millions of events are cheap.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from unittest import mock

import msgspec

from raftwood.base import files as seam
from raftwood.base.environment import Environment
from raftwood.base.files import Completion, Files, Operation
from raftwood.disk.segment_log import TruncateTail
from raftwood.raft.core import Entry, Message
from raftwood.raft.host import writes
from raftwood.raft.host.applying import Applier
from raftwood.raft.host.control import SessionCommand
from raftwood.raft.host.group_storage import GroupStorage
from raftwood.raft.host.reads import ReadDone, Reads
from raftwood.raft.host.replica import Replica
from raftwood.raft.host.sessions import Plan, SessionTable
from raftwood.raft.host.turns import Turns
from raftwood.raft.host.writes import PlannedWrite
from raftwood.simulation import SLOW_DISK, NetworkProfile, SwarmProfile
from tests.simulation.raft_hosts.cluster import Cluster, run_hosts

Plant = Callable[[], AbstractContextManager[None]]


class _WithoutSync:
    """A disk driver that leaves the log's syncs out."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def submit(
        self, operations: Sequence[Operation], callback: Callable[[Completion], None]
    ) -> None:
        kept = [each for each in operations if not isinstance(each, seam.DataSync)]
        self._files.submit(kept, callback)


def _without_sync(environment: Environment) -> Environment:
    return msgspec.structs.replace(environment, files=_WithoutSync(environment.files))


@contextmanager
def _acks_before_sync() -> Iterator[None]:
    original = Turns._submit

    def submit(turns: Turns, planned: list[tuple[Replica, PlannedWrite, Message]]) -> bool:
        early = [(replica, message.responses) for replica, _, message in planned]
        for _, _, message in planned:
            message.responses = []
        is_taken = original(turns, planned)
        for replica, responses in early:
            turns._respond(replica, responses)
        return is_taken

    with mock.patch.object(Turns, "_submit", submit):
        yield


@contextmanager
def _answers_out_of_order() -> Iterator[None]:
    """An answer without a write of its own doesn't wait for the writes before it."""
    with mock.patch.object(Turns, "_respond_in_order", Turns._respond):
        yield


@contextmanager
def _forgets_votes_and_terms() -> Iterator[None]:
    with mock.patch.object(writes, "_plan_state"):
        yield


@contextmanager
def _cuts_whole_runs() -> Iterator[None]:
    """Where entries replace a part of a run, the good part of it is lost as well."""

    def plan_cut(planned: PlannedWrite, group: int, storage: GroupStorage, first: int) -> None:
        planned.cut_from = storage.cache.run_start(first)
        planned.records.append(TruncateTail(group, planned.cut_from))

    with mock.patch.object(writes, "_plan_cut", plan_cut):
        yield


@contextmanager
def _reads_by_lease() -> Iterator[None]:
    """A leader answers at once, trusting that it still leads."""
    original = Replica.begin_reads

    def begin_reads(replica: Replica) -> None:
        if replica.is_leader:
            context = replica.reads.next_round()
            if context is not None:
                replica.reads.confirmed(context, replica.applied)
                replica.reads.applied(replica.applied)
        else:
            original(replica)

    with mock.patch.object(Replica, "begin_reads", begin_reads):
        yield


@contextmanager
def _reads_join_a_round_under_way() -> Iterator[None]:
    def add(reads: Reads, done: ReadDone) -> None:
        (reads._in_round or reads._waiting).append(done)

    with mock.patch.object(Reads, "add", add):
        yield


@contextmanager
def _applies_out_of_order() -> Iterator[None]:
    original = Applier._apply_commands

    def apply_commands(applier: Applier, entries: list[Entry]) -> Sequence[object]:
        return list(reversed(original(applier, entries[::-1])))

    with mock.patch.object(Applier, "_apply_commands", apply_commands):
        yield


@contextmanager
def _runs_repeated_commands_again() -> Iterator[None]:
    original = SessionTable._is_new

    def is_new(table: SessionTable, command: SessionCommand, plan: Plan, position: int) -> bool:
        session = table._sessions.get(command.session)
        if session is not None:
            session.kept.pop(command.sequence, None)
        return original(table, command, plan, position)

    with mock.patch.object(SessionTable, "_is_new", is_new):
        yield


@contextmanager
def _reuses_sessions() -> Iterator[None]:
    """Every client gets the session that there is already."""
    original = SessionTable._register

    def register(table: SessionTable, control: object, index: int) -> object:
        for number in table._sessions:
            return original.__globals__["encode_session"](number)
        return original(table, control, index)  # type: ignore[arg-type]

    with mock.patch.object(SessionTable, "_register", register):
        yield


@contextmanager
def _answers_by_place_alone() -> Iterator[None]:
    """A proposal takes whatever was applied at its index for its own."""
    original = Replica.enter_proposals

    def enter_proposals(replica: Replica) -> None:
        original(replica)
        for batch in replica.proposals._in_log:
            batch.term = _AnyTerm(batch.term)

    with mock.patch.object(Replica, "enter_proposals", enter_proposals):
        yield


class _AnyTerm(int):
    def __ne__(self, other: object) -> bool:
        return False

    __eq__ = int.__eq__
    __hash__ = int.__hash__


@contextmanager
def _skips_tickets() -> Iterator[None]:
    """The first write that ends releases the answers of all."""
    original = Turns._release

    def release(turns: Turns, replica: Replica) -> None:
        for ticket in replica.tickets:
            ticket.is_done = True
        original(turns, replica)

    with mock.patch.object(Turns, "_release", release):
        yield


_SHORT_S = 15.0
_FAR = NetworkProfile(delay_s=(0.001, 0.02), spike_probability=0.1, spike_s=(0.1, 0.9))
"""Stores hear of a write at moments far apart."""


def power(seed: int) -> SwarmProfile:
    return SwarmProfile(seed=seed, every_s={"power_loss_of_all": 3.0}, disk=SLOW_DISK)


def crashes(seed: int) -> SwarmProfile:
    return SwarmProfile(seed=seed, every_s={"kill": 1.0, "power_loss": 1.5})


def network(seed: int) -> SwarmProfile:
    every_s = {"kill": 6.0, "stall": 0.5, "partition": 4.0, "pause": 3.0}
    return SwarmProfile(seed=seed, every_s=every_s, network=_FAR)


def pauses(seed: int) -> SwarmProfile:
    """Leaders that do not know yet that they lead no more."""
    return SwarmProfile(seed=seed, every_s={"pause": 0.8, "stall": 0.5})


class Mutant(msgspec.Struct, frozen=True, kw_only=True):
    """A bug, and the faults that show it."""

    profile: Callable[[int], SwarmProfile]
    plant: Plant = nullcontext
    cluster: Cluster = Cluster(faults_s=_SHORT_S, pause_s=0.15)

    def run(self, seed: int) -> None:
        with self.plant():
            run_hosts(seed, self.cluster, profile=self.profile(seed))


MUTANTS = {
    "acks before sync": Mutant(plant=_acks_before_sync, profile=power),
    "answers by place alone": Mutant(plant=_answers_by_place_alone, profile=pauses),
    "answers out of order": Mutant(plant=_answers_out_of_order, profile=power),
    "applies out of order": Mutant(plant=_applies_out_of_order, profile=network),
    "cuts whole runs": Mutant(plant=_cuts_whole_runs, profile=pauses),
    "disk without sync": Mutant(
        cluster=Cluster(faults_s=_SHORT_S, pause_s=0.15, environment=_without_sync), profile=power
    ),
    "forgets votes and terms": Mutant(plant=_forgets_votes_and_terms, profile=crashes),
    "reads by lease": Mutant(plant=_reads_by_lease, profile=network),
    "reads join a round under way": Mutant(plant=_reads_join_a_round_under_way, profile=network),
    "releases answers of later writes": Mutant(plant=_skips_tickets, profile=power),
    "reuses sessions": Mutant(plant=_reuses_sessions, profile=network),
    "runs repeated commands again": Mutant(plant=_runs_repeated_commands_again, profile=network),
}
