"""Repair of a damaged replica from its peers, by itself, step by step and across restarts.

A replica whose data proves bad is halted: it says nothing any more. Then, with the stage stored in
the group's state, so that a crash at any point goes on from there:

1. leave: the group removes this store. Only so does a leader forget how much of the log it
   believed to be here.
2. The data is dropped, but not the term and the vote: the store can't vote twice in a term.
3. join: the group adds the store as a learner, and its replica starts empty.
4. learn: it catches up as any new replica does, and becomes a voter if it was one.

Why nothing is lost: removal and addition are committed by a majority of the other members, who
therefore hold every entry that this store had helped to commit. The store itself neither votes nor
stands before it has those entries again (`GroupState.votes_from`), whatever old membership it
replays meanwhile. An old acknowledgement that comes late tells the leader of entries from before
the addition alone, which the store has by the time it is a voter again.

Between 1 and 4 a group of three has two voters: both must run. This can't be avoided with the
store's number kept, for a voter that has forgotten its log must not be one.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

import msgspec

from raftwood.base.environment import Environment
from raftwood.base.errors import (
    NotFound,
    NotLeader,
    RaftwoodError,
    ShuttingDown,
    Unavailable,
)
from raftwood.base.logs import get_logger
from raftwood.base.metrics import Metrics
from raftwood.net import Backoff
from raftwood.raft.host.group_state import GroupState, RepairStage
from raftwood.raft.host.opening import Opener
from raftwood.raft.host.peers import Peers
from raftwood.raft.host.repair_service import (
    REPAIR,
    STEP_TIMEOUT_MS,
    RepairAnswer,
    RepairRequest,
    RepairStep,
)
from raftwood.raft.host.replica import Replica
from raftwood.raft.host.snapshots import SnapshotFiles
from raftwood.raft.host.snapshotting import Snapshotting

ATTEMPTS_MAX: Final = 100
"""In a row without any success; with the pauses between them, about three quarters of an hour."""
_PAUSE: Final = Backoff(first_ms=200, longest_ms=30_000)
_LEARN_PAUSE_S: Final = 0.5
_LAG_MAX: Final = 1_000
"""Entries that a learner may be behind when it is made a voter."""
REMEDY: Final = (
    "if the other stores have lost the group for good, restore this store from a backup, or give "
    "the group new members with 'raftwood raft recover' on a store whose copy is whole"
)

_log = get_logger("raft")


class _GivenUp(Exception):
    """The repair has ended, for another reason than success."""


class Repairs:
    """The repairs of one host; each is one task."""

    def __init__(
        self,
        environment: Environment,
        peers: Peers,
        opener: Opener,
        snapshotting: Snapshotting,
        snapshot_files: SnapshotFiles,
        *,
        own: int,
        running: Callable[[int], Replica | None],
        start: Callable[[int], Awaitable[None]],
        run: Callable[[Coroutine[Any, Any, None], str], None],
    ) -> None:
        self._random = environment.random
        self._peers = peers
        self._opener = opener
        self._snapshotting = snapshotting
        self._snapshot_files = snapshot_files
        self._own = own
        self._running = running
        self._start = start
        self._run = run
        self._leader = 0
        self._under_way: dict[int, object] = {}
        self.problems: dict[int, str] = {}
        """Groups without a replica that serves: what is wrong, and what is being done."""
        self.damage_count = 0
        """How often since the start a replica was found damaged, or still was."""

    def register_metrics(self, metrics: Metrics) -> None:
        metrics.pull_gauge(
            "raft_groups_halted", "Replicas stopped for damage.", lambda: len(self.problems)
        )
        metrics.pull_counter(
            "raft_damages_total", "Replicas found damaged.", lambda: self.damage_count
        )

    def begin(self, group: int, reason: str, *, halted: Replica | None = None) -> None:
        """Repair a group's replica, which is halted or could not be started."""
        token = self._under_way[group] = object()
        self.problems[group] = f"being repaired: {reason}"
        self.damage_count += 1
        _log.error("replica is damaged", group=group, reason=reason)
        self._run(self._repair(group, reason, token, halted), f"repair of group {group}")

    def go_on(self, group: int) -> None:
        """A replica that runs has still to become what it was."""
        token = self._under_way[group] = object()
        self._run(self._repair(group, "", token, None), f"repair of group {group}")

    def stop(self, group: int) -> None:
        """The group was stopped or removed here; its repair ends at its next step."""
        self._under_way.pop(group, None)
        self.problems.pop(group, None)

    async def _repair(self, group: int, reason: str, token: object, halted: Replica | None) -> None:
        for _ in range(ATTEMPTS_MAX):
            if halted is None or not halted.is_saving:
                break
            await asyncio.sleep(_LEARN_PAUSE_S)  # the save ends at its next chunk
        failures, is_damaged = 0, bool(reason)
        while self._under_way.get(group) is token:
            try:
                is_done = await self._step(group, token, is_damaged=is_damaged)
            except (_GivenUp, ShuttingDown):
                return
            except RaftwoodError as error:
                failures += 1
                self._failed(group, reason, error, is_last=failures == ATTEMPTS_MAX)
                if failures == ATTEMPTS_MAX:
                    return
                await asyncio.sleep(_PAUSE.delay_s(failures, self._random))
            else:
                failures, is_damaged = 0, False
                if is_done:
                    self._under_way.pop(group, None)
                    _log.info("replica repaired", group=group)

    def _failed(self, group: int, reason: str, error: RaftwoodError, *, is_last: bool) -> None:
        what = "halted until the next start" if is_last else "halted, to be repaired"
        problem = f"{what}: {reason or 'a repair was under way'}; {error.message}; {REMEDY}"
        if self._running(group) is None:
            self.problems[group] = problem
        log = _log.error if is_last else _log.warning
        log("repair waits", group=group, reason=error.message, remedy=REMEDY)

    # Steps; each may be done again.

    async def _step(self, group: int, token: object, *, is_damaged: bool) -> bool:
        """Bring a repair one stage on; answers whether it is at its end."""
        state = self._opener.state_of(group)
        if state is None:
            raise _GivenUp
        match state.repair:
            case RepairStage.NONE:
                return await self._look(group, token, state)
            case RepairStage.LEARN if is_damaged:
                return await self._look(group, token, state)  # what it has learnt is damaged again
            case RepairStage.LEAVE:
                return await self._leave(group, token, state)
            case RepairStage.JOIN:
                return await self._join(group, token, state)
            case RepairStage.LEARN:
                return await self._learn(group, token)

    async def _look(self, group: int, token: object, state: GroupState) -> bool:
        answer = await self._ask(group, token, RepairStep.LOOK)
        if not answer.is_member:
            # An operator has removed it, and it is not for the store to come back.
            await self._drop(group, state, is_removed=True)
            self.problems.pop(group, None)
            return True
        as_voter = answer.is_voter or state.repair_as_voter
        changed = msgspec.structs.replace(state, repair=RepairStage.LEAVE, repair_as_voter=as_voter)
        await self._opener.note(group, changed)
        return False

    async def _leave(self, group: int, token: object, state: GroupState) -> bool:
        answer = await self._ask(group, token, RepairStep.LEAVE)
        if answer.is_member:
            raise Unavailable(f"group {group} has not removed store {self._own}: try again")
        await self._drop(group, state, is_removed=False)
        return False

    async def _drop(self, group: int, state: GroupState, *, is_removed: bool) -> None:
        await self._opener.forget(group, state, is_removed=is_removed)
        await self._snapshot_files.remove_group(group)

    async def _join(self, group: int, token: object, state: GroupState) -> bool:
        # A crash may have left them.
        await self._snapshot_files.remove_group(group)
        answer = await self._ask(group, token, RepairStep.JOIN)
        if not answer.is_member:
            raise Unavailable(f"group {group} has not added store {self._own}: try again")
        stage = RepairStage.LEARN if state.repair_as_voter else RepairStage.NONE
        # All that this store ever helped to commit is committed, and lies before the addition.
        changed = msgspec.structs.replace(state, repair=stage, votes_from=answer.applied)
        await self._opener.note(group, changed)
        await self._start(group)
        self.problems.pop(group, None)
        return stage is RepairStage.NONE

    async def _learn(self, group: int, token: object) -> bool:
        replica = self._running(group)
        if replica is None:
            await self._start(group)
            self.problems.pop(group, None)
            return False
        await asyncio.sleep(_LEARN_PAUSE_S)
        if not replica.may_vote:
            return False  # the leader's messages bring it on
        # Others may have made it a voter. Then nobody need be asked, and it may lead itself.
        if self._own not in replica.configuration.voters:
            answer = await self._ask(group, token, RepairStep.LOOK)
            if answer.is_member and not answer.is_voter:
                if answer.match + _LAG_MAX < answer.applied:
                    return False
                await self._ask(group, token, RepairStep.PROMOTE)
        if replica.is_halted:
            raise _GivenUp
        state = msgspec.structs.replace(
            replica.storage.state, repair=RepairStage.NONE, repair_as_voter=False
        )
        await self._snapshotting.note(replica, state)
        return True

    async def _ask(self, group: int, token: object, step: RepairStep) -> RepairAnswer:
        """Ask whoever leads the group: the store that did last time, then all others."""
        stores = sorted(self._peers.addresses(), key=lambda store: (store != self._leader, store))
        error: RaftwoodError = NotFound(f"no other store of group {group} is known here")
        for store in stores:
            peer = self._peers.get(store)
            if peer is None:
                continue
            try:
                answer = await peer.channel.ask(
                    REPAIR, RepairRequest(group, step), STEP_TIMEOUT_MS * 2
                )
            except RaftwoodError as failed:
                if isinstance(failed, NotLeader) or isinstance(error, NotFound):
                    error = failed
            else:
                if self._under_way.get(group) is not token:
                    raise _GivenUp  # the group was stopped, or damaged again, meanwhile
                self._leader = store
                return answer
        raise Unavailable(f"no other store leads group {group} ({error.message})")
