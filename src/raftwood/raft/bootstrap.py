"""Starts a replica: from the stored data to a replica that may take part.

The newest snapshot is restored and the entries known to be committed are replayed before the
replica votes, stands for election or answers any request.
"""

import asyncio
from collections.abc import Callable
from typing import NoReturn

import msgspec

from raftwood.base.environment import Environment
from raftwood.base.errors import InvalidInput, InvariantViolated
from raftwood.disk.segment_log import DropGroup, Run, SegmentLog, SetState
from raftwood.raft.core import (
    APPLY_THREAD,
    ChangeStep,
    ChangeV1,
    ConfState,
    RaftSettings,
    RawNode,
    StepKind,
    change_entry,
)
from raftwood.raft.entry_format import encode_run
from raftwood.raft.group_log import GroupState, GroupStorage, RepairStage, decode_state, first_state
from raftwood.raft.membership import forced_changes
from raftwood.raft.registry import GROUP_MAX
from raftwood.raft.replica import Applier, OnChange, Replica
from raftwood.raft.requests import ProposalMemory
from raftwood.raft.settings import RaftHostSettings
from raftwood.raft.snapshotter import Snapshotter
from raftwood.raft.state_machine import StateMachine

FOUNDING_TERM = 1
_REPLAY_BYTES = 4 << 20


