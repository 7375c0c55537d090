"""Repair of a damaged replica from its peers, by itself, step by step and across restarts.

A replica whose data proves bad is halted: it serves no requests and leads nothing. Then, with the
stage stored in the group's state, so that a crash at any point goes on from there:

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

A store that has lost its whole log does the same with each of its groups; `damaged_log` says why it
may, with a term and a vote that are old. It does not know its place in a group, so it asks for that
first (`RepairStage.LOOK`).

Between 1 and 4 a group of three has two voters: both must run. This can't be avoided with the
store's number kept, for a voter that has forgotten its log must not be one.

Until it has left, a damaged replica may still vote and acknowledge, if only its snapshot or
entries that are committed are bad. A vote needs no more than the log's last term and index, the
term and the vote (Raft, 5.4.1; Alagappan et al., FAST 2018, make the same difference), and the
index of the log has them. It never stands, applies, answers reads or sends entries, so that
nothing bad spreads. So one whole copy of three leads the group again and lets both others leave,
where it has all that they have acknowledged. A log that has lost its end does not vote. Of two
damaged stores, the one that does not vote leaves first: the leader keeps a store whose vote the
group still needs.

`RepairService` is the leader's part. A store asks for itself alone. Every answer comes from a
leader that has just heard from a quorum. So the membership in it is committed and up to date: a
deposed leader could else confirm a removal that its successor has undone.

Tests: test_repair has each of these rules, with planted bugs:
test_a_replica_that_lost_its_end_and_votes_loses_what_was_acked and
test_a_damaged_replica_that_says_nothing_leaves_the_group_without_a_leader. Under crashes:
`tests/assurance/raft/test_repair_faults.py`
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from enum import StrEnum
from typing import Any, Final

import msgspec

from raftwood.base.backoff import Backoff
from raftwood.base.environment import Environment
from raftwood.base.errors import (
    Conflict,
    NotFound,
    NotLeader,
    RaftwoodError,
    ShuttingDown,
    Unavailable,
)
from raftwood.base.logs import get_logger
from raftwood.base.metrics import Metrics
from raftwood.net import Call, Service, TypedMethod
from raftwood.net.identity import STORE_ROLE, store_of
from raftwood.net.method_numbers import MethodNumber
from raftwood.raft.bootstrap import ReplicaOpener
from raftwood.raft.core import ConfState
from raftwood.raft.group_log import VOTES_NEVER, GroupState, RepairStage, first_state
from raftwood.raft.membership import MemberAction, MemberStep, members_of
from raftwood.raft.quiesce import wake_without_leader
from raftwood.raft.registry import how_to_recover
from raftwood.raft.replica import Replica
from raftwood.raft.snapshot_files import SnapshotFiles
from raftwood.raft.snapshotter import Snapshotter
from raftwood.raft.transport import Transport

STEP_TIMEOUT_MS: Final = 5_000


class RepairStep(StrEnum):
    """The steps that a store asks for. A step that is done already counts as done: an answer may be
    lost, and the store asks again."""

    LOOK = "look"
    LEAVE = "leave"
    JOIN = "join"
    PROMOTE = "promote"


class ReplicaRepairRequest(msgspec.Struct, frozen=True, array_like=True):
    """A step in one group."""

    group: int
    step: RepairStep


class RepairAnswer(msgspec.Struct, frozen=True, array_like=True):
    """The asking store's place in the group, after the requested step."""

    is_member: bool
    is_voter: bool
    applied: int
    """The leader's applied index: the answer holds from there on."""
    match: int
    """How far the asking store's log is known to agree."""


REPAIR = TypedMethod(
    MethodNumber.REPAIR,
    "repair",
    request=ReplicaRepairRequest,
    response=RepairAnswer,
    roles=(STORE_ROLE,),
)
HAS_BEGUN = TypedMethod(
    MethodNumber.GROUP_BEGUN, "group-begun", request=int, response=bool, roles=(STORE_ROLE,)
)
"""Whether a store has more of a group than its founding: for one that has lost its log."""

_WANTED: Final = {
    RepairStep.LEAVE: MemberAction.REMOVE,
    RepairStep.JOIN: MemberAction.ADD_LEARNER,
    RepairStep.PROMOTE: MemberAction.ADD_VOTER,
}


