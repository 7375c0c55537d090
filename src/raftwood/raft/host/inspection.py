"""What `raftwood store check` verifies of a raft store beside its log, without changing anything.

A group's state names its snapshots and how far its log is committed: each snapshot has to be there
and whole, chunk by chunk, and the log has to go on where the newest one ends.
"""

from typing import Final

from raftwood.base import files as seam
from raftwood.base.environment import Environment
from raftwood.base.errors import StoreDamaged
from raftwood.base.files import Files, perform
from raftwood.disk.folder import Identity
from raftwood.disk.inspection import Findings, FolderContent, name_of
from raftwood.disk.segment_log.index import GroupIndex
from raftwood.disk.segment_log.recovery import Damage
from raftwood.raft.host.book import GROUP_MAX, HOST_GROUP, decode_book, how_to_replace
from raftwood.raft.host.group_state import GroupState, decode_state
from raftwood.raft.host.snapshots.container import Decoder
from raftwood.raft.host.snapshots.store import snapshot_key

FOLDER: Final = "snapshots"
_READ_BYTES: Final = 1 << 20


def is_raft_store(content: FolderContent) -> bool:
    """Whether there is a sign of a raft host: its folder of snapshots, or its own record."""
    state = content.state(HOST_GROUP)
    if FOLDER in content.names or state is None:
        return FOLDER in content.names
    try:
        decode_book(state)
    except StoreDamaged:
        return False
    return True


async def check_raft_store(environment: Environment, content: FolderContent) -> Findings:
    """The snapshots that the groups name, and whether each group's log fits to them."""
    found = Findings(
        role=name_of(content.identity), remedy=_remedy(content.identity), names=(FOLDER,)
    )
    named: list[tuple[int, int]] = []
    for group, index in sorted(content.groups.items()):
        try:
            if group == HOST_GROUP:
                decode_book(index.state or b"")
            elif group <= GROUP_MAX:
                state = decode_state(group, index.state or b"")
                named += [(group, each) for each in state.snapshots]
                if reason := _gap(group, index, state):
                    found.damages.append(Damage(content.log_path, None, reason))
        except StoreDamaged as error:
            found.damages.append(Damage(content.log_path, None, error.message))
    folder = f"{content.path}/{FOLDER}"
    for group, at in named:
        path = f"{folder}/{group}-{at}.snapshot"
        reason = await _problem_of_snapshot(environment.files, path, group, at)
        if reason:
            found.damages.append(Damage(path, None, reason))
    (names,) = await perform(environment.files, seam.ListDirectory(folder))
    found.left_over = [
        f"{folder}/{name}" for name in names or () if snapshot_key(name) not in named
    ]
    found.checked = f"{len(named)} snapshots"
    return found


def _remedy(identity: Identity | None) -> str:
    number = "OLD" if identity is None else identity.store
    return (
        "start the store: it repairs damaged snapshots and a damaged log from the groups' other "
        "members, if these have a quorum. Where it cannot, or its IDENTITY is damaged, "
        f"{how_to_replace(number)}"
    )


def _gap(group: int, index: GroupIndex, state: GroupState) -> str:
    """What the log and the snapshots of a group lack of what its state says; empty: nothing."""
    newest = state.snapshots[-1] if state.snapshots else 0
    last = max(index.next_index - 1, newest)
    if state.commit > last:
        return f"group {group} ends at entry {last}, and {state.commit} was committed"
    if index.head > newest + 1:
        return f"group {group} lacks entries {newest + 1} to {index.head - 1}: no snapshot has them"
    return ""


async def _problem_of_snapshot(files: Files, path: str, group: int, index: int) -> str:
    """Read all of a snapshot; what is wrong with it, empty where nothing is."""
    decoder = Decoder()
    offset = 0
    (size,) = await perform(files, seam.Size(path))
    if size is None:
        return f"the snapshot of group {group} at entry {index} is missing"
    try:
        while offset < size:
            (data,) = await perform(files, seam.Read(path, offset, _READ_BYTES))
            offset += len(data)
            decoder.feed(data)
        decoder.finish()
    except StoreDamaged as error:
        return error.message
    meta = decoder.meta
    assert meta is not None
    if (meta.group, meta.index) != (group, index):
        return f"it is the snapshot of group {meta.group} at entry {meta.index}"
    return ""
