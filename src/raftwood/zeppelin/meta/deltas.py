"""Changes between two epochs, which nodes and clients get instead of the whole topology."""

from collections import deque
from itertools import zip_longest
from typing import Final, TypeVar

import msgspec

from raftwood.base.errors import InvariantViolated
from raftwood.zeppelin.model import EPOCH_NONE, NodeId, NodeInfo, Partition, Table, Topology, User

HISTORY_MAX: Final = 1_000
"""Number of epochs in the history; a client with an older one gets the whole topology."""

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class Delta(msgspec.Struct, frozen=True, kw_only=True):
    """The changes from one epoch to another; None: removed."""

    after: int
    epoch: int
    is_whole: bool = False
    """Holds the whole topology at `epoch`, whatever was known before."""
    tables: dict[str, Table | None] = {}
    partitions: dict[str, dict[int, Partition]] = {}
    """Changed and new partitions of tables that otherwise stay the same."""
    nodes: dict[NodeId, NodeInfo | None] = {}
    users: dict[str, User | None] = {}


def whole(topology: Topology) -> Delta:
    return Delta(
        after=EPOCH_NONE,
        epoch=topology.epoch,
        is_whole=True,
        tables={**topology.tables},
        nodes={**topology.nodes},
        users={**topology.users},
    )


def _lasting(table: Table) -> tuple[object, ...]:
    """Returns what a delta sends of a table as a whole, apart from its partitions."""
    return table.incarnation, table.config, table.reads


def difference(before: Topology, after: Topology) -> Delta:
    """Returns what one batch changed; unchanged parts are the same objects in both."""
    tables: dict[str, Table | None] = {
        name: None for name in before.tables if name not in after.tables
    }
    partitions: dict[str, dict[int, Partition]] = {}
    for name, table in after.tables.items():
        old = before.tables.get(name)
        if old is table:
            continue
        if old is None or _lasting(old) != _lasting(table):
            tables[name] = table
        else:
            pairs = enumerate(zip_longest(old.partitions, table.partitions))
            partitions[name] = {number: new for number, (old, new) in pairs if new is not old}
    nodes: dict[NodeId, NodeInfo | None] = {
        each: None for each in before.nodes if each not in after.nodes
    }
    users: dict[str, User | None] = {each: None for each in before.users if each not in after.users}
    nodes |= {key: node for key, node in after.nodes.items() if before.nodes.get(key) is not node}
    users |= {key: user for key, user in after.users.items() if before.users.get(key) is not user}
    return Delta(
        after=before.epoch,
        epoch=after.epoch,
        tables=tables,
        partitions=partitions,
        nodes=nodes,
        users=users,
    )


def applied(topology: Topology, delta: Delta) -> Topology:
    """Returns the topology after a delta; the same object if the delta has nothing new."""
    if delta.epoch <= topology.epoch:
        return topology
    if not delta.is_whole and delta.after > topology.epoch:
        raise InvariantViolated(
            f"a delta from epoch {delta.after} on does not fit epoch {topology.epoch}"
        )
    base = Topology() if delta.is_whole else topology
    tables = _merged(base.tables, delta.tables)
    for name, changed in delta.partitions.items():
        tables[name] = _with_partitions(tables[name], changed)
    return Topology(
        epoch=delta.epoch,
        tables=tables,
        nodes=_merged(base.nodes, delta.nodes),
        users=_merged(base.users, delta.users),
    )


def _merged(base: dict[_Key, _Value], changed: dict[_Key, _Value | None]) -> dict[_Key, _Value]:
    return {key: value for key, value in {**base, **changed}.items() if value is not None}


def _with_partitions(table: Table, changed: dict[int, Partition]) -> Table:
    partitions = dict(enumerate(table.partitions)) | changed
    in_order = tuple(partitions[number] for number in range(len(partitions)))
    return msgspec.structs.replace(table, partitions=in_order)


class DeltaHistory:
    """The deltas of the last epochs."""

    def __init__(self, *, epochs_max: int = HISTORY_MAX) -> None:
        self._deltas: deque[Delta] = deque(maxlen=epochs_max)

    def add(self, delta: Delta) -> None:
        self._deltas.append(delta)

    def since(self, epoch: int, topology: Topology) -> Delta:
        """Returns the delta from an epoch to `topology`, the newest one. It is empty if nothing is
        new, and whole if that epoch is forgotten.
        """
        if epoch == topology.epoch:
            return Delta(after=epoch, epoch=epoch)
        if epoch > topology.epoch or not self._deltas or epoch < self._deltas[0].after:
            return whole(topology)
        tables: dict[str, Table | None] = {}
        changed: dict[str, dict[int, Partition]] = {}
        nodes: dict[NodeId, NodeInfo | None] = {}
        users: dict[str, User | None] = {}
        for delta in self._deltas:
            if delta.epoch <= epoch:
                continue
            nodes |= delta.nodes
            users |= delta.users
            tables |= delta.tables
            for name in delta.tables:
                changed.pop(name, None)
            for name, partitions in delta.partitions.items():
                changed.setdefault(name, {}).update(partitions)
        for name in [each for each in changed if each in tables]:
            # The table was made since then: send it once, as it is now.
            tables[name] = topology.tables[name]
            del changed[name]
        return Delta(
            after=epoch,
            epoch=topology.epoch,
            tables=tables,
            partitions=changed,
            nodes=nodes,
            users=users,
        )
