"""`MetaMachine`: Zeppelin's meta server, replicated by a raft group, and its leader's plans.

`plan` computes a leader's proposals from the topology and nodes' reports: one batch at a time.
Planning blocks the store, so each plan is bounded: it gives masters to some partitions without one,
and checks some healthy ones, in turn. Partitions in a hand-over or migration are few, and each plan
checks them all.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol

import msgspec

from raftwood.base.errors import (
    Conflict,
    NotFound,
    NotLeader,
    RaftwoodError,
)
from raftwood.base.logs import get_logger
from raftwood.base.versions import StateFormat
from raftwood.raft.state_machine import CommittedCommand, ExtraFiles, Stopped, gathered, in_chunks
from raftwood.zeppelin.meta import migration
from raftwood.zeppelin.meta import migration as migration_module
from raftwood.zeppelin.meta.changes import (
    CHANGES_MAX,
    Applied,
    Change,
    MarkSlaves,
    NodeDown,
    NodeUp,
    decode_applied,
    decode_batch,
    encode_applied,
    encode_batch,
    failed,
)
from raftwood.zeppelin.meta.failover import demotion, failover, is_unfit, marks
from raftwood.zeppelin.meta.heartbeats import (
    LeaderMoment,
    LeaderTerm,
    NodeHeartbeat,
    PlanningView,
    TablePartition,
)
from raftwood.zeppelin.meta.queries import (
    Answer,
    BehindQuery,
    LeaseAnswer,
    NodeReport,
    NodesAnswer,
    Query,
    RefusedAnswer,
    ReportsAnswer,
    ReportsQuery,
    TopologyAnswer,
    TopologyQuery,
    decode_query,
    encode_answer,
)
from raftwood.zeppelin.meta.topology_state import TopologyState
from raftwood.zeppelin.model import NodeId, PartitionState, Topology
from raftwood.zeppelin.settings import ZeppelinMetaSettings

FAILOVERS_MAX: Final = 2_000
LOOKED_AT_MAX: Final = 1_000


def plan(
    topology: Topology, reign: LeaderTerm, settings: ZeppelinMetaSettings, now_ms: int
) -> tuple[Change, ...]:
    """Returns all changes to make now; the reign remembers the decisions."""
    reign.note(topology, now_ms)
    view = PlanningView(topology, reign, settings, now_ms)
    changes: list[Change] = [NodeDown(node, topology.nodes[node].run) for node in view.downs]
    changes += [NodeUp(node, topology.nodes[node].run) for node in view.ups]
    changes += _of_partitions(view)
    for node in view.downs:
        reign.condemned[node] = topology.nodes[node].run
    return tuple(changes[:CHANGES_MAX])


def _of_partitions(view: PlanningView) -> list[Change]:
    changes: list[Change] = []
    handovers, moves, turns = (
        migration_module.HandoverCandidates(view),
        migration.MigrationCandidates(view),
        _Turns(view),
    )
    splits = migration_module.SplitCandidates(view)
    failovers = 0
    for table in view.topology.tables.values():
        for number, partition in enumerate(table.partitions):
            is_turn = turns.next()
            is_led = view.is_up(partition.master)
            is_stuck = partition.state is PartitionState.STUCK
            is_moving = partition.migration is not None and partition.is_moving
            is_urgent = is_stuck or is_moving or view.is_leaving(partition.master)
            if is_led and not (is_turn or is_urgent):
                continue
            place = TablePartition(table, number)
            change: Change | None = None
            if is_moving:
                moves.look_at(place)
            if not is_led:
                if failovers < FAILOVERS_MAX:
                    change = failover(view, place)
                    failovers += change is not None
            elif is_unfit(view, place):
                change = demotion(view, place)
            elif is_stuck:
                handovers.under_way += 1
                step = (
                    migration_module.split_step
                    if partition.is_splitting
                    else migration_module.handover_step
                )
                change = step(view, place)
            else:
                change = marks(view, place)
                if change is None and is_moving:
                    change = migration.migration_step(view, place)
                if change is None and not splits.look_at(place):
                    handovers.look_at(place)
            if change is not None:
                changes.append(change)
    begun = handovers.begun()
    room = view.settings.handovers_max - handovers.under_way - len(begun)
    return [*changes, *begun, *splits.begun(room=room), *moves.begun()]


class _Turns:
    """The partitions that this plan checks, starting where the last plan ended."""

    def __init__(self, view: PlanningView) -> None:
        self._count = sum(len(table.partitions) for table in view.topology.tables.values())
        begin = view.reign.looked_at % self._count if self._count else 0
        view.reign.looked_at = begin + LOOKED_AT_MAX
        self._distance = -begin

    def next(self) -> bool:
        distance, self._distance = self._distance, self._distance + 1
        return distance % self._count < LOOKED_AT_MAX


# `MetaMachine`: Zeppelin's meta server, replicated by a raft group, over `TopologyState`.
#
# Only the topology is replicated. The leader's machine keeps nodes' heartbeats in its `LeaderTerm`,
# which begins anew with each term. Heartbeats are queries, answered after a quorum has confirmed
# that this store still leads. So a leader gave each of its leases before any later leader began,
# and that one waits until all of them have ended before it judges.

_FORMAT: Final = StateFormat(b"RWZM", 1, "Zeppelin's meta server")
_encoder = msgspec.msgpack.Encoder()
_topologies: msgspec.msgpack.Decoder[Topology] = msgspec.msgpack.Decoder(Topology)


class MetaMachine:
    """The replicated meta server; commands, queries, results and answers are bytes."""

    def __init__(
        self,
        settings: ZeppelinMetaSettings,
        *,
        now_ms: Callable[[], int],
        term: Callable[[], int | None],
    ) -> None:
        """`now_ms` is the store's monotonic time; `term` returns the term in which the store leads,
        if it does.

        Both only concern the leader's reports; the topology depends on commands alone.
        """
        self._settings = settings
        self._now_ms = now_ms
        self._term = term
        self._state = TopologyState()
        self._reign: LeaderTerm | None = None
        self._planned_ms = 0
        self._news = asyncio.Event()
        """Set and replaced when a waiting query may have an answer."""
        self._is_plan_due = asyncio.Event()
        self._is_closed = False

    @property
    def topology(self) -> Topology:
        return self._state.topology

    # Commands

    def update(self, commands: Sequence[CommittedCommand]) -> list[bytes]:
        before = self._state.topology
        results = [self._apply(command.payload) for command in commands]
        if self._state.topology is not before:
            self._wake()
        return results

    def _apply(self, payload: bytes) -> bytes:
        try:
            applied = self._state.apply(decode_batch(payload))
        except RaftwoodError as error:
            applied = Applied(self._state.topology.epoch, (failed(error),))
        return encode_applied(applied)

    # Queries

    def lookup(self, query: bytes) -> bytes | RaftwoodError:
        """Answers a query. A heartbeat also updates the leader's reports, not replicated."""
        try:
            return encode_answer(self._answer(decode_query(query)))
        except NotLeader as error:
            return error  # for the client, which then looks for the leader
        except RaftwoodError as error:
            return encode_answer(RefusedAnswer(failed(error)))

    def _answer(self, query: Query) -> Answer:
        match query:
            case TopologyQuery(after_epoch):
                return TopologyAnswer(self._state.delta(after_epoch))
            case NodeHeartbeat():
                return self._hear(query)
            case BehindQuery(epoch):
                return NodesAnswer(self._behind(self._current_reign(), epoch))
            case ReportsQuery():
                return self._reports(self._current_reign())

    def _current_reign(self) -> LeaderTerm:
        term = self._term()
        if term is None:
            self._reign = None
            raise NotLeader("this store does not lead Zeppelin's meta server")
        now_ms = self._now_ms()
        if self._reign is None or self._reign.term != term:
            self._reign = LeaderTerm(term, now_ms)
        self._reign.note(self._state.topology, now_ms)
        return self._reign

    def _hear(self, heartbeat: NodeHeartbeat) -> LeaseAnswer:
        reign = self._current_reign()
        known = self._state.topology.nodes.get(heartbeat.node)
        if known is None:
            raise NotFound(f"there is no node {heartbeat.node!r}: register it first")
        if known.run != heartbeat.run:
            raise Conflict(f"node {heartbeat.node!r} runs as {known.run}: register it anew")
        applied_before = reign.nodes[heartbeat.node].applied_epoch
        now_ms = self._now_ms()
        counts = reign.hear(heartbeat, now_ms)
        if counts and heartbeat.applied_epoch != applied_before:
            self._wake()
        if reign.has_news_of_stuck:
            self._is_plan_due.set()
        settings = self._settings
        lease_ms = settings.lease_ms if counts and known.is_up else 0
        delta = self._state.delta(heartbeat.applied_epoch)
        return LeaseAnswer(lease_ms, settings.heartbeat_ms, delta, LeaderMoment(reign.term, now_ms))

    def _behind(self, reign: LeaderTerm, epoch: int) -> tuple[NodeId, ...]:
        return tuple(
            node
            for node, known in self._state.topology.nodes.items()
            if known.is_up and reign.nodes[node].applied_epoch < epoch
        )

    def _reports(self, reign: LeaderTerm) -> ReportsAnswer:
        now_ms = self._now_ms()
        return ReportsAnswer(
            {
                node: NodeReport(
                    now_ms - heard.at_ms, heard.applied_epoch, tuple(heard.offsets.values())
                )
                for node, heard in reign.nodes.items()
                if heard.is_heard
            }
        )

    async def wait(self, query: bytes, timeout_ms: int) -> bool:
        """Waits until a query has an answer, or `timeout_ms` are over; returns whether it
        waited.
        """
        try:
            asked = decode_query(query)
        except RaftwoodError:
            return False
        if self._has_answer(asked):
            return False
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_ms / 1000):
                while not self._is_closed and not self._has_answer(asked):
                    await self._news.wait()
        return True

    def _has_answer(self, query: Query) -> bool:
        match query:
            case TopologyQuery(after_epoch):
                return self._state.topology.epoch != after_epoch
            case BehindQuery(epoch):
                return self._reign is None or not self._behind(self._reign, epoch)
            case _:
                return True

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    # The leader's plans

    async def wait_for_plan(self, timeout_s: float) -> None:
        """Waits until a plan is due, at most `timeout_s`; waiting writes make it due earlier."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._is_plan_due.wait()

    def plan(self) -> tuple[Change, ...]:
        """Returns what the leading store proposes now; called each `plan_ms` at least."""
        self._is_plan_due.clear()
        now_ms, planned_ms = self._now_ms(), self._planned_ms
        self._planned_ms = now_ms
        if self._reign is not None and now_ms - planned_ms > self._settings.lease_ms:
            # A store that stood still has missed heartbeats: their absence proves nothing.
            self._reign = self._reign.begun_anew(now_ms)
        try:
            reign = self._current_reign()
        except NotLeader:
            return ()
        reign.has_news_of_stuck = False
        return plan(self._state.topology, reign, self._settings, now_ms)

    # Snapshots

    def save_snapshot(self, files: ExtraFiles, stopped: Stopped) -> Iterator[bytes]:  # noqa: ARG002
        return in_chunks(_FORMAT.encode(_encoder.encode(self._state.topology)), stopped)

    async def recover_from_snapshot(
        self,
        chunks: AsyncIterator[bytes],
        files: Mapping[str, str],  # noqa: ARG002
        stopped: Stopped,
    ) -> None:
        data = await gathered(chunks, stopped)
        if data is None:
            return
        self._state = TopologyState(_FORMAT.decode(data, _topologies.decode))
        self._wake()

    def close(self) -> None:
        """Wakes all waiting queries."""
        self._is_closed = True
        self._wake()


# `MetaKeeper`: proposes the plans of the meta server's leader, if this store is that leader.

TIMEOUT_MS: Final = 5_000
RESTS: Final = 10
"""After a plan, the keeper rests for this many times the plan's duration."""

