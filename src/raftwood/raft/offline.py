"""Work on the folder of a stopped store: its check, and the recovery of a group without quorum.

**Check** (`raftwood store check`), without changing anything. A group's state names its snapshots
and how far its log is committed: each snapshot has to be there and whole, chunk by chunk, and the
log has to go on where the newest one ends.

**Recovery** (`raftwood raft recover`). A group that lost its quorum for good goes on from one
store's copy, at an operator's command. All entries in this copy count as committed: entries that
only the lost stores had are gone, also some that were acknowledged. The membership that the
operator names takes effect at the store's next start, which writes it to the log, so that stores
that join learn it.

It is one write to the log: an empty entry of a new term, and the group's state with the new
members. Repeating it has the same effect. The lost stores are given up by number: if one comes back
with its old copy, its messages about this group are ignored (`GroupState.given_up`); terms alone
would not do, for two of three could still elect one another.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from raftwood.base import files as seam
from raftwood.base.environment import Environment
from raftwood.base.errors import InvalidInput, NotFound, StoreDamaged
from raftwood.base.files import Files, explained, perform
from raftwood.disk.inspection import Findings, FolderContent, name_of
from raftwood.disk.segment_log import LogSettings, Run, SegmentLog, SetState
from raftwood.disk.segment_log.index import GroupIndex
from raftwood.disk.segment_log.recovery import Damage
from raftwood.disk.store import DataFolder, FolderIdentity, Store
from raftwood.net.identity import split_address
from raftwood.raft.core import Entry, EntryKind, change_of
from raftwood.raft.entry_format import encode_run
from raftwood.raft.group_log import GroupState, GroupStorage, RepairStage, decode_state
from raftwood.raft.membership import members_of
from raftwood.raft.registry import (
    GROUP_MAX,
    HOST_GROUP,
    StoreRegistry,
    decode_registry,
    how_to_replace,
)
from raftwood.raft.snapshot_files import SnapshotFiles, snapshot_key
from raftwood.raft.snapshot_format import SnapshotDecoder

SNAPSHOT_FOLDER: Final = "snapshots"
_READ_BYTES: Final = 1 << 20


def is_raft_store(content: FolderContent) -> bool:
    """Whether the folder shows a raft host: snapshots, or the host's own record."""
    state = content.state(HOST_GROUP)
    if SNAPSHOT_FOLDER in content.names or state is None:
        return SNAPSHOT_FOLDER in content.names
    try:
        decode_registry(state)
    except StoreDamaged:
        return False
    return True


async def check_raft_store(environment: Environment, content: FolderContent) -> Findings:
    """Checks the snapshots that the groups name, and whether each group's log fits to them."""
    found = Findings(
        role=name_of(content.identity), remedy=_remedy(content.identity), names=(SNAPSHOT_FOLDER,)
    )
    named: list[tuple[int, int]] = []
    for group, index in sorted(content.groups.items()):
        try:
            if group == HOST_GROUP:
                decode_registry(index.state or b"")
            elif group <= GROUP_MAX:
                state = decode_state(group, index.state or b"")
                named += [(group, each) for each in state.snapshots]
                if reason := _gap(group, index, state):
                    found.damages.append(Damage(content.log_path, None, reason))
        except StoreDamaged as error:
            found.damages.append(Damage(content.log_path, None, error.message))
    folder = f"{content.path}/{SNAPSHOT_FOLDER}"
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


def _remedy(identity: FolderIdentity | None) -> str:
    number = "OLD" if identity is None else identity.store
    return (
        "start the store: it repairs damaged snapshots and a damaged log from the groups' other "
        "members, if these have a quorum. Where it cannot, or its IDENTITY is damaged, "
        f"{how_to_replace(number)}"
    )


def _gap(group: int, index: GroupIndex, state: GroupState) -> str:
    """What the log and snapshots of a group lack, compared with its state; empty: nothing."""
    newest = state.snapshots[-1] if state.snapshots else 0
    last = max(index.next_index - 1, newest)
    if state.commit > last:
        return f"group {group} ends at entry {last}, and {state.commit} was committed"
    if index.head > newest + 1:
        return f"group {group} lacks entries {newest + 1} to {index.head - 1}: no snapshot has them"
    return ""


async def _problem_of_snapshot(files: Files, path: str, group: int, index: int) -> str:
    """Reads all of a snapshot; returns its problem, empty if there is none."""
    decoder = SnapshotDecoder()
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


_READ_ENTRIES_BYTES = 4 << 20
_LOG_SETTINGS = LogSettings(segment_bytes=1 << 20)
"""Sizes may change between two starts, and little is written."""