class RepairService:
    """Serves the other stores; one per host."""

    def __init__(
        self,
        peers: Transport,
        *,
        replica_of: Callable[[int], Replica],
        confirm: Callable[[Replica, int], Awaitable[None]],
        change: Callable[..., Awaitable[ConfState]],
        has_begun: Callable[[int], bool],
    ) -> None:
        """`confirm` and `change` are the host's reads and changes of the membership."""
        self._peers = peers
        self._replica_of = replica_of
        self._confirm = confirm
        self._change = change
        self._has_begun = has_begun

    def register(self, service: Service) -> None:
        service.typed(REPAIR, self._on_request)
        service.typed(HAS_BEGUN, self._on_question)

    async def _on_question(self, call: Call, group: int) -> bool:
        self._check_heard(call)
        return self._has_begun(group)

    def _check_heard(self, call: Call) -> int:
        store = store_of(call.peer)
        if not self._peers.heard(call.peer):
            raise Unavailable(f"store {store} has not introduced itself: try again")
        return store

    async def _on_request(self, call: Call, request: ReplicaRepairRequest) -> RepairAnswer:
        store = self._check_heard(call)
        replica = self._replica_of(request.group)
        if replica.leader == store and replica.is_asleep:
            # The asking store led the group, is damaged and leads no more. A sleeping group would
            # not notice, and no operator could remove the store.
            wake_without_leader(replica)
        if not replica.is_leader:
            raise replica.not_leader()
        if replica.has_given_up(store):
            raise Conflict(f"group {replica.group} goes on without store {store}: remove it there")
        await self._confirm(replica, STEP_TIMEOUT_MS)
        if _is_open(request.step, replica.configuration, store):
            if request.step is RepairStep.LEAVE and not _is_quorum_left(replica, store):
                raise Unavailable(
                    f"group {replica.group} would have no quorum without store {store}: the store "
                    "votes on until others do again"
                )
            step = MemberStep(_WANTED[request.step], store)
            await self._change(request.group, [step], timeout_ms=STEP_TIMEOUT_MS)
        if request.step is RepairStep.LEAVE and not _is_held(replica):
            raise Unavailable(f"the others do not have all of group {replica.group} yet: try again")
        return _answer(replica, store)


def _is_open(step: RepairStep, configuration: ConfState, store: int) -> bool:
    is_member = store in members_of(configuration)
    match step:
        case RepairStep.LEAVE:
            return is_member
        case RepairStep.JOIN:
            return not is_member
        case RepairStep.PROMOTE:
            return is_member and store not in configuration.voters
    return False


def _is_quorum_left(replica: Replica, store: int) -> bool:
    """Whether the group has a quorum of active voters when a store has left.

    Two may be damaged, of which one still votes. If that one left first, it could not be re-added.
    Test: test_repair::
    test_a_store_that_still_votes_does_not_leave_before_the_others_have_a_quorum
    """
    voters = replica.configuration.voters
    if store not in voters:
        return True
    raft = replica.node.raft
    left = [each for each in voters if each != store]
    active = [
        each for each in left if each == raft.id or raft.tracker.progress[each].recently_active
    ]
    return len(active) > len(left) // 2


def _is_held(replica: Replica) -> bool:
    """Whether a quorum of the present members has all applied entries.

    The store that leaves may have been one of those that committed them, and drops its copy now.
    """
    return replica.node.raft.tracker.committed() >= replica.applied


def _answer(replica: Replica, store: int) -> RepairAnswer:
    configuration = replica.configuration
    progress = replica.node.raft.tracker.progress.get(store)
    return RepairAnswer(
        is_member=store in members_of(configuration),
        is_voter=store in (*configuration.voters, *configuration.voters_outgoing),
        applied=replica.applied,
        match=progress.match if progress is not None else 0,
    )


QUICK_ATTEMPTS: Final = 500
"""Failed attempts in a row; with the pauses between them, about three quarters of an hour."""
_LONG_PAUSE_S: Final = 30.0
"""The pause between all further attempts: peers may be away for a night."""
_PAUSE: Final = Backoff(first_ms=200, longest_ms=5_000)
"""Short: until it has left, a damaged replica is one of the group's majority."""
_LEARN_PAUSE_S: Final = 0.5
_JOIN_PAUSE_S: Final = 5.0
_LAG_MAX: Final = 1_000
"""Entries that a learner may be behind when it is made a voter."""
_log = get_logger("raft")


def _remedy(group: int) -> str:
    return (
        "the others must have a quorum without this store. If they have lost it for good, or there "
        f"is only one other voter: {how_to_recover(group)}. If this store is the only member, "
        "restore its folder from a backup; in a group of several, an old copy has forgotten what "
        "it acknowledged"
    )


class _GivenUp(Exception):
    """The repair has ended, for another reason than success."""


