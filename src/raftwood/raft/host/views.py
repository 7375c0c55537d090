"""What a host tells of its groups and of its own data, for whoever runs on it."""

from collections.abc import Sequence
from typing import Any

from raftwood.base.errors import Unavailable
from raftwood.disk.store import Store
from raftwood.raft.host.book import StoreBook
from raftwood.raft.host.chores import Chores
from raftwood.raft.host.groups import Groups
from raftwood.raft.host.opening import Opener
from raftwood.raft.host.peers import Peers
from raftwood.raft.host.repair import Repairs
from raftwood.raft.host.replica import Replica
from raftwood.raft.host.runs import LogEntry
from raftwood.raft.host.slow_disk import is_far_slower
from raftwood.raft.host.snapshotting import Snapshotting
from raftwood.raft.host.status import GroupStatus, halted_status, status_of
from raftwood.raft.host.ticking import Ticking
from raftwood.raft.state_machine import RetainingMachine, StateMachine


class HostViews:
    """A part of `Host`."""

    id: int
    _store: Store
    _replicas: dict[int, Replica]
    _repairs: Repairs
    _book: StoreBook
    _opener: Opener
    _groups: Groups
    _snapshotting: Snapshotting
    _peers: Peers
    _chores: Chores
    _ticking: Ticking

    logs_aside: Sequence[str] = ()
    """Folders of damaged logs of this store that an operator may look at, and then remove."""

    def groups(self) -> list[int]:
        return sorted(self._replicas)

    def halted(self) -> dict[int, str]:
        """Groups whose replicas here are damaged and not repaired yet, and why."""
        return dict(self._repairs.problems)

    def is_leading(self, group: int) -> bool:
        return self._groups.get(group).is_leader

    def leader(self, group: int) -> int:
        """The store that leads the group as far as this one knows; 0 for none."""
        return self._groups.get(group).leader

    def status(self, group: int) -> GroupStatus:
        problem = self._repairs.problems.get(group)
        if problem is not None:
            return halted_status(group, self.id, problem)
        return status_of(self._groups.get(group), self.id, self.addresses())

    def addresses(self) -> dict[int, str]:
        """Of all stores that this one has heard of, itself too where it was told."""
        return dict(self._book.addresses)

    def stale_read(self, group: int, query: Any) -> Any:
        """Ask the state machine as it is here, which may be behind."""
        replica = self._groups.get(group)
        if replica.is_installing:
            raise Unavailable(f"group {group} is being restored on store {self.id}: try again")
        return replica.applier.machine.lookup(query)

    async def read_log(
        self, group: int, first_index: int, *, bytes_max: int = 1 << 20
    ) -> tuple[list[LogEntry], int]:
        """Committed entries from an index on, and where to read next; `OutOfRange` says what is.

        Nothing but this store is asked: whoever needs the newest entries does a `read` before.
        """
        replica = self._groups.get(group)
        with self._chores.halting(replica):
            return await replica.committed(first_index, bytes_max)

    def stored_groups(self) -> list[int]:
        """All groups that this store has data of, running or not."""
        return self._opener.stored_groups()

    def has_had(self, group: int) -> bool:
        """Whether this store has or had a replica of the group, and may have voted in it."""
        return self._opener.state_of(group) is not None

    @property
    def damage(self) -> str:
        """What was wrong with the log that was set aside last; empty where none ever was."""
        return self._book.damage

    @property
    def incarnation(self) -> str:
        """Of the data folder: a store that comes back empty has another one."""
        return self._store.identity.incarnation

    def refusals(self) -> dict[int, str]:
        """Stores that do not let this one in, and why."""
        return self._peers.refusals()

    def applied(self, group: int) -> int:
        """The index that the group's state machine here has come to."""
        return self._groups.get(group).applied

    def machine(self, group: int) -> StateMachine:
        """The state machine itself, for what is of this replica alone."""
        return self._groups.get(group).applier.machine

    def freeable_index(self, group: int) -> int:
        """Up to where the log need not be kept, once a snapshot is there."""
        machine = self.machine(group)
        return (
            machine.freeable_index if isinstance(machine, RetainingMachine) else self.applied(group)
        )

    def leader_changes(self, group: int) -> int:
        """How often another store was seen to lead than before, since the replica's start."""
        return self._groups.get(group).leader_changes

    @property
    def slow_hand_overs(self) -> int:
        """How often a group was given away because this store's disk is slow."""
        return self._ticking.slow_hand_overs

    @property
    def sync_ms(self) -> int | None:
        """How long the disk takes to make a write durable; None before the first one."""
        return self._ticking.sync_ms()

    def faster_stores(self) -> dict[int, int]:
        """Stores whose disks are far faster than this one's, which is slow: ms for a sync."""
        slow_ms, own_ms = self._ticking.slow_sync_ms, self.sync_ms
        told = {store: self._peers.sync_ms(store) for store in self._peers.addresses()}
        return {
            store: sync_ms
            for store, sync_ms in told.items()
            if sync_ms is not None and is_far_slower(own_ms, sync_ms, slow_ms=slow_ms)
        }

    def stored_bytes(self, group: int) -> tuple[int, int]:
        """What the group takes of the disk: its entries, and its snapshots."""
        return self._store.log.size_of(group), self._snapshotting.size_of(group)
