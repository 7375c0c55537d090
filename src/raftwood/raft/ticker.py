"""A host's clock: ticks of the groups that are awake, pings, and periodic work."""

import asyncio
from collections.abc import Callable, Mapping

from raftwood.base.logs import get_logger
from raftwood.disk.segment_log import SyncTime
from raftwood.raft.core import NOBODY
from raftwood.raft.engine import RaftEngine
from raftwood.raft.log_ends import LogEnds
from raftwood.raft.membership import members_of
from raftwood.raft.quiesce import SleepNotices, may_sleep
from raftwood.raft.replica import Replica
from raftwood.raft.sessions import ELAPSED_MS_MAX, encode_tick
from raftwood.raft.settings import RaftHostSettings
from raftwood.raft.snapshotter import SnapshotTransfer
from raftwood.raft.transport import ASK_MEMBERSHIP, GROUP_BYTES, SLEEP, Transport

_log = get_logger("raft")


class Ticker:
    """Ticks the groups of one host, in one task."""

    def __init__(
        self,
        settings: RaftHostSettings,
        replicas: Mapping[int, Replica],
        voting: Mapping[int, Replica],
        peers: Transport,
        turns: RaftEngine,
        transfer: SnapshotTransfer,
        log_ends: LogEnds,
        *,
        sync_time: SyncTime,
        propose: Callable[[Replica, bytes], None],
        on_lost: Callable[[int], None],
    ) -> None:
        self._settings = settings
        self._replicas = replicas
        self._voting = voting
        self._peers = peers
        self._turns = turns
        self._transfer = transfer
        self._log_ends = log_ends
        self._sync_time = sync_time
        self._sync_count = 0
        self._rests = False
        """Whether no sync ran since the last tick, which says nothing about the disk."""
        self.slow_hand_overs = 0
        self.slow_sync_ms = settings.slow_sync_ms
        self._propose = propose
        self._on_lost = on_lost
        self._ticks = 0
        every_ms = min(settings.session_expiry_ms // 4, ELAPSED_MS_MAX)
        self._session_ticks = max(1, every_ms // settings.tick_ms)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="ticks of the raft host")
        self._task.add_done_callback(self._ended)

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        pause_s = self._settings.tick_ms / 1000
        while True:
            await asyncio.sleep(pause_s)
            self._ticks += 1
            sync_ms = self.sync_ms()
            for store in await self._peers.tick(self._settings.election_ticks, sync_ms):
                _log.warning("store lost", store=store)
                self._on_lost(store)
            await self._transfer.tick()
            self._turns.guarded(self._tick)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        """Reports a failed task: without ticks a store neither leads nor stands for election."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._turns.failed(error)

    def sync_ms(self) -> int | None:
        """How long a sync takes on this store; None if unknown."""
        return self._sync_time.estimate_ms(asyncio.get_running_loop().time())

    def _tick(self) -> None:
        self._log_ends.tick()
        sync_time, own_ms = self._sync_time, self.sync_ms()
        self._rests = not sync_time.is_under_way and sync_time.count == self._sync_count
        self._sync_count = sync_time.count
        bedtime = SleepNotices()
        quiesce_ticks = self._settings.quiesce_ticks
        for replica in (*self._replicas.values(), *self._voting.values()):
            if not replica.is_serving or replica.is_asleep:
                continue
            if quiesce_ticks and may_sleep(replica, quiesce_ticks):
                # Skips the tick: its heartbeat would wake the others again.
                bedtime.add(replica)
            else:
                self._tick_replica(replica, own_ms)
        for store, message in bedtime.messages():
            peer = self._peers.get(store)
            if peer is not None:
                peer.channel.send(SLEEP, message)
        self._tick_sessions()

    def _tick_replica(self, replica: Replica, own_ms: int | None) -> None:
        replica.tick()
        if replica.leader_changes != replica.seen_leader_changes:
            replica.seen_leader_changes = replica.leader_changes
            replica.slow_leader.leader_changed(self._ticks)
        if replica.is_leader and not self._rests:
            self._spare_a_slow_disk(replica, own_ms)
        self._ask_membership(replica)
        if replica.backlog:
            self._turns.retry(replica)
            self._leave_leadership(replica)
        if replica.node.has_ready() or replica.reads:
            self._turns.mark(replica)

    def _ask_membership(self, replica: Replica) -> None:
        """Asks whether a silent replica in no membership was removed, or is yet to be added.

        Its log alone cannot show this: it may still replay old entries.
        """
        raft = replica.node.raft
        if raft.id in raft.tracker.progress or replica.idle_ticks % self._settings.election_ticks:
            return
        for store in members_of(replica.configuration):
            peer = self._peers.get(store)
            if peer is not None:
                peer.channel.send(ASK_MEMBERSHIP, replica.group.to_bytes(GROUP_BYTES, "little"))

    def _leave_leadership(self, replica: Replica) -> None:
        """Hands over the leadership of a replica that cannot write for long."""
        replica.backlog_ticks = replica.backlog_ticks + 1 if replica.backlog else 0
        if replica.backlog_ticks > self._settings.election_ticks and replica.is_leader:
            successor = replica.best_follower()
            if successor:
                replica.backlog_ticks = 0
                replica.node.transfer_leadership(successor)

    def _spare_a_slow_disk(self, replica: Replica, own_ms: int | None) -> None:
        """Hands over the leadership if this store's disk is far slower than the others'."""
        raft, configuration = replica.node.raft, replica.configuration
        if raft.transferee or configuration.voters_outgoing:
            return
        sync_ms = self._peers.sync_ms
        others = {store: sync_ms(store) for store in configuration.voters if store != raft.id}
        fit = replica.slow_leader.tick(self._ticks, own_ms, others)
        successor = replica.best_follower(fit) if fit else NOBODY
        if successor:
            self.slow_hand_overs += 1
            replica.slow_leader.tried(self._ticks)
            _log.warning(
                "a slow disk gives up leading",
                group=replica.group,
                sync_ms=own_ms,
                successor=successor,
                successor_sync_ms=others[successor],
            )
            replica.node.transfer_leadership(successor)

    def _tick_sessions(self) -> None:
        """Advances the replicated time that ends sessions; only the leader's clock moves it."""
        settings = self._settings
        elapsed_ms = self._session_ticks * settings.tick_ms
        for group, replica in self._replicas.items():
            # Groups take turns, so that not all wake up at once.
            is_due = (self._ticks + group) % self._session_ticks == 0
            if is_due and replica.is_leader and len(replica.applier.sessions):
                tick = encode_tick(elapsed_ms=elapsed_ms, expiry_ms=settings.session_expiry_ms)
                self._propose(replica, tick)
