"""After a crash, a store asks the others how far their logs are before its replicas vote.

`leadership` has the rule and the reason. One question to each store covers all groups in doubt; a
store that does not answer is asked again with every tick, until the time to wait is over.
"""

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

import msgspec

from raftwood.base.errors import NotFound, RaftwoodError, StoreDamaged, Unavailable
from raftwood.base.logs import get_logger
from raftwood.disk.segment_log import SegmentLog
from raftwood.net import Call, Service, TypedMethod
from raftwood.net.identity import STORE_ROLE, store_of
from raftwood.net.method_numbers import MethodNumber
from raftwood.raft.engine import RaftEngine
from raftwood.raft.group_log import GroupState
from raftwood.raft.leadership import LogEnd, VoteFloor
from raftwood.raft.registry import GROUP_MAX
from raftwood.raft.replica import Replica
from raftwood.raft.settings import RaftHostSettings
from raftwood.raft.transport import Peer, Transport

WAIT_MS: Final = 3_000
"""How long to wait for answers. A group whose other voters are up has them in milliseconds."""
HOLD_MS: Final = 30_000
"""How long to wait for a leader with the longest known log; its store may have to start first."""
ASK_TIMEOUT_MS: Final = 1_000
GROUPS_MAX: Final = 1_000
"""The most groups in one question."""

_log = get_logger("raft")


class LogEndsRequest(msgspec.Struct, frozen=True, array_like=True):
    """The groups whose log ends are asked for."""

    groups: list[int]


LOG_ENDS = TypedMethod(
    MethodNumber.LOG_ENDS,
    "log-ends",
    request=LogEndsRequest,
    response=list[LogEnd],
    roles=(STORE_ROLE,),
)