class Repairs:
    """The repairs of one host; each is one task."""

    def __init__(
        self,
        environment: Environment,
        peers: Transport,
        opener: ReplicaOpener,
        snapshotting: Snapshotter,
        snapshot_files: SnapshotFiles,
        *,
        own: int,
        running: Callable[[int], Replica | None],
        voting: dict[int, Replica],
        hold_votes: Callable[[Replica], None],
        start: Callable[[int], Awaitable[None]],
        on_removed: Callable[[int], None],
        run: Callable[[Coroutine[Any, Any, None], str], None],
    ) -> None:
        self._random = environment.random
        self._peers = peers
        self._opener = opener
        self._snapshotting = snapshotting
        self._snapshot_files = snapshot_files
        self._own = own
        self._running = running
        self._voting = voting
        self._hold_votes = hold_votes
        self._start = start
        self._on_removed = on_removed
        self._run = run
        self._leader = 0
        self._under_way: dict[int, object] = {}
        self._founders: dict[int, tuple[int, ...]] = {}
        """The first members, if given, of groups that this store has no record of."""
        self._lost: dict[int, int] = {}
        """Groups whose logs lack entries that this store has acknowledged, up to which index."""
        self.problems: dict[int, str] = {}
        """Groups without a serving replica: the damage, and the state of the repair."""
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
        self.damage_count += 1
        _log.error("replica is damaged", group=group, reason=reason)
        if halted is not None and halted.lost_up_to:
            self._lost[group] = max(halted.lost_up_to, self._lost.get(group, 0))
        self._begin(group, reason, halted)

    def lost_end(self, group: int, up_to: int) -> None:
        """A damaged replica lacks entries that it acknowledged: it must not vote any more."""
        self._lost[group] = max(up_to, self._lost.get(group, 0))
        self.end_vote(group)
        self._run(self._keep_lost(group), f"note on the lost end of group {group}")

    async def _keep_lost(self, group: int) -> None:
        # Where there is no room for it now, the repair's next step does it.
        with contextlib.suppress(RaftwoodError):
            await self._note_lost(group)

    async def _note_lost(self, group: int) -> None:
        """Stores up to where entries were lost: after a restart, the cut log does not show it."""
        state = self._opener.state_of(group)
        up_to = self._lost.get(group, 0)
        if state is not None and state.votes_from < up_to:
            await self._opener.note(group, msgspec.structs.replace(state, votes_from=up_to))

    def _begin(self, group: int, reason: str, halted: Replica | None = None) -> None:
        token = self._under_way[group] = object()
        self.problems[group] = f"being repaired: {reason}"
        self._run(self._repair(group, reason, token, halted), f"repair of group {group}")

    def find_out(self, group: int, founders: tuple[int, ...], damage: str) -> None:
        """Starts a group that has no replica here, on a store that has lost its log.

        Whether it is new or was lost is asked of the others. `founders` are empty for one that the
        store is to join.
        """
        self._founders[group] = founders
        _log.info("the others are asked whether a group is new", group=group)
        self._begin(group, f"this store has lost its log ({damage})")

    def go_on(self, group: int) -> None:
        """Goes on with a repair whose replica already runs, until it is what it was."""
        token = self._under_way[group] = object()
        self._run(self._repair(group, "", token, None), f"repair of group {group}")

    def stop(self, group: int) -> None:
        """The group was stopped or removed here; its repair ends at its next step."""
        self._under_way.pop(group, None)
        self._founders.pop(group, None)
        self.problems.pop(group, None)
        self.end_vote(group)

    def end_vote(self, group: int) -> None:
        """Stops the votes of a damaged replica."""
        replica = self._voting.pop(group, None)
        if replica is not None:
            replica.halt()

    async def _repair(self, group: int, reason: str, token: object, halted: Replica | None) -> None:
        if reason:
            await self._vote(group, token, halted)
        for _ in range(QUICK_ATTEMPTS):
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
                self._failed(group, reason, error)
                pause_s = _PAUSE.delay_s(failures, self._random)
                await asyncio.sleep(pause_s if failures < QUICK_ATTEMPTS else _LONG_PAUSE_S)
            else:
                failures, is_damaged = 0, False
                if is_done:
                    self._under_way.pop(group, None)
                    _log.info("replica repaired", group=group)

    async def _vote(self, group: int, token: object, halted: Replica | None) -> None:
        """Lets a damaged replica vote on until it has left, if its log's end is whole."""
        state = self._opener.state_of(group)
        if state is None or state.repair is RepairStage.JOIN or state.votes_from == VOTES_NEVER:
            return
        if group in self._lost:
            return
        committed = 0 if halted is None else halted.node.raft.log.committed
        try:
            replica = await self._opener.open_to_vote(group, committed=committed)
        except RaftwoodError as error:
            _log.warning("replica cannot vote", group=group, reason=error.message)
            return
        if self._under_way.get(group) is token and replica.may_vote:
            replica.is_serving = True
            self._voting[group] = replica
            self._hold_votes(replica)

    def _failed(self, group: int, reason: str, error: RaftwoodError) -> None:
        if self._running(group) is None:
            self.problems[group] = (
                f"halted, to be repaired: {reason or 'a repair was under way'}; {error.message}; "
                f"{_remedy(group)}"
            )
        _log.warning("repair waits", group=group, reason=error.message, remedy=_remedy(group))

    # Steps; each may be done again.

    async def _step(self, group: int, token: object, *, is_damaged: bool) -> bool:
        """Bring a repair one stage on; answers whether it is at its end."""
        await self._note_lost(group)
        state = self._opener.state_of(group)
        if state is None or state.is_removed:
            return await self._find_out(group, token, state or first_state())
        match state.repair:
            case RepairStage.NONE | RepairStage.LOOK:
                return await self._look(group, token, state)
            case RepairStage.LEARN if is_damaged:
                return await self._look(group, token, state)  # the new data is damaged again
            case RepairStage.LEAVE:
                return await self._leave(group, token, state)
            case RepairStage.JOIN:
                return await self._join(group, token, state)
            case RepairStage.LEARN:
                return await self._learn(group, token)

    async def _find_out(self, group: int, token: object, state: GroupState) -> bool:
        if group not in self._founders:
            raise _GivenUp  # it was removed
        founders = () if state.is_removed else self._founders[group]
        if founders and not await self._has_begun(group, token, founders):
            await self._opener.prepare(group, founders)
            await self._start(group)
            self.problems.pop(group, None)
            return True
        answer = await self._ask(group, token, RepairStep.LOOK)
        if not answer.is_member:
            self.problems[group] = (
                f"it has no replica here: group {group} does not name store {self._own} as a "
                f"member; to add it, run 'raftwood raft add {self._own} HOST:PORT --group {group}'"
            )
            await asyncio.sleep(_JOIN_PAUSE_S)
            return False
        lost = msgspec.structs.replace(state, votes_from=VOTES_NEVER)
        await self._note_leave(group, lost, as_voter=answer.is_voter)
        return False

    async def _has_begun(self, group: int, token: object, founders: tuple[int, ...]) -> bool:
        """Whether a group that was to be founded here has got on without this store's records."""
        error: RaftwoodError | None = None
        for store in founders:
            peer = self._peers.get(store)
            if peer is None:
                continue  # this one
            try:
                if await peer.channel.ask(HAS_BEGUN, group, STEP_TIMEOUT_MS):
                    return True
            except NotFound:
                return True  # an older program, which cannot tell
            except RaftwoodError as failed:
                error = failed
        if error is not None:
            raise Unavailable(
                f"this store has lost its log, and not all founders of group {group} say whether "
                f"it is new ({error.message})"
            )
        if self._under_way.get(group) is not token:
            raise _GivenUp
        return False

    async def _note_leave(self, group: int, state: GroupState, *, as_voter: bool) -> None:
        voting = self._voting.get(group)
        if voting is not None:
            state = voting.storage.state  # it may have voted since
        changed = msgspec.structs.replace(
            state, is_removed=False, repair=RepairStage.LEAVE, repair_as_voter=as_voter
        )
        if voting is not None:
            await self._snapshotting.note(voting, changed)
        else:
            await self._opener.note(group, changed)

    async def _look(self, group: int, token: object, state: GroupState) -> bool:
        answer = await self._ask(group, token, RepairStep.LOOK)
        if not answer.is_member:
            # An operator has removed it, and it is not for the store to come back.
            await self._drop(group, state, is_removed=True)
            self.problems.pop(group, None)
            self._on_removed(group)
            return True
        await self._note_leave(group, state, as_voter=answer.is_voter or state.repair_as_voter)
        return False

    async def _leave(self, group: int, token: object, state: GroupState) -> bool:
        answer = await self._ask(group, token, RepairStep.LEAVE)
        if answer.is_member:
            raise Unavailable(f"group {group} has not removed store {self._own}: try again")
        await self._drop(group, state, is_removed=False)
        return False

    async def _drop(self, group: int, state: GroupState, *, is_removed: bool) -> None:
        if group in self._voting:
            state = self._voting[group].storage.state
            self.end_vote(group)
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
        self._lost.pop(group, None)
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
        # Others may have made it a voter. Then no store need be asked, and it may lead itself.
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
        """Asks the group's leader: first the store that led last time, then all others."""
        stores = sorted(self._peers.addresses(), key=lambda store: (store != self._leader, store))
        error: RaftwoodError = NotFound(f"no other store of group {group} is known here")
        for store in stores:
            peer = self._peers.get(store)
            if peer is None:
                continue
            try:
                answer = await peer.channel.ask(
                    REPAIR, ReplicaRepairRequest(group, step), STEP_TIMEOUT_MS * 2
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
