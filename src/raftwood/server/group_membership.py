"""Changes of a raft group's members as an operator makes them: checked, step by step."""

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from raftwood.base.errors import Conflict, DeadlineExceeded, InvalidInput, RaftwoodError
from raftwood.net.stores import Stores
from raftwood.raft.admin import RaftAdmin
from raftwood.raft.membership import MemberAction, MemberStep
from raftwood.raft.node_host import GroupStatus
from raftwood.server.store import DESCRIBE

ANSWER_MS = 1_500
BEHIND_MAX = 100
"""Entries that a learner may lack when it gets a vote: it has them within a moment."""
_POLL_S = 0.1


async def status_of_all(stores: Stores, group: int) -> list[dict[str, Any]]:
    """A row for each store that is known, also for one that does not answer."""
    rows = await asyncio.gather(*(_status_row(stores, group, store) for store in stores.known()))
    for leader in rows:
        if leader["role"] == "leader":
            for row in rows:
                row["member"] = _membership(row["store"], leader["voters"], leader["learners"])
    return rows


def _membership(store: int, voters: Sequence[int], learners: Sequence[int]) -> str | None:
    return "voter" if store in voters else "learner" if store in learners else None


async def _status_row(stores: Stores, group: int, store: int) -> dict[str, Any]:
    row: dict[str, Any] = {"store": store, "address": stores.address(store)}
    try:
        channel = await stores.connected(store, ANSWER_MS)
        description = await channel.ask(DESCRIBE, None, ANSWER_MS)
    except RaftwoodError as error:
        return row | {"role": "unreachable", "error": error.message}
    row |= {"pid": description.pid, "version": description.version}
    if group not in description.groups:
        return row | {"role": "no replica"}
    try:
        status = await RaftAdmin(stores).status(group, store=store, timeout_ms=ANSWER_MS)
    except RaftwoodError as error:
        return row | {"role": "unknown", "error": error.message}
    return row | msgspec.structs.asdict(status)


def members_of(leader: GroupStatus) -> list[dict[str, Any]]:
    """A row for each member, from the leader's view."""
    return [
        {
            "store": store,
            "address": leader.addresses.get(store),
            "member": _membership(store, leader.voters, leader.learners),
            "leads": store == leader.store,
            "match": leader.matches.get(store),
            "behind": leader.last_index - leader.matches.get(store, 0),
        }
        for store in sorted({*leader.voters, *leader.learners})
    ]


async def add_learner(stores: Stores, group: int, store: int, address: str) -> GroupStatus:
    """A new member without a vote, which is sent all data."""
    admin = RaftAdmin(stores)
    leader = await admin.leader_status(group)
    if store in leader.voters:
        raise Conflict(f"store {store} is a voter of group {group} already")
    await admin.change_members(group, [MemberStep(MemberAction.ADD_LEARNER, store, address)])
    return await admin.leader_status(group)


async def promote_when_caught_up(
    stores: Stores, group: int, store: int, *, wait_s: float
) -> GroupStatus:
    """A vote for a learner; before it has caught up, its vote could hold all writes up."""
    admin = RaftAdmin(stores)
    if store in (await admin.leader_status(group)).voters:
        raise Conflict(f"store {store} is a voter of group {group} already")
    await wait_until_caught_up(stores, group, store, wait_s=wait_s)
    await admin.change_members(group, [MemberStep(MemberAction.ADD_VOTER, store)])
    return await admin.leader_status(group)


async def wait_until_caught_up(stores: Stores, group: int, store: int, *, wait_s: float) -> None:
    """Until a member has nearly all that the leader has."""
    admin = RaftAdmin(stores)
    try:
        async with asyncio.timeout(wait_s):
            await _until_caught_up(admin, group, store)
    except TimeoutError:
        raise DeadlineExceeded(
            f"store {store} has not caught up with group {group} in {wait_s:g} s: see that it "
            "runs at the address it was added with, for the first time with --join"
        ) from None


async def _until_caught_up(admin: RaftAdmin, group: int, store: int) -> None:
    while True:
        leader = await admin.leader_status(group)
        if store not in {*leader.voters, *leader.learners}:
            raise InvalidInput(f"store {store} is no member of group {group}: add it first")
        if leader.last_index - leader.matches.get(store, 0) <= BEHIND_MAX:
            return
        await asyncio.sleep(_POLL_S)


async def remove_member(
    stores: Stores, group: int, store: int, *, is_forced: bool = False
) -> GroupStatus:
    """One member less, unless those that are left and answer would be no majority."""
    admin = RaftAdmin(stores)
    leader = await admin.leader_status(group)
    if store not in {*leader.voters, *leader.learners}:
        raise InvalidInput(f"store {store} is no member of group {group}")
    left = [voter for voter in leader.voters if voter != store]
    rows = await status_of_all(stores, group)
    alive = [row["store"] for row in rows if row.get("leader") and row["store"] in left]
    if len(alive) <= len(left) // 2 and not is_forced:
        raise Conflict(
            f"without store {store} only {len(alive)} of {len(left)} voters of group {group} "
            "would answer, no majority: start the others, or add one first (--force does it anyway)"
        )
    if leader.store == store and alive:
        # Handed over, leadership is away for a moment; a leader that is removed leaves a gap.
        await admin.transfer(group, max(alive, key=lambda each: leader.matches.get(each, 0)))
    await admin.change_members(group, [MemberStep(MemberAction.REMOVE, store)])
    return await _next_leader(admin, group, removed=store)


async def replace_member(
    stores: Stores, group: int, *, old: int, new: int, address: str, wait_s: float
) -> GroupStatus:
    """A new store in the place of one that is lost or is to go; goes on where it was interrupted.

    The new one has its vote before the old one goes, so that the group never counts on fewer.
    """
    leader = await RaftAdmin(stores).leader_status(group)
    if old not in {*leader.voters, *leader.learners}:
        raise InvalidInput(f"store {old} is no member of group {group}")
    if new == old:
        raise InvalidInput(f"store {old} cannot replace itself: give the new store a new number")
    if new not in {*leader.voters, *leader.learners}:
        await add_learner(stores, group, new, address)
    if old in leader.voters and new not in leader.voters:
        await promote_when_caught_up(stores, group, new, wait_s=wait_s)
    return await remove_member(stores, group, old)


async def _next_leader(admin: RaftAdmin, group: int, *, removed: int) -> GroupStatus:
    """A leader that removed itself leaves, and another one stands up."""
    for _ in range(50):
        try:
            leader = await admin.leader_status(group, timeout_ms=ANSWER_MS)
            if leader.store != removed:
                return leader
        except RaftwoodError as error:
            if not error.retriable:
                raise
        await asyncio.sleep(_POLL_S)
    raise DeadlineExceeded(f"store {removed} was removed, and group {group} has no leader yet")
