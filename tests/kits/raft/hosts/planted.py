"""Bugs planted in the host on purpose, each as a patch for as long as a run takes."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import msgspec

from raftwood.base import files as seam
from raftwood.base.environment import Environment
from raftwood.base.files import Completion, Files, Operation
from raftwood.raft.core import ConfState, Entry, Message
from raftwood.raft.host import snapshotting, writes
from raftwood.raft.host.applying import Applier
from raftwood.raft.host.control import SessionCommand
from raftwood.raft.host.reads import ReadDone, Reads
from raftwood.raft.host.replica import Replica
from raftwood.raft.host.sessions import Plan, SessionTable
from raftwood.raft.host.snapshots import SnapshotMeta
from raftwood.raft.host.turns import Turns
from raftwood.raft.host.writes import PlannedWrite


class _WithoutSync:
    """A disk driver that leaves the log's syncs out."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def submit(
        self, operations: Sequence[Operation], callback: Callable[[Completion], None]
    ) -> None:
        kept = [each for each in operations if not isinstance(each, seam.DataSync)]
        self._files.submit(kept, callback)


def without_sync(environment: Environment) -> Environment:
    return msgspec.structs.replace(environment, files=_WithoutSync(environment.files))


@contextmanager
def acks_before_sync() -> Iterator[None]:
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
def answers_out_of_order() -> Iterator[None]:
    """An answer without a write of its own doesn't wait for the writes before it."""
    with mock.patch.object(Turns, "_respond_in_order", Turns._respond):
        yield


@contextmanager
def forgets_votes_and_terms() -> Iterator[None]:
    with mock.patch.object(writes, "_plan_state"):
        yield


@contextmanager
def reads_by_lease() -> Iterator[None]:
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
def reads_join_a_round_under_way() -> Iterator[None]:
    def add(reads: Reads, done: ReadDone) -> None:
        (reads._in_round or reads.waiting).append(done)

    with mock.patch.object(Reads, "add", add):
        yield


@contextmanager
def applies_out_of_order() -> Iterator[None]:
    original = Applier._apply_commands

    def apply_commands(applier: Applier, entries: list[Entry]) -> Sequence[object]:
        return list(reversed(original(applier, entries[::-1])))

    with mock.patch.object(Applier, "_apply_commands", apply_commands):
        yield


@contextmanager
def runs_repeated_commands_again() -> Iterator[None]:
    original = SessionTable._is_new

    def is_new(table: SessionTable, command: SessionCommand, plan: Plan, position: int) -> bool:
        session = table._sessions.get(command.session)
        if session is not None:
            session.kept.pop(command.sequence, None)
        return original(table, command, plan, position)

    with mock.patch.object(SessionTable, "_is_new", is_new):
        yield


@contextmanager
def reuses_sessions() -> Iterator[None]:
    """Every client gets the session that there is already."""
    original = SessionTable._register

    def register(table: SessionTable, control: object, index: int) -> object:
        for number in table._sessions:
            return original.__globals__["encode_session"](number)
        return original(table, control, index)  # type: ignore[arg-type]

    with mock.patch.object(SessionTable, "_register", register):
        yield


@contextmanager
def answers_by_place_alone() -> Iterator[None]:
    """A proposal takes whatever was applied at its index for its own."""
    original = Replica.enter_proposals

    def enter_proposals(replica: Replica) -> None:
        original(replica)
        for batch in replica.proposals.in_log:
            batch.term = _AnyTerm(batch.term)

    with mock.patch.object(Replica, "enter_proposals", enter_proposals):
        yield


class _AnyTerm(int):
    def __ne__(self, other: object) -> bool:
        return False

    __eq__ = int.__eq__
    __hash__ = int.__hash__


@contextmanager
def skips_tickets() -> Iterator[None]:
    """The first write that ends releases the answers of all."""
    original = Turns._release

    def release(turns: Turns, replica: Replica) -> None:
        for ticket in replica.tickets:
            ticket.is_done = True
        original(turns, replica)

    with mock.patch.object(Turns, "_release", release):
        yield


# Membership and snapshots


@contextmanager
def saves_the_membership_before_the_last_change() -> Iterator[None]:
    original = Applier._apply_change
    before: dict[ConfState, ConfState] = {}

    def apply_change(applier: Applier, entry: Entry) -> ConfState:
        old = applier.configuration
        new = original(applier, entry)
        before[new] = old
        return new

    def meta(group: int, index: int, term: int, configuration: ConfState, *rest: Any) -> Any:
        return SnapshotMeta(group, index, term, before.get(configuration, configuration), *rest)

    with (
        mock.patch.object(Applier, "_apply_change", apply_change),
        mock.patch.object(snapshotting, "SnapshotMeta", meta),
    ):
        yield


@contextmanager
def loses_membership_entries() -> Iterator[None]:
    """Some stores leave some changes out."""
    original = Applier._apply_change

    def apply_change(applier: Applier, entry: Entry) -> ConfState:
        assert applier.node is not None
        if (entry.index + applier.node.raft.id) % 3 == 0 and entry.index > 3:
            return applier.configuration
        return original(applier, entry)

    with mock.patch.object(Applier, "_apply_change", apply_change):
        yield


@contextmanager
def stores_changes_without_the_commit_index() -> Iterator[None]:
    """After a start, a replica may be many changes behind what it knew."""
    with mock.patch.object(writes, "_plan_commit"):
        yield


@contextmanager
def leaves_sessions_out_of_snapshots() -> Iterator[None]:
    original = SessionTable.encoded

    with mock.patch.object(SessionTable, "encoded", return_value=original(SessionTable())):
        yield