class LogEnds:
    """Asks for this store's replicas, and answers other stores; one per host."""

    def __init__(
        self,
        log: SegmentLog,
        settings: RaftHostSettings,
        replicas: Mapping[int, Replica],
        peers: Transport,
        turns: RaftEngine,
        *,
        state_of: Callable[[int], GroupState | None],
        on_lost_log: Callable[[Replica, int], None],
        run: Callable[[Coroutine[Any, Any, None], str], None],
    ) -> None:
        self._replicas = replicas
        self._peers = peers
        self._turns = turns
        self._state_of = state_of
        self._on_lost_log = on_lost_log
        self._run = run
        self._wait_ticks = -(-WAIT_MS // settings.tick_ms)
        self._hold_ticks = -(-HOLD_MS // settings.tick_ms)
        self._is_in_doubt = not log.was_closed
        self._stored = dict.fromkeys(log.groups())
        self._ticks = 0
        self._floors: dict[int, VoteFloor] = {}
        """The floors of groups in doubt, also of stopped ones."""
        self._settled: dict[int, None] = {}
        self._being_asked: dict[int, None] = {}
        """Stores that are being asked; one question at a time."""

    @property
    def are_needed(self) -> bool:
        """Whether a group is still in doubt, so that this store must not count as closed cleanly.

        Test: test_vote_floor::test_a_store_that_closes_in_doubt_is_in_doubt_at_its_next_start
        """
        if not self._is_in_doubt:
            return False
        return bool(self._floors) or any(map(self._was_never_asked_for, self._stored))

    def _was_never_asked_for(self, group: int) -> bool:
        """Whether a stored group did not start in this process, and may vote in the next one."""
        if group > GROUP_MAX or group in self._settled:
            return False
        try:
            state = self._state_of(group)
        except StoreDamaged:
            return True
        return state is not None and not state.is_removed

    def register(self, service: Service) -> None:
        service.typed(LOG_ENDS, self._answer)

    # Asking

    def hold_votes(self, replica: Replica) -> None:
        """Binds the votes of a replica that starts after a crash to the other voters' answers."""
        group = replica.group
        if not self._is_in_doubt or group in self._settled:
            return
        # The crash may have cost the whole of a young group. One that begins much later is new.
        if group not in self._stored and self._ticks >= self._hold_ticks:
            return
        if group not in self._floors:
            self._floors[group] = VoteFloor(
                self._others(replica), wait_ticks=self._wait_ticks, hold_ticks=self._hold_ticks
            )
        replica.vote_floor = self._floors[group]
        replica.vote_floor.is_taken_over = False
        self._settle(replica)

    def _others(self, replica: Replica) -> list[int]:
        """The other voters. If none is known, the log may have lost the changes that added them."""
        own, configuration = replica.node.raft.id, replica.configuration
        voters = {*configuration.voters, *configuration.voters_outgoing} - {own}
        others = sorted(voters) or sorted(self._peers.addresses())
        return [store for store in others if not replica.has_given_up(store)]

    def tick(self) -> None:
        self._ticks += 1
        questions: dict[int, list[int]] = {}
        for group, floor in list(self._floors.items()):
            floor.tick()
            replica = self._replicas.get(group)
            if replica is None:
                if floor.is_over((0, 0)):
                    self._end(group)
                continue
            if floor.is_asking:
                for store in floor.unanswered:
                    questions.setdefault(store, []).append(group)
            self._settle(replica)
        for store, groups in questions.items():
            peer = self._peers.get(store)
            if peer is not None and store not in self._being_asked:
                self._being_asked[store] = None
                self._run(self._ask(store, peer, groups), f"log ends of store {store}")

    async def _ask(self, store: int, peer: Peer, groups: list[int]) -> None:
        try:
            for first in range(0, len(groups), GROUPS_MAX):
                request = LogEndsRequest(groups[first : first + GROUPS_MAX])
                for end in await peer.channel.ask(LOG_ENDS, request, ASK_TIMEOUT_MS):
                    self._on_answer(store, end.group, end)
        except NotFound:
            for group in groups:  # a store of release 0.1.0 has no such method
                self._on_answer(store, group, None)
        except RaftwoodError as error:
            _log.debug("log ends not told yet", peer=store, reason=error.message)
        finally:
            self._being_asked.pop(store, None)

    def _on_answer(self, store: int, group: int, end: LogEnd | None) -> None:
        floor, replica = self._floors.get(group), self._replicas.get(group)
        if floor is None or store not in floor.unanswered:
            return
        if end is not None and end.term > floor.term:
            floor.is_taken_over = False  # an answer may come late, and still spends votes
        floor.answered(store, end)
        if replica is None:
            return
        raft = replica.node.raft
        if end is not None and end.term >= raft.term and end.match > raft.log.last_index:
            # Within a term a leader's knowledge of a follower only grows by what the follower
            # acknowledged. Entries that it acknowledged are gone, so the replica is repaired. Test:
            # test_vote_floor::
            # test_a_leader_that_counts_on_what_is_gone_has_the_replica_repaired_at_once
            self._on_lost_log(replica, end.match)
        else:
            self._settle(replica)

    def _settle(self, replica: Replica) -> None:
        """Spend votes up to the highest term when all have answered; drop a useless floor."""
        floor = replica.vote_floor
        if floor is None or floor.is_asking:
            return
        if not floor.is_taken_over:
            floor.is_taken_over = True
            replica.spend_votes(floor.term)
            self._turns.mark(replica)
        if floor.is_over(replica.last_position):
            replica.vote_floor = None
            self._end(replica.group)

    def _end(self, group: int) -> None:
        del self._floors[group]
        self._settled[group] = None

    # Answering

    async def _answer(self, call: Call, request: LogEndsRequest) -> list[LogEnd]:
        store = store_of(call.peer)
        if not self._peers.heard(call.peer):
            raise Unavailable(f"store {store} has not introduced itself: try again")
        ends = [self._end_of(group, store) for group in request.groups[:GROUPS_MAX]]
        return [end for end in ends if end is not None]

    def _end_of(self, group: int, asking: int) -> LogEnd | None:
        """The log's end here; None while the replica is about to start, or is being repaired."""
        replica = self._replicas.get(group)
        if replica is None or not replica.is_serving:
            try:
                state = self._state_of(group)
            except StoreDamaged:
                return None
            is_here = state is not None and not state.is_removed
            return None if is_here else LogEnd(group, 0, 0, 0)
        raft = replica.node.raft
        last_term, last_index = replica.last_position
        match = 0
        if replica.is_leader and asking in raft.tracker.progress:
            match = raft.tracker.progress[asking].match
        return LogEnd(group, raft.term, last_term, last_index, match)
