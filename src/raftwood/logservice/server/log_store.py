"""`LogStore`: a store of the log service on a raft host; starts and stops all its parts."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import msgspec

from raftwood.base.environment import Environment
from raftwood.base.errors import NotFound, UnsupportedVersion
from raftwood.base.logs import get_logger
from raftwood.base.metrics import Metrics
from raftwood.logservice.client.keeper_client import KeeperClient
from raftwood.logservice.errors import LogShardNotFound
from raftwood.logservice.hakeeper.messages import DISK_SLOW, HAKEEPER_SHARD, is_log
from raftwood.logservice.hakeeper.state_machine import HaKeeperStateMachine
from raftwood.logservice.log_state_machine import LogStateMachine
from raftwood.logservice.server.disk_watch import DiskWatch
from raftwood.logservice.server.forwarder import Forwarder
from raftwood.logservice.server.heartbeats import Heartbeats, OrderExecutor
from raftwood.logservice.server.keeper_service import KeeperDriver, KeeperService
from raftwood.logservice.server.metrics import (
    ShardMetrics,
    register_keeper_metrics,
    register_storage_metrics,
)
from raftwood.logservice.server.shard_service import ShardService
from raftwood.logservice.server.truncation import TruncationWorker
from raftwood.logservice.settings import HaKeeperSettings, LogServiceSettings
from raftwood.logservice.wire import Location
from raftwood.net import Service
from raftwood.net.stores import ClientNetwork
from raftwood.raft.node_host import NodeHost
from raftwood.raft.service import RaftService
from raftwood.raft.settings import RaftHostSettings
from raftwood.raft.state_machine import StateMachine

_log = get_logger("log-store")


class Guest(msgspec.Struct, frozen=True, kw_only=True):
    """A shard on the stores that is not a log.

    HAKeeper places and repairs it like a log, and clients use it as a raft group.
    """

    name: str
    machine: Callable[[], StateMachine]
    run: Callable[[], Coroutine[Any, Any, None]]
    """A task that runs beside it on every store, for ever."""


class LogStorePlace(msgspec.Struct, frozen=True, kw_only=True):
    """The addresses of a store and of the first members."""

    address: str
    folder: str
    version: str
    first_members: Mapping[int, str]
    """The stores that begin HAKeeper, and their addresses; a later store asks them first."""
    network: ClientNetwork
    """How this store authenticates when it connects to others as a client."""


def host_settings(settings: RaftHostSettings) -> RaftHostSettings:
    """Turns the raft host's own snapshots off: the truncation worker takes them."""
    return msgspec.structs.replace(settings, snapshot_entries=0)


