"""A store's heartbeats to HAKeeper: what it has, and what came of its orders."""

from collections.abc import Callable, Sequence
from typing import Final

from raftwood.base.errors import RaftwoodError
from raftwood.base.logs import get_logger
from raftwood.logservice.client.keeper_client import KeeperClient
from raftwood.logservice.hakeeper.commands import ALARMS_MAX, TEXT_MAX
from raftwood.logservice.hakeeper.reports import ReplicaReport, StoreHeartbeat
from raftwood.logservice.server.disk_watch import DiskWatch
from raftwood.logservice.server.order_executor import OrderExecutor
from raftwood.logservice.server.pacing import Pacing
from raftwood.logservice.server.truncation import ShardStorage
from raftwood.raft.host.host import Host
from raftwood.raft.host.status import GroupStatus

UNANSWERED_TOLD: Final = 3
"""So many heartbeats in a row without an answer are told."""

_log = get_logger("heartbeats")


class Heartbeats:
    """One per store."""

    def __init__(
        self,
        host: Host,
        keeper: KeeperClient,
        executor: OrderExecutor,
        disk: DiskWatch,
        *,
        address: str,
        failure_domain: str,
        version: str,
        period_ms: int,
        alarms: Callable[[], Sequence[str]],
        storage_of: Callable[[int], ShardStorage | None],
    ) -> None:
        self._host = host
        self._keeper = keeper
        self._executor = executor
        self._disk = disk
        self._address = address
        self._failure_domain = failure_domain
        self._version = version
        self._period_ms = period_ms
        self._pacing = Pacing(period_ms)
        self._alarms = alarms
        self._storage_of = storage_of
        self.is_heard = False
        """Whether HAKeeper answered the last one."""
        self._unanswered = 0

    async def run(self) -> None:
        while True:
            await self._pacing.wait()
            await self.beat()

    def soon(self) -> None:
        """Orders wait at HAKeeper."""
        self._pacing.ask()

    async def beat(self) -> None:
        heartbeat = self._heartbeat()
        try:
            orders = await self._keeper.store_heartbeat(heartbeat, timeout_ms=self._period_ms * 3)
        except RaftwoodError as error:
            self.is_heard = False
            self._unanswered += 1
            # One that fails now and then is usual, at the start and at elections.
            if self._unanswered == UNANSWERED_TOLD:
                _log.warning("HAKeeper does not answer", reason=error.message)
            return
        if self._unanswered >= UNANSWERED_TOLD:
            _log.info("HAKeeper answers")
        self.is_heard, self._unanswered = True, 0
        self._executor.take(orders, heartbeat.finished)

    def _heartbeat(self) -> StoreHeartbeat:
        host = self._host
        shards = sorted({*host.groups(), *host.halted()})
        return StoreHeartbeat(
            store=host.id,
            address=self._address,
            failure_domain=self._failure_domain,
            incarnation=host.incarnation,
            version=self._version,
            replicas=tuple(self._report(host.status(shard)) for shard in shards),
            finished=self._executor.finished(),
            alarms=told_alarms(self._alarms()),
            disk_bytes=self._disk.disk_bytes,
            disk_free_bytes=self._disk.free_bytes,
            is_short=self._disk.is_short,
        )

    def _report(self, status: GroupStatus) -> ReplicaReport:
        # Of who has never answered this leader it is not known how far behind it is: in a short
        # log it would seem close.
        storage = self._storage_of(status.group)
        return ReplicaReport(
            shard=status.group,
            epoch=status.epoch,
            voters=status.voters,
            learners=status.learners,
            leader=status.leader,
            term=status.term,
            applied=status.applied,
            lagging={
                store: max(0, status.last_index - match)
                for store, match in status.matches.items()
                if store != status.store and match
            },
            problem=status.problem[:TEXT_MAX],
            retained_bytes=storage.retained_bytes if storage else 0,
            is_joint=status.is_joint,
        )


def told_alarms(alarms: Sequence[str]) -> tuple[str, ...]:
    """As many as HAKeeper takes: a store must not be taken for dead for all that is wrong there."""
    told = [alarm[:TEXT_MAX] for alarm in alarms[:ALARMS_MAX]]
    if len(alarms) > ALARMS_MAX:
        told[-1] = f"more-alarms: {len(alarms) - ALARMS_MAX + 1} more on this store"
    return tuple(told)
