"""The leader's part in a repair: a store whose replica is damaged leaves its group and comes back.

A store asks for itself alone. Every answer is of a leader that has just heard from a quorum, so
that what it says about the membership is committed and is not out of date.
"""

from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Final

import msgspec

from raftwood.base.errors import Conflict, Unavailable
from raftwood.net import Call, Service, TypedMethod
from raftwood.net.store_names import STORE_ROLE, store_of
from raftwood.raft.core import ConfState
from raftwood.raft.host.membership import MemberAction, MemberStep, members_of
from raftwood.raft.host.peers import Peers
from raftwood.raft.host.replica import Replica
from raftwood.raft.host.sleeping import wake_without_leader

STEP_TIMEOUT_MS: Final = 5_000


class RepairStep(StrEnum):
    """What a store asks for; one that is done already is answered as if it had been done now."""

    LOOK = "look"
    LEAVE = "leave"
    JOIN = "join"
    PROMOTE = "promote"


class RepairRequest(msgspec.Struct, frozen=True, array_like=True):
    """A step in one group."""

    group: int
    step: RepairStep


class RepairAnswer(msgspec.Struct, frozen=True, array_like=True):
    """The asking store's place in the group, after what it asked for."""

    is_member: bool
    is_voter: bool
    applied: int
    """What the leader has applied: the answer holds from there on."""
    match: int
    """How far the asking store's log is known to agree."""


REPAIR = TypedMethod(
    25, "repair", request=RepairRequest, response=RepairAnswer, roles=(STORE_ROLE,)
)
HAS_BEGUN = TypedMethod(27, "group-begun", request=int, response=bool, roles=(STORE_ROLE,))
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
        peers: Peers,
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

    async def _on_request(self, call: Call, request: RepairRequest) -> RepairAnswer:
        store = self._check_heard(call)
        replica = self._replica_of(request.group)
        if replica.leader == store and replica.is_asleep:
            # It is damaged and leads no more; in its sleep the group would not notice.
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
    """Whether those that are left go on when a store has left.

    Two may be damaged, of which one still votes. If that one left first, nobody could add it again.
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
    """Whether a quorum has all that is applied, also what only the one who leaves acknowledged."""
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
