"""Verifies the engines of a node of Zeppelin, for `raftwood store check`.

The log names the engine of each partition, and has the records that the engine still lacks. The
check reads the whole engine, which verifies its checksums, and changes nothing. It does not find a
damaged filter: RocksDB works without it, only slower.
"""

from typing import Final

from raftwood.base.environment import Environment
from raftwood.base.errors import RaftwoodError, StoreDamaged
from raftwood.disk.inspection import Findings, FolderContent
from raftwood.disk.segment_log.index import GroupIndex
from raftwood.disk.segment_log.recovery import Damage
from raftwood.zeppelin.node.engine import (
    DATA_END,
    DATA_START,
    STATE_KEY,
    decode_state,
    decode_value,
)
from raftwood.zeppelin.node.engine_folders import (
    ENGINES_FOLDER,
    OWN_GROUP,
    Engines,
    decode_held,
    partition_of,
)
from raftwood.zeppelin.node.store import REMEDY, decode_own

_REMEDY: Final = (
    "a damaged engine is taken anew from the partition's master once the node runs; for a damaged "
    f"log or identity, {REMEDY}"
)


def is_node(content: FolderContent) -> bool:
    """Whether the folder is a node's: it has engines, or the node's own record."""
    if ENGINES_FOLDER in content.names:
        return True
    state = content.state(OWN_GROUP)
    try:
        return state is not None and decode_own(state).version >= 1
    except StoreDamaged:
        return False


async def check_node(_: Environment, content: FolderContent, *, engines: Engines) -> Findings:
    """Reads the engines that the log names, from the first key to the last."""
    identity = content.identity
    name = "a node of Zeppelin" if identity is None else f"kv node {identity.incarnation}"
    found = Findings(role=name, remedy=_REMEDY, names=(ENGINES_FOLDER,))
    names = await engines.names()
    named: list[str] = []
    pairs = 0
    for group, index in sorted(content.groups.items()):
        try:
            if index.state is None:
                raise StoreDamaged(f"partition {partition_of(group)} has records and no engine")
            if group == OWN_GROUP:
                decode_own(index.state)
                continue
            held = decode_held(index.state, group=group)
        except StoreDamaged as error:
            found.damages.append(Damage(content.log_path, None, error.message))
            continue
        named.append(held.engine)
        folder = engines.folder(held.engine)
        if held.engine not in names:
            # An engine may be missing if it was never opened or is rebuilt from the binlog's first
            # record.
            if index.head > 1:
                reason = f"it is missing, and the binlog begins at record {index.head}"
                found.damages.append(Damage(folder, None, reason))
            continue
        try:
            pairs += await _read_all(engines, folder, index)
        except RaftwoodError as error:
            found.damages.append(Damage(folder, None, error.message))
    found.left_over = [engines.folder(name) for name in names if name not in named]
    found.checked = f"{len(named)} partitions, {pairs:,} keys in their engines"
    return found


async def _read_all(engines: Engines, folder: str, index: GroupIndex) -> int:
    """Returns the number of keys; raises if one cannot be read, or the binlog does not fit."""
    engine = await engines.open(folder, is_read_only=True)
    try:
        pairs = 0
        for key, stored in engine.scan():
            if DATA_START <= key < DATA_END:
                try:
                    decode_value(stored)
                except StoreDamaged as error:
                    raise StoreDamaged(f"key {key!r}: {error.message}") from error
                pairs += 1
        stored_state = engine.get(STATE_KEY)
        sequence = 0 if stored_state is None else decode_state(stored_state).sequence
        if not index.head - 1 <= sequence < index.next_index:
            raise StoreDamaged(
                f"the engine ends at record {sequence}, and the binlog has {index.head} to "
                f"{index.next_index - 1}"
            )
        return pairs
    finally:
        await engine.close()
