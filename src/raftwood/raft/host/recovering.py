"""A group that lost its quorum for good goes on from one store's copy, at an operator's word.

Works on the folder of a store that is stopped. What this copy has counts as committed: entries that
only the lost stores had are gone, also some that were acknowledged. The membership that the
operator names takes effect at the store's next start, which writes it to the log, so that whoever
joins learns it.

All is one write to the log: an empty entry of a new term, and the group's state with the new
members. Done twice, it does the same again. The lost stores are given up by number: should one come
back with its old copy, nothing it says about this group is heard (`GroupState.given_up`); terms
alone would not do, for two of three could still elect one another.
"""

from collections.abc import Mapping

import msgspec

from raftwood.base.environment import Environment
from raftwood.base.errors import InvalidInput, NotFound, StoreDamaged
from raftwood.disk.explaining import explained
from raftwood.disk.folder import DataFolder
from raftwood.disk.segment_log import LogSettings, Run, SegmentLog, State
from raftwood.disk.store import Store
from raftwood.net.store_names import split_address
from raftwood.raft.core import Entry, EntryKind, change_of
from raftwood.raft.host.book import StoreBook
from raftwood.raft.host.group_state import GroupState, RepairStage
from raftwood.raft.host.group_storage import GroupStorage
from raftwood.raft.host.membership import members_of
from raftwood.raft.host.runs import encode_run
from raftwood.raft.host.snapshots import SnapshotFiles

_READ_BYTES = 4 << 20
_LOG_SETTINGS = LogSettings(segment_bytes=1 << 20)
"""Sizes are free to change between two starts, and little is written."""


class GroupCopy(msgspec.Struct, frozen=True):
    """What one store has of a group."""

    group: int
    store: int
    term: int
    last_index: int
    last_term: int
    """Of several stores that are left, the one whose last entry has the highest term, then the
    highest index, has most of what was acknowledged."""
    commit: int
    """Known to be committed; what is after it may never have been acknowledged."""
    stores: tuple[int, ...]
    """All that were ever members, as far as this copy tells."""


async def examine_group(environment: Environment, path: str, group: int) -> GroupCopy:
    """Read a stopped store's copy of a group, all of it; `StoreDamaged` where it is bad."""
    store = await _open(environment, path)
    try:
        return (await _examine(environment, store, group))[0]
    finally:
        await _end(store)


async def recover_group(
    environment: Environment, path: str, group: int, members: Mapping[int, str]
) -> GroupCopy:
    """Give a stopped store's group new members: this store, and others that never were in it."""
    for address in members.values():
        split_address(address)
    store = await _open(environment, path)
    try:
        copy, state = await _examine(environment, store, group)
        _check_members(copy, members)
        StoreBook(store.log).set_addresses(dict(members))
        await store.log.commit(*_records(copy, state, tuple(sorted(members))))
        return copy
    finally:
        await _end(store)


async def _end(store: Store) -> None:
    """A log that a crash has left in doubt stays so for the store's next start."""
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
        entries = await storage.read(index, _READ_BYTES)
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


def _records(copy: GroupCopy, state: GroupState, voters: tuple[int, ...]) -> tuple[Run, State]:
    """One empty entry of a new term, which the changes of the membership at the next start have."""
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
        State(copy.group, changed.encoded()),
    )