_log = get_logger("zeppelin-meta")


class GroupHost(Protocol):
    """What a keeper needs of its store."""

    def groups(self) -> list[int]: ...

    def is_leading(self, group: int) -> bool: ...

    def machine(self, group: int) -> Any: ...

    async def propose(self, group: int, payload: bytes, *, timeout_ms: int) -> Any: ...


class MetaKeeper:
    """Proposes plans. One per store, whether it has a replica of the group or not."""

    def __init__(self, host: GroupHost, group: int, settings: ZeppelinMetaSettings) -> None:
        self._host = host
        self._group = group
        self._pause_s = settings.plan_ms / 1000
        self._rest_s = 0.0

    async def run(self) -> None:
        while True:
            await self._pause()
            try:
                await self.work()
            except RaftwoodError as error:
                _log.debug("no plan", reason=error.message)

    async def _pause(self) -> None:
        """Pauses, so that changes gather into one batch; less while writes wait for a hand-over."""
        machine = self._machine()
        if machine is None:
            await asyncio.sleep(self._pause_s)
        else:
            await asyncio.sleep(self._rest_s)
            await machine.wait_for_plan(max(0.0, self._pause_s - self._rest_s))

    def _machine(self) -> MetaMachine | None:
        """The group's machine; None if this store does not lead."""
        host, group = self._host, self._group
        if group not in host.groups() or not host.is_leading(group):
            return None
        machine = host.machine(group)
        assert isinstance(machine, MetaMachine)
        return machine

    async def work(self) -> None:
        """Plans once and waits for the result, because the next plan builds on it."""
        host, group = self._host, self._group
        machine = self._machine()
        if machine is None:
            return
        loop = asyncio.get_running_loop()
        began = loop.time()
        changes = machine.plan()
        # Planning for a large cluster takes time, and the store has other work.
        self._rest_s = min(self._pause_s, RESTS * (loop.time() - began))
        if not changes:
            return
        answer = await host.propose(group, encode_batch(changes), timeout_ms=TIMEOUT_MS)
        applied = decode_applied(bytes(answer))
        for change, refused in zip(changes, applied.results, strict=True):
            _tell(change, "" if refused is None else refused.message)


def _tell(change: Change, refused: str) -> None:
    what = type(change).__name__
    if refused or isinstance(change, MarkSlaves):
        _log.debug(what, change=repr(change), refused=refused)
    else:
        _log.info(what, change=repr(change))
