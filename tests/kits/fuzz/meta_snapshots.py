"""What a metastore keeps, its snapshots and its entries in ZooKeeper, as targets for a mutator."""

import msgspec

from raftwood.base.errors import StoreDamaged, UnsupportedVersion
from raftwood.base.seams import RemoveKey, SetKey
from raftwood.metastore import commands
from raftwood.metastore.rules import MetastoreState
from raftwood.metastore.zookeeper_store import (
    SnapshotMark,
    ZooKeeperLogEntry,
    decode_entry,
    decode_mark,
)


def snapshot_target(data: bytes) -> None:
    """What is taken can be worked with; all else is told."""
    try:
        state = MetastoreState.restored(data)
    except (StoreDamaged, UnsupportedVersion):
        return
    state.apply(commands.encode(commands.ExpireLeases()), state.now_ms + 1)
    state.range(prefix="", start="", end=None, limit=10)


def snapshot_seeds() -> list[bytes]:
    """Valid inputs for `snapshot_target`."""
    state = MetastoreState()
    found = [state.snapshot()]
    sets = (SetKey("shards/1", b"node-a"), SetKey("owners/ü", b"", 1), SetKey("gone", b""))
    for command in (
        commands.GrantLease(900),
        commands.Transact((), sets),
        commands.Transact((), (RemoveKey("gone"),)),
    ):
        state.apply(commands.encode(command), 5)
        found.append(state.snapshot())
    return found


def entry_target(data: bytes) -> None:
    """Either kind of node; what is taken means the same when it is said again."""
    for decode in (decode_mark, decode_entry):
        try:
            taken = decode("a node", data)
        except (StoreDamaged, UnsupportedVersion):
            continue
        assert decode("a node", msgspec.msgpack.encode(taken)) == taken


def entry_seeds() -> list[bytes]:
    """Valid inputs for `entry_target`."""
    renewal = commands.encode(commands.KeepAlive(3))
    return [
        msgspec.msgpack.encode(ZooKeeperLogEntry(1, 1 << 60, ((1, renewal), (2, renewal)))),
        msgspec.msgpack.encode(ZooKeeperLogEntry(1, 7, ())),
        msgspec.msgpack.encode(SnapshotMark(1)),
        msgspec.msgpack.encode(SnapshotMark(1, 20_000, "00000000000000020000-00ff", 3, 15_000)),
    ]
