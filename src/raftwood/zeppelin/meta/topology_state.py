"""`TopologyState`: the meta server as a state machine, without I/O or clock.

A batch of changes is one step of the epoch (Zeppelin's text, section 2.1: any change of the
metadata adds to it). Each change is made or refused by itself, and those that make no difference
leave the epoch alone: with each new epoch every node fetches what is new.

What planners found out may be old by the time it arrives here, so these rules hold no matter what a
plan asks for: a partition has at most one master, which is up when it becomes that; a master that
is up is replaced by a hand-over, or by no one at first; and a plan for a partition that has changed
since is refused.
"""

from typing import Final

import msgspec

from raftwood.base.errors import (
    AlreadyExists,
    Conflict,
    InvalidInput,
    NotFound,
    Overloaded,
    RaftwoodError,
)
from raftwood.base.names import checked_name
from raftwood.zeppelin.meta import partition_rules
from raftwood.zeppelin.meta.changes import (
    AddSlave,
    AddTarget,
    AddUser,
    Applied,
    AtEpoch,
    BeginHandover,
    BeginSplit,
    CancelHandover,
    CancelMigration,
    CancelSplit,
    Change,
    ChangeMaster,
    CreateTable,
    DoublePartitions,
    DropTable,
    EndHandover,
    EndMigration,
    EndSplit,
    ForceMaster,
    MarkSlaves,
    Migrate,
    NodeDown,
    NodeUp,
    RefusedChange,
    RegisterNode,
    RemoveNode,
    RemoveSlave,
    RemoveTarget,
    RemoveUser,
    SetDraining,
    SetMaster,
    SetPassword,
    SetReads,
    SlowDown,
    failed,
)
from raftwood.zeppelin.meta.deltas import HISTORY_MAX, Delta, DeltaHistory, difference
from raftwood.zeppelin.meta.partition_rules import TopologyDraft
from raftwood.zeppelin.meta.placement import place
from raftwood.zeppelin.model import NodeId, NodeInfo, Table, Topology, User, checked_table_name

TABLES_MAX: Final = 1_000
NODES_MAX: Final = 1_000
USERS_MAX: Final = 10_000
PARTITIONS_MAX: Final = 65_536
"""Partitions of all tables together."""
_TEXT_MAX: Final = 512


class TopologyState:
    """A topology and its latest changes; equal batches lead to equal states."""

    def __init__(self, topology: Topology | None = None, *, history_max: int = HISTORY_MAX) -> None:
        self.topology = topology or Topology()
        self._history = DeltaHistory(epochs_max=history_max)

    def apply(self, changes: tuple[Change, ...]) -> Applied:
        before = self.topology
        draft = TopologyDraft(before)
        results = tuple(_result(draft, change) for change in changes)
        if isinstance(changes[0], AtEpoch) and any(results):
            return Applied(before.epoch, _all_refused(results))
        self.topology = draft.finished()
        if self.topology is not before:
            self._history.add(difference(before, self.topology))
        return Applied(self.topology.epoch, results)

    def delta(self, after_epoch: int) -> Delta:
        """The changes since an epoch that a node has applied."""
        return self._history.since(after_epoch, self.topology)


def _result(draft: TopologyDraft, change: Change) -> RefusedChange | None:
    try:
        _make(draft, change)
    except RaftwoodError as error:
        return failed(error)
    return None


def _all_refused(results: tuple[RefusedChange | None, ...]) -> tuple[RefusedChange, ...]:
    """Refuses all changes of a plan with the reason of the first that could not be made.

    An operator looked at the plan as a whole: half of it can be worse than nothing, such as a node
    that gets replicas and gives none
    (`test_a_batch_that_was_planned_as_a_whole_is_made_as_a_whole`).
    """
    reason = next(each for each in results if each is not None)
    return tuple(each or reason for each in results)


def _make(draft: TopologyDraft, change: Change) -> None:
    """Makes one change. Each rule refuses before it does anything: the draft has no way back, and
    the next change of the batch goes on from it."""
    match change:
        case AtEpoch(epoch):
            draft.check_epoch(epoch)
        case CreateTable():
            _create_table(draft, change)
        case DropTable(name):
            _drop_table(draft, name)
        case RegisterNode():
            _register_node(draft, change)
        case RemoveNode(node):
            _remove_node(draft, node)
        case NodeUp(node, run):
            _set_up(draft, node, run=run, is_up=True)
        case NodeDown(node, run):
            _set_up(draft, node, run=run, is_up=False)
        case AddUser(user):
            _add_user(draft, user)
        case SetPassword(name, password_hash):
            user = _user(draft, name)
            _check_text("a password's hash", password_hash)
            draft.users[name] = msgspec.structs.replace(user, password_hash=password_hash)
        case RemoveUser(name):
            del draft.users[_user(draft, name).name]
        case ChangeMaster():
            partition_rules.change_master(draft, change)
        case ForceMaster():
            partition_rules.force_master(draft, change)
        case MarkSlaves():
            partition_rules.mark_slaves(draft, change)
        case BeginHandover():
            partition_rules.begin_handover(draft, change)
        case EndHandover():
            partition_rules.end_handover(draft, change)
        case CancelHandover():
            partition_rules.cancel_handover(draft, change)
        case SetMaster():
            partition_rules.set_master(draft, change)
        case AddSlave():
            partition_rules.add_slave(draft, change)
        case RemoveSlave():
            partition_rules.remove_slave(draft, change)
        case Migrate():
            partition_rules.migrate(draft, change)
        case AddTarget():
            partition_rules.add_target(draft, change)
        case RemoveTarget():
            partition_rules.remove_target(draft, change)
        case SlowDown():
            partition_rules.slow_down(draft, change)
        case EndMigration():
            partition_rules.end_migration(draft, change)
        case CancelMigration():
            partition_rules.cancel_migration(draft, change)
        case DoublePartitions(name):
            _check_partitions(draft, more=len(draft.partitions_of(draft.table(name).name)))
            partition_rules.double_partitions(draft, name)
        case SetReads(name, reads):
            draft.tables[name] = msgspec.structs.replace(
                draft.table(name), reads=msgspec.UNSET if reads is None else reads
            )
        case BeginSplit():
            partition_rules.begin_split(draft, change)
        case EndSplit():
            partition_rules.end_split(draft, change)
        case CancelSplit():
            partition_rules.cancel_split(draft, change)
        case SetDraining(node, is_draining):
            known = draft.node(node)
            draft.nodes[node] = msgspec.structs.replace(known, is_draining=is_draining)
            if is_draining:
                partition_rules.cancel_all_to(draft, node)


