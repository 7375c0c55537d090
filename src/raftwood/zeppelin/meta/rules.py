"""`MetaState`: the meta server as a state machine, without I/O or clock.

A batch of changes is one step of the epoch. Each change is made or refused by itself, and those
that make no difference leave the epoch alone. What planners found out may be old by the time it
arrives here, so these rules hold whatever they say: a partition has at most one master, which is up
when it becomes that; a master that is up is replaced by a hand-over, or by nobody at first; and a
plan for a partition that has changed since is refused.
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
from raftwood.zeppelin.meta import replica_rules
from raftwood.zeppelin.meta.changes import (
    AddSlave,
    AddUser,
    Applied,
    BeginHandover,
    CancelHandover,
    Change,
    ChangeMaster,
    CreateTable,
    DropTable,
    EndHandover,
    Failed,
    ForceMaster,
    MarkSlaves,
    NodeDown,
    NodeUp,
    RegisterNode,
    RemoveNode,
    RemoveSlave,
    RemoveUser,
    SetMaster,
    SetPassword,
    failed,
)
from raftwood.zeppelin.meta.deltas import HISTORY_MAX, Delta, History, difference
from raftwood.zeppelin.meta.draft import Draft
from raftwood.zeppelin.meta.placement import place
from raftwood.zeppelin.model import (
    Node,
    NodeId,
    Table,
    Topology,
    User,
    checked_table_name,
)

TABLES_MAX: Final = 1_000
NODES_MAX: Final = 1_000
USERS_MAX: Final = 10_000
PARTITIONS_MAX: Final = 65_536
"""Of all tables together."""
_TEXT_MAX: Final = 512


class MetaState:
    """A topology and how it came about; equal batches lead to equal states."""

    def __init__(self, topology: Topology | None = None, *, history_max: int = HISTORY_MAX) -> None:
        self.topology = topology or Topology()
        self._history = History(epochs_max=history_max)

    def apply(self, changes: tuple[Change, ...]) -> Applied:
        before = self.topology
        draft = Draft(before)
        results = tuple(_result(draft, change) for change in changes)
        self.topology = draft.finished()
        if self.topology is not before:
            self._history.add(difference(before, self.topology))
        return Applied(self.topology.epoch, results)

    def delta(self, after_epoch: int) -> Delta:
        """What one who knows an epoch has to hear of."""
        return self._history.since(after_epoch, self.topology)


def _result(draft: Draft, change: Change) -> Failed | None:
    try:
        _make(draft, change)
    except RaftwoodError as error:
        return failed(error)
    return None


def _make(draft: Draft, change: Change) -> None:
    """All that can refuse a change comes before anything that it does."""
    match change:
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
            replica_rules.change_master(draft, change)
        case ForceMaster():
            replica_rules.force_master(draft, change)
        case MarkSlaves():
            replica_rules.mark_slaves(draft, change)
        case BeginHandover():
            replica_rules.begin_handover(draft, change)
        case EndHandover():
            replica_rules.end_handover(draft, change)
        case CancelHandover():
            replica_rules.cancel_handover(draft, change)
        case SetMaster():
            replica_rules.set_master(draft, change)
        case AddSlave():
            replica_rules.add_slave(draft, change)
        case RemoveSlave():
            replica_rules.remove_slave(draft, change)


def _create_table(draft: Draft, change: CreateTable) -> None:
    name, config = checked_table_name(change.name), change.config
    if name in draft.tables:
        raise AlreadyExists(f"table {name!r} exists: choose another name")
    if any(each.incarnation == draft.epoch for each in draft.tables.values()):
        raise Conflict("two tables cannot be made in one step: give each a batch of its own")
    partitions = sum(len(each.partitions) for each in draft.tables.values())
    if len(draft.tables) >= TABLES_MAX or partitions + config.partitions > PARTITIONS_MAX:
        raise Overloaded(
            f"there are {len(draft.tables)} tables of {partitions} partitions, and {TABLES_MAX} of "
            f"{PARTITIONS_MAX} at the most: drop some first"
        )
    tables = draft.tables.values()
    placed = place(config, nodes=draft.nodes, tables=tables, epoch=draft.epoch)
    draft.add_table(Table(name=name, incarnation=draft.epoch, config=config, partitions=placed))


def _drop_table(draft: Draft, name: str) -> None:
    for number in range(len(draft.table(name).partitions)):
        replica_rules.check_no_handover(name, number, draft.partition(name, number))
    draft.drop_table(name)
    # Whoever may use this table may not use the next one of its name.
    for user in [each for each in draft.users.values() if each.table == name]:
        del draft.users[user.name]


def _register_node(draft: Draft, change: RegisterNode) -> None:
    checked_name("node", change.id)
    addresses = change.addresses
    _check_text("an address", addresses.data, addresses.replication, addresses.admin)
    _check_text("a failure domain", change.failure_domain, is_needed=False)
    known = draft.nodes.get(change.id)
    if known is None and len(draft.nodes) >= NODES_MAX:
        raise Overloaded(f"there are {NODES_MAX} nodes: remove some first")
    draft.nodes[change.id] = Node(
        id=change.id,
        addresses=addresses,
        failure_domain=change.failure_domain,
        is_up=True,
        run=change.run,
    )
    if known is not None and known.run != change.run:
        replica_rules.demote_restarted(draft, change.id)


def _remove_node(draft: Draft, node: NodeId) -> None:
    if draft.node(node).is_up:
        raise Conflict(f"node {node!r} is up: stop it first")
    for name, number, partition in draft.all_partitions():
        if node in partition.replicas:
            raise Conflict(
                f"node {node!r} has partition {number} of table {name!r}: move what it has first"
            )
    del draft.nodes[node]


def _set_up(draft: Draft, node: NodeId, *, run: int, is_up: bool) -> None:
    known = draft.node(node)
    if known.run != run:
        raise Conflict(f"node {node!r} has started anew since it was judged")
    if known.is_up != is_up:
        draft.nodes[node] = Node(
            id=node,
            addresses=known.addresses,
            failure_domain=known.failure_domain,
            is_up=is_up,
            run=run,
        )


def _add_user(draft: Draft, user: User) -> None:
    checked_name("user", user.name)
    draft.table(user.table)
    _check_text("a password's hash", user.password_hash)
    if user.name in draft.users:
        raise AlreadyExists(f"user {user.name!r} exists: choose another name, or remove it first")
    if len(draft.users) >= USERS_MAX:
        raise Overloaded(f"there are {USERS_MAX} users: remove some first")
    draft.users[user.name] = user


def _user(draft: Draft, name: str) -> User:
    if name not in draft.users:
        raise NotFound(f"there is no user {name!r}: check the name")
    return draft.users[name]


def _check_text(kind: str, *texts: str, is_needed: bool = True) -> None:
    for text in texts:
        if len(text) > _TEXT_MAX or (text and not text.isprintable()) or (is_needed and not text):
            raise InvalidInput(f"{kind} is {text[:80]!r}: give up to {_TEXT_MAX} plain characters")