class ReplicaOpener:
    """Makes the replicas of one host."""

    def __init__(
        self,
        environment: Environment,
        log: SegmentLog,
        settings: RaftHostSettings,
        snapshotting: Snapshotter,
        *,
        own: int,
        epoch: int,
        waiting: ProposalMemory,
        on_role: Callable[[Replica], None],
        on_change: OnChange,
    ) -> None:
        self._environment = environment
        self._log = log
        self._settings = settings
        self._snapshotting = snapshotting
        self._own = own
        self._read_prefix = own.to_bytes(8, "little") + epoch.to_bytes(8, "little")
        self._waiting = waiting
        self._on_role = on_role
        self._on_change = on_change

    def state_of(self, group: int) -> GroupState | None:
        if group not in self._log.groups():
            return None
        return decode_state(group, self._log.state(group) or b"")

    def stored_groups(self) -> list[int]:
        """Groups with data on the store that have not removed it."""
        found = []
        for group in sorted(self._log.groups()):
            if group <= GROUP_MAX:
                state = self.state_of(group)
                if state is not None and not state.is_removed:
                    found.append(group)
        return found

    def has_begun(self, group: int) -> bool:
        """Whether the store has more of a group than its founding records: without more it has
        never helped to elect a leader.
        """
        state = self.state_of(group)
        if state is None:
            return False
        is_founded = state.term <= FOUNDING_TERM and not state.voters
        return not is_founded or state.is_removed or state.repair is not RepairStage.NONE

    async def prepare(self, group: int, members: tuple[int, ...]) -> None:
        """Stores the first state of a new group; leaves a known group as it is."""
        known = self.state_of(group)
        if known is not None and not known.is_removed:
            return
        if known is not None:
            # It was here before: its term and vote are kept, and the leader sends the rest.
            state = msgspec.structs.replace(known, is_removed=False)
            await self._log.commit(SetState(group, state.encoded()))
        elif not members:
            await self._log.commit(SetState(group, first_state().encoded()))
        elif self._own not in members:
            raise InvalidInput(f"store {self._own} is not among the members of group {group}")
        else:
            await self._log.commit(*_founding_records(group, members))

    async def forget(self, group: int, state: GroupState, *, is_removed: bool) -> None:
        """Drops the data of a group, except for the term and vote that it gave.

        A replica that comes back votes only when it has again what it had acknowledged: otherwise a
        member that lags behind many changes of the membership could be elected without those
        entries.
        """
        kept = msgspec.structs.replace(
            first_state(),
            term=state.term,
            vote=state.vote,
            is_removed=is_removed,
            votes_from=max(state.votes_from, self._log.bounds(group).next_index - 1),
            repair=RepairStage.NONE if is_removed else RepairStage.JOIN,
            repair_as_voter=state.repair_as_voter,
        )
        await self._log.commit(DropGroup(group), SetState(group, kept.encoded()))

    async def note(self, group: int, state: GroupState) -> None:
        """Stores the state of a group that has no running replica."""
        await self._log.commit(SetState(group, state.encoded()))

    async def open(self, group: int, machine: StateMachine, stopped: Callable[[], bool]) -> Replica:
        """Opens a replica, restored and replayed; `StoreDamaged` if its data is bad."""
        storage = GroupStorage(self._log, group)
        applier = Applier(machine, storage.configuration, self._on_change)
        await self._snapshotting.restore(group, storage, applier, stopped)
        storage.configuration = applier.configuration
        replica = self._new_replica(group, storage, applier)
        await self._replay(replica, stopped)
        return replica

    async def open_to_vote(self, group: int, *, committed: int) -> Replica:
        """Opens a replica that votes and acknowledges, but applies nothing; `repair` explains why.

        `committed` is the last index known to a halted replica: the log's own may be as old as the
        term. `StoreDamaged` if entries that may still be replaced cannot be read.
        """
        # A replica that was just halted may have written entries that are not durable yet.
        await self._log.sync()
        storage = GroupStorage(self._log, group)
        await storage.load_tail(max(storage.state.commit, committed) + 1, _REPLAY_BYTES)
        applier = Applier(_NothingApplied(), ConfState(), self._on_change)
        replica = self._new_replica(group, storage, applier)
        replica.node.raft.log.commit_to(max(storage.state.commit, committed))
        replica.node.raft.log.pause_applying()
        replica.only_votes = True
        return replica

    def _new_replica(self, group: int, storage: GroupStorage, applier: Applier) -> Replica:
        settings = self._settings
        applier.node = RawNode(
            RaftSettings(
                node=self._own,
                election_ticks=settings.election_ticks,
                election_jitter=self._environment.random.randrange,
                applied=applier.applied,
                async_storage_writes=True,
                message_bytes_max=settings.message_bytes_max,
                applying_bytes_max=settings.message_bytes_max * 4,
                inflight_bytes_max=settings.in_flight_bytes_max,
                check_quorum=True,
                prevote=True,
                proposal_forwarding=False,
                step_down_on_removal=True,
            ),
            storage,
        )
        replica = Replica(
            group,
            applier.node,
            storage,
            applier,
            settings,
            read_prefix=self._read_prefix,
            waiting=self._waiting,
            on_role=self._on_role,
        )
        replica.snapshot_index = applier.applied
        return replica

    async def _replay(self, replica: Replica, stopped: Callable[[], bool]) -> None:
        storage = replica.storage
        commit = storage.state.commit
        await storage.load_tail(max(commit, replica.applied) + 1, _REPLAY_BYTES)
        while replica.applied < commit and not stopped():
            if not storage.is_in_memory(replica.applied + 1):
                await storage.fetch(replica.applied + 1, _REPLAY_BYTES)
            for message in replica.take_ready().messages:
                if message.target == APPLY_THREAD:
                    replica.apply(message)
            await asyncio.sleep(0)

    async def force_members(self, replica: Replica) -> None:
        """Gives a group that lost its quorum the members that an operator named.

        The replica was replayed to its end, and must be opened again. From now on the log itself
        names the members, to this store and to each that joins, and nothing of it is cut. One write
        does it all, so that a crash leaves it undone or done.
        """
        storage, group = replica.storage, replica.group
        state, last = storage.state, storage.last_index()
        old = replica.configuration
        replica.applier.configuration = ConfState(voters=state.forced_voters)
        addresses = self._snapshotting.addresses_of(replica)
        entries = forced_changes(old, state.forced_voters, addresses)
        for entry in entries:
            last += 1
            entry.term, entry.index = state.term, last
        run = encode_run(entries)
        state = msgspec.structs.replace(state, commit=last, forced_voters=())
        await self._log.commit(
            Run(group, run.term, run.first_index, run.count, run.payload),
            SetState(group, state.encoded()),
        )


class _NothingApplied:
    """The state machine of a replica that only votes: any call of it is a bug."""

    def _refuse(self, *_: object) -> NoReturn:
        raise InvariantViolated("a replica that only votes has no state machine")

    update = lookup = save_snapshot = recover_from_snapshot = _refuse

    def close(self) -> None:
        pass


def _founding_records(group: int, members: tuple[int, ...]) -> tuple[SetState, Run]:
    """The records that every founder writes: the first members, as entries committed from the
    start.

    So a reader of the log from its beginning finds the membership in it.
    """
    entries = []
    for index, member in enumerate(sorted(members), 1):
        entry = change_entry(ChangeV1(ChangeStep(StepKind.ADD_VOTER, member)))
        entry.term, entry.index = FOUNDING_TERM, index
        entries.append(entry)
    run = encode_run(entries)
    state = msgspec.structs.replace(first_state(), term=FOUNDING_TERM, commit=len(entries))
    return (
        SetState(group, state.encoded()),
        Run(group, run.term, run.first_index, run.count, run.payload),
    )