def _create_table(draft: TopologyDraft, change: CreateTable) -> None:
    name, config = checked_table_name(change.name), change.config
    if name in draft.tables:
        raise AlreadyExists(f"table {name!r} exists: choose another name")
    if any(each.incarnation == draft.epoch for each in draft.tables.values()):
        raise Conflict("two tables cannot be made in one step: give each a batch of its own")
    if len(draft.tables) >= TABLES_MAX:
        raise Overloaded(f"there are {TABLES_MAX} tables: drop some first")
    _check_partitions(draft, more=config.partitions)
    tables = draft.tables.values()
    placed = place(config, nodes=draft.nodes, tables=tables, epoch=draft.epoch)
    draft.add_table(Table(name=name, incarnation=draft.epoch, config=config, partitions=placed))


def _check_partitions(draft: TopologyDraft, *, more: int) -> None:
    partitions = sum(each.config.partitions for each in draft.tables.values())
    if partitions + more > PARTITIONS_MAX:
        raise Overloaded(
            f"there are {partitions} partitions, and {PARTITIONS_MAX} at the most: drop some "
            "tables first"
        )


def _drop_table(draft: TopologyDraft, name: str) -> None:
    for number, partition in enumerate(draft.partitions_of(draft.table(name).name)):
        partition_rules.check_no_handover(name, number, partition)
    partition_rules.check_none_in(draft, name)
    draft.drop_table(name)
    # A user of this table must not be a user of the next one of its name
    # (`test_a_table_made_anew_is_another_one_and_has_no_user_of_the_old`).
    for user in [each for each in draft.users.values() if each.table == name]:
        del draft.users[user.name]


def _register_node(draft: TopologyDraft, change: RegisterNode) -> None:
    checked_name("node", change.id)
    addresses = change.addresses
    _check_text("an address", addresses.data, addresses.replication, addresses.admin)
    _check_text("a failure domain", change.failure_domain, is_needed=False)
    known = draft.nodes.get(change.id)
    if known is None and len(draft.nodes) >= NODES_MAX:
        raise Overloaded(f"there are {NODES_MAX} nodes: remove some first")
    draft.nodes[change.id] = NodeInfo(
        id=change.id,
        addresses=addresses,
        failure_domain=change.failure_domain,
        is_up=True,
        run=change.run,
        is_draining=known is not None and known.is_draining,
    )
    if known is not None and known.run != change.run:
        partition_rules.demote_restarted(draft, change.id)


def _remove_node(draft: TopologyDraft, node: NodeId) -> None:
    if draft.node(node).is_up:
        raise Conflict(f"node {node!r} is up: stop it first")
    for name, number, partition in draft.all_partitions():
        if node in partition.replicas:
            raise Conflict(
                f"node {node!r} has partition {number} of table {name!r}: move what it has first"
            )
        if any(each.target == node for each in partition.migrations):
            raise Conflict(
                f"partition {number} of table {name!r} moves to node {node!r}: cancel that first"
            )
    del draft.nodes[node]


def _set_up(draft: TopologyDraft, node: NodeId, *, run: int, is_up: bool) -> None:
    known = draft.node(node)
    # The "down" was decided about the former process; it would now demote a node that has just
    # registered and works.
    if known.run != run:
        raise Conflict(f"node {node!r} has started anew since it was judged")
    if known.is_up != is_up:
        draft.nodes[node] = msgspec.structs.replace(known, is_up=is_up)


def _add_user(draft: TopologyDraft, user: User) -> None:
    checked_name("user", user.name)
    draft.table(user.table)
    _check_text("a password's hash", user.password_hash)
    if user.name in draft.users:
        raise AlreadyExists(f"user {user.name!r} exists: choose another name, or remove it first")
    if len(draft.users) >= USERS_MAX:
        raise Overloaded(f"there are {USERS_MAX} users: remove some first")
    draft.users[user.name] = user


def _user(draft: TopologyDraft, name: str) -> User:
    if name not in draft.users:
        raise NotFound(f"there is no user {name!r}: check the name")
    return draft.users[name]


def _check_text(kind: str, *texts: str, is_needed: bool = True) -> None:
    for text in texts:
        if len(text) > _TEXT_MAX or (text and not text.isprintable()) or (is_needed and not text):
            raise InvalidInput(f"{kind} is {text[:80]!r}: give up to {_TEXT_MAX} plain characters")
