"""What a host tells of its own data, beside the status of a group: for whoever runs on it."""

from raftwood.disk.store import Store
from raftwood.raft.host.groups import Groups
from raftwood.raft.host.opening import Opener
from raftwood.raft.host.peers import Peers
from raftwood.raft.host.snapshotting import Snapshotting
from raftwood.raft.state_machine import RetainingMachine, StateMachine


class HostViews:
    """A part of `Host`."""

    _store: Store
    _opener: Opener
    _groups: Groups
    _snapshotting: Snapshotting
    _peers: Peers

    def stored_groups(self) -> list[int]:
        """All groups that this store has data of, running or not."""
        return self._opener.stored_groups()

    def has_had(self, group: int) -> bool:
        """Whether this store has or had a replica of the group, and may have voted in it."""
        return self._opener.state_of(group) is not None

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

    def stored_bytes(self, group: int) -> tuple[int, int]:
        """What the group takes of the disk: its entries, and its snapshots."""
        return self._store.log.size_of(group), self._snapshotting.size_of(group)
