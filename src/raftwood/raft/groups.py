"""The groups of a host: starts them, repairs those with bad data, stops and removes them."""

import asyncio
from collections.abc import Callable
from typing import Final

from raftwood.base.errors import (
    AlreadyExists,
    InvalidInput,
    NotFound,
    RaftwoodError,
    ShuttingDown,
    StoreDamaged,
    Unavailable,
)
from raftwood.base.logs import get_logger
from raftwood.raft.bootstrap import ReplicaOpener
from raftwood.raft.engine import HostTasks, RaftEngine
from raftwood.raft.group_log import RepairStage
from raftwood.raft.log_ends import LogEnds
from raftwood.raft.registry import GROUP_MAX, StoreRegistry
from raftwood.raft.repair import Repairs
from raftwood.raft.replica import Replica
from raftwood.raft.snapshot_files import SnapshotFiles
from raftwood.raft.state_machine import StateMachine

REMOVAL_PAUSE_S: Final = 1.0

_log = get_logger("raft")


class RaftGroups:
    """The groups of one host; `running` are the replicas that serve."""

    def __init__(
        self,
        running: dict[int, Replica],
        opener: ReplicaOpener,
        files: SnapshotFiles,
        chores: HostTasks,
        turns: RaftEngine,
        repairs: Repairs,
        log_ends: LogEnds,
        *,
        own: int,
        learn_addresses: Callable[[dict[int, str]], None],
        is_closing: Callable[[], bool],
        book: StoreRegistry,
    ) -> None:
        self._replicas = running
        self._opener = opener
        self._snapshot_files = files
        self._chores = chores
        self._turns = turns
        self._repairs = repairs
        self._log_ends = log_ends
        self._own = own
        self._learn_addresses = learn_addresses
        self._is_closing = is_closing
        self._book = book
        self._factories: dict[int, Callable[[], StateMachine]] = {}

    async def start(
        self, group: int, factory: Callable[[], StateMachine], members: tuple[int, ...]
    ) -> None:
        """Opens the stored data of a group, or begins it, and lets the replica take part."""
        if not 0 <= group <= GROUP_MAX:
            raise InvalidInput(f"group {group} is no number from 0 to {GROUP_MAX}")
        if group in self._factories:
            raise AlreadyExists(f"group {group} runs on store {self._own} already")
        self._factories[group] = factory
        try:
            await self._start_or_repair(group, members)
        except BaseException:
            self._factories.pop(group, None)
            raise

    async def _start_or_repair(self, group: int, members: tuple[int, ...]) -> None:
        known = self._opener.state_of(group)
        if self._book.damage and (known is None or known.is_removed):
            self._find_out(group, members)
            return
        try:
            await self._opener.prepare(group, members)
            state = self._opener.state_of(group)
            if state is not None and state.is_without_replica:
                self._repairs.begin(group, self._book.damage or "its repair was under way")
                return
            await self.serve(group)
            if state is not None and state.repair is RepairStage.LEARN:
                self._repairs.go_on(group)
        except StoreDamaged as error:
            self._repairs.begin(group, error.message)

    def _find_out(self, group: int, members: tuple[int, ...]) -> None:
        """Asks other members about a group that seems new: this store has lost its log once."""
        if members == (self._own,):
            raise StoreDamaged(
                f"store {self._own} has lost its log ({self._book.damage}), and is the only member "
                f"of group {group}, so that nobody can tell whether the group is new: restore the "
                "data folder from a backup, or give the group other members too"
            )
        self._repairs.find_out(group, members, self._book.damage)

    async def serve(self, group: int) -> None:
        """Opens the replica of a group, and lets it take part."""
        if group not in self._factories:
            raise ShuttingDown(f"group {group} was stopped on store {self._own}")
        replica = await self._open_replica(group)
        if replica.storage.state.forced_voters:
            try:
                await self._opener.force_members(replica)
            finally:
                replica.applier.machine.close()
            replica = await self._open_replica(group)
        if group not in self._factories or group in self._replicas:
            replica.applier.machine.close()
            raise ShuttingDown(f"group {group} was stopped on store {self._own} as it was opened")
        self._learn_addresses(replica.applier.addresses)
        self._replicas[group] = replica
        replica.is_serving = True
        self._log_ends.hold_votes(replica)
        if replica.configuration.voters == (self._own,) and replica.may_vote:
            replica.node.campaign()
        if replica.storage.state.voters and replica.applied:
            self._chores.tell_members(replica)
        self._turns.mark(replica)

    async def _open_replica(self, group: int) -> Replica:
        machine = self._factories[group]()
        try:
            replica = await self._opener.open(group, machine, self._is_closing)
            if self._is_closing():
                raise ShuttingDown(f"store {self._own} is shutting down")
        except BaseException:
            machine.close()
            raise
        return replica

    def forget(self, group: int) -> None:
        """Lets a group be started anew that has removed this store and has no replica here."""
        self._factories.pop(group, None)

    def stop(self, group: int) -> None:
        """Stops the replica, or its repair; its data stays, and it may be started again."""
        if group in self._repairs.problems:
            del self._factories[group]
            self._repairs.stop(group)
        else:
            self._stop(self.get(group))

    def _stop(self, replica: Replica) -> None:
        self._repairs.stop(replica.group)
        del self._factories[replica.group]
        self._end(replica, ShuttingDown(f"group {replica.group} was stopped on store {self._own}"))

    def _end(self, replica: Replica, error: RaftwoodError) -> None:
        replica.halt()
        del self._replicas[replica.group]
        replica.refuse_all(error)
        replica.applier.machine.close()

    async def remove(self, group: int) -> None:
        """Drops a replica that its group has removed, and its data; keeps only term and vote."""
        replica = self.get(group)
        self._stop(replica)
        await self._drop(replica)

    async def _drop(self, replica: Replica) -> None:
        group = replica.group
        known = self._opener.state_of(group)
        if known is None or not known.is_removed:
            await self._opener.forget(group, replica.storage.state, is_removed=True)
        await self._snapshot_files.remove_group(group)
        _log.info("replica removed", group=group)

    def leave(self, replica: Replica) -> None:
        """Stops a replica that its group has removed: from now on it acknowledges nothing."""
        replica.is_serving = False
        self._chores.run(self._leave(replica), "removal of a replica")

    async def _leave(self, replica: Replica) -> None:
        group = replica.group
        if self._replicas.get(group) is replica:
            self._stop(replica)
        # Until it is stored. If the group is started again first, its leader removes it again.
        while group not in self._factories and not self._is_closing():
            try:
                await self._drop(replica)
                return
            except RaftwoodError as error:
                _log.warning("replica not removed yet", group=group, reason=error.message)
                await asyncio.sleep(REMOVAL_PAUSE_S)

    def on_damage(self, replica: Replica, error: StoreDamaged) -> None:
        if replica.only_votes and replica.lost_up_to:
            self._repairs.lost_end(replica.group, replica.lost_up_to)
        elif replica.only_votes:
            self._repairs.end_vote(replica.group)
        if self._replicas.get(replica.group) is replica and not self._is_closing():
            self._end(replica, error)
            self._repairs.begin(replica.group, error.message, halted=replica)

    def get(self, group: int) -> Replica:
        replica = self._replicas.get(group)
        if replica is None and group in self._repairs.problems:
            problem = self._repairs.problems[group]
            raise Unavailable(f"group {group} does not serve on store {self._own}: {problem}")
        if replica is None:
            raise NotFound(f"group {group} does not run on store {self._own}")
        return replica