class LogStore:
    """A store. Use `start`, and `close` when done, before the host is closed."""

    def __init__(
        self,
        environment: Environment,
        host: NodeHost,
        place: LogStorePlace,
        settings: LogServiceSettings,
        keeper_settings: HaKeeperSettings,
        metrics: Metrics,
        guests: Mapping[int, Guest],
    ) -> None:
        """`guests` by number, from `GUESTS_FIRST` on; the same on all stores."""
        self.host = host
        self._place = place
        self._keeper_settings = keeper_settings
        self._forwarder = Forwarder(environment, host, place.network, place.address)
        self._forwarder.look_up = self._look_up
        # Addresses learned from others are newer than those of the configuration file.
        self._forwarder.stores.learn(dict(place.first_members) | host.addresses())
        self.keeper = KeeperClient(self._forwarder.stores)
        self.disk = DiskWatch(environment, place.folder, settings)
        self.truncation = TruncationWorker(environment, host, settings)
        self._shard_metrics = ShardMetrics(metrics, host)
        register_storage_metrics(metrics, self.truncation, self.disk, self.alarms)
        register_keeper_metrics(metrics, host, keeper_settings)
        self._shards = ShardService(
            host, self._forwarder, settings, self._shard_metrics, self.disk.check_room
        )
        self._executor = OrderExecutor(host, self._factory_of)
        self.heartbeats = Heartbeats(
            host,
            self.keeper,
            self._executor,
            self.disk,
            address=place.address,
            failure_domain=settings.failure_domain,
            version=place.version,
            period_ms=keeper_settings.heartbeat_ms,
            alarms=self.alarms,
            storage_of=self.truncation.shards.get,
        )
        names = {number: guest.name for number, guest in guests.items()}
        self._driver = KeeperDriver(
            host,
            keeper_settings,
            place.first_members,
            names,
            place.version,
            self._forwarder.tell_of_orders,
        )
        self._keeper_service = KeeperService(
            host,
            self.keeper,
            plan_soon=self._driver.plan_soon,
            beat_soon=self.heartbeats.soon,
        )
        self._guests = guests
        self._environment = environment
        self._tasks: list[asyncio.Task[None]] = []

    def register(self, service: Service) -> None:
        RaftService(self.host, groups=self._guests).register(service)
        self._shards.register(service)
        self._keeper_service.register(service)

    async def start(self, *, joins: bool) -> None:
        """Starts the groups on disk, and HAKeeper on one of the first stores; then all else."""
        for shard in self.host.stored_groups():
            await self.host.start_group(shard, self._factory_of(shard))
        is_first = self.host.id in self._place.first_members and not joins
        is_new = not self.host.has_had(HAKEEPER_SHARD)
        if is_first and is_new:
            await self.host.start_group(
                HAKEEPER_SHARD,
                self._factory_of(HAKEEPER_SHARD),
                members=self._place.first_members,
            )
        await self.disk.look()
        self._run(self.disk.run(), "disk watch")
        self._run(self.truncation.run(), "truncation worker")
        self._run(self._driver.run(), "HAKeeper's ticks")
        self._run(self.heartbeats.run(), "heartbeats")
        for guest in self._guests.values():
            self._run(guest.run(), guest.name)

    def _run(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(self._ended)
        self._tasks.append(task)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and task.exception() is not None:
            self._environment.end_process(f"{task.get_name()} failed: {task.exception()!r}")

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._executor.close()
        await self._shards.close()
        await self.truncation.close()
        await self.keeper.close()
        await self._forwarder.close()

    def problems(self) -> Mapping[str, str]:
        """The reasons why the store is not ready, by part; empty if it is."""
        silent = "" if self.heartbeats.is_heard else "it does not answer this store yet"
        damaged = ", ".join(str(shard) for shard in self.host.halted())
        return {
            "HAKeeper": silent,
            "shards": f"damaged, and being repaired: {damaged}" if damaged else "",
        }

    def alarms(self) -> list[str]:
        """The store's alarms, in words; each begins with the alarm's name."""
        refused = [
            f"refused: store {store} does not let this one in: {reason}"
            for store, reason in self.host.refusals().items()
        ]
        return [
            *refused,
            *self._log_alarms(),
            *self._slow_disk_alarms(),
            *self.disk.alarms(),
            *self.truncation.alarms(),
        ]

    def _slow_disk_alarms(self) -> list[str]:
        faster = self.host.faster_stores()
        if not faster:
            return []
        others = ", ".join(f"{sync_ms} ms on store {store}" for store, sync_ms in faster.items())
        told = (
            f"{DISK_SLOW}: a sync takes {self.host.sync_ms} ms on this store, {others}: others "
            "lead what they can; look at what its disk is busy with, or replace it"
        )
        return [told]

    def _log_alarms(self) -> list[str]:
        if not self.host.logs_aside:
            return []
        told = (
            "log-damaged: the log of this store was damaged at a start, and the other stores fill "
            "a new one; once no shard here is under repair, remove "
            f"{' and '.join(self.host.logs_aside)}. What was wrong: {self.host.damage}"
        )
        return [told]

    def _factory_of(self, shard: int) -> Callable[[], StateMachine]:
        if shard == HAKEEPER_SHARD:
            return lambda: HaKeeperStateMachine(self._keeper_settings)
        if not is_log(shard):
            return self._guest(shard).machine
        return LogStateMachine

    def _guest(self, shard: int) -> Guest:
        if shard not in self._guests:
            raise UnsupportedVersion(
                f"shard {shard} is none that this program knows: use a newer program"
            )
        return self._guests[shard]

    async def _look_up(self, shard: int | str) -> Location:
        try:
            found = await self.keeper.find_shard(shard)
        except NotFound as error:
            raise LogShardNotFound(error.message) from error
        return Location(found.shard, found.leader, found.addresses)