class GroupCopy(msgspec.Struct, frozen=True):
    """One store's copy of a group."""

    group: int
    store: int
    term: int
    last_index: int
    last_term: int
    """Of several remaining stores, the one whose last entry has the highest term, then the highest
    index, has the most acknowledged entries."""
    commit: int
    """The last index known to be committed; later entries may never have been acknowledged."""
    stores: tuple[int, ...]
    """All stores that were ever members, by this copy."""


async def examine_group(environment: Environment, path: str, group: int) -> GroupCopy:
    """Reads a stopped store's whole copy of a group; `StoreDamaged` if it is bad."""
    store = await _open(environment, path)
    try:
        return (await _examine(environment, store, group))[0]
    finally:
        await _end(store)


async def recover_group(
    environment: Environment, path: str, group: int, members: Mapping[int, str]
) -> GroupCopy:
    """Gives a stopped store's group new members: this store, and others that never were in it."""
    for address in members.values():
        split_address(address)
    store = await _open(environment, path)
    try:
        copy, state = await _examine(environment, store, group)
        _check_members(copy, members)
        StoreRegistry(store.log).set_addresses(dict(members))
        await store.log.commit(*_records(copy, state, tuple(sorted(members))))
        return copy
    finally:
        await _end(store)


async def _end(store: Store) -> None:
    """Closes the store; a log that a crash has left in doubt stays so for the next start."""
    await (store.close() if store.log.was_closed else store.abandon())


async def _open(environment: Environment, path: str) -> Store:
    folder = await DataFolder.open_existing(environment, path.rstrip("/") or "/")
    try:
        with explained(path):
            log = await SegmentLog.open(environment, folder.log_path, _LOG_SETTINGS)
    except BaseException:
        await folder.close()
        raise
    return Store(folder, log)


async def _examine(
    environment: Environment, store: Store, group: int
) -> tuple[GroupCopy, GroupState]:
    log = store.log
    if group not in log.groups():
        raise NotFound(f"store {store.identity.store} has no group {group}: name one that it has")
    storage = GroupStorage(log, group)
    state = storage.state
    if state.is_removed or state.is_without_replica:
        raise StoreDamaged(
            f"the copy of group {group} on store {store.identity.store} was removed, or is damaged "
            "and was being repaired: choose another store of the group"
        )
    seen = dict.fromkeys((*state.voters, *state.forced_voters, *state.given_up))
    files = await SnapshotFiles.recover(environment.files, f"{store.path}/snapshots")
    for index in state.snapshots:
        async with await files.open(group, index) as reader:
            seen |= dict.fromkeys(members_of(reader.meta.configuration))
            async for _ in reader.chunks():
                pass  # verified as it is read
    seen |= dict.fromkeys(await _stores_in_log(storage))
    copy = GroupCopy(
        group=group,
        store=store.identity.store,
        term=state.term,
        last_index=storage.last_index(),
        last_term=storage.term(storage.last_index()),
        commit=state.commit,
        stores=tuple(sorted(seen)),
    )
    return copy, state


async def _stores_in_log(storage: GroupStorage) -> list[int]:
    found: dict[int, None] = {}
    index = storage.first_index()
    while index <= storage.last_index():
        entries = await storage.read(index, _READ_ENTRIES_BYTES)
        for entry in entries:
            if entry.kind in (EntryKind.CHANGE_V1, EntryKind.CHANGE_V2):
                found |= dict.fromkeys(step.node for step in change_of(entry).as_v2().steps)
        index = entries[-1].index + 1
    return list(found)


def _check_members(copy: GroupCopy, members: Mapping[int, str]) -> None:
    if copy.store not in members:
        raise InvalidInput(
            f"name store {copy.store} among the members: the group goes on from its copy"
        )
    known = [store for store in sorted(members) if store in copy.stores and store != copy.store]
    if known:
        raise InvalidInput(
            f"store {known[0]} was a member before, and its copy may differ from this one: leave "
            "it out, and let it join later with a new number and an empty folder"
        )


def _records(copy: GroupCopy, state: GroupState, voters: tuple[int, ...]) -> tuple[Run, SetState]:
    """Makes an empty entry of a new term, the term of the membership changes at the next start."""
    term = max(copy.term, copy.last_term) + 1
    run = encode_run([Entry(term, copy.last_index + 1)])
    changed = msgspec.structs.replace(
        state,
        term=term,
        vote=0,
        commit=copy.last_index + 1,
        forced_voters=voters,
        given_up=tuple(store for store in copy.stores if store not in voters),
        votes_from=0,
        repair=RepairStage.NONE,
        repair_as_voter=False,
    )
    return (
        Run(copy.group, run.term, run.first_index, run.count, run.payload),
        SetState(copy.group, changed.encoded()),
    )
