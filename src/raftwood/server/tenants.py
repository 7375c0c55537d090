"""What runs on a store's raft host: the metastore alone, or the log service with its guests.

`MetastoreTenant` is one raft group and its time. The guests of the log service are the metastore
and Zeppelin's meta server.
"""

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Final

import msgspec

from raftwood import __version__
from raftwood.base.environment import Environment
from raftwood.base.errors import NotFound, Unavailable
from raftwood.base.logs import get_logger
from raftwood.base.metrics import Metrics
from raftwood.logservice.server.log_store import Guest, LogStore, LogStorePlace, host_settings
from raftwood.logservice.settings import check_records_fit
from raftwood.metastore.state_machine import LeaseTicker, MetaStateMachine
from raftwood.net import Service
from raftwood.raft.node_host import NodeHost
from raftwood.raft.service import RaftService
from raftwood.server.cluster import (
    METASTORE_GROUP,
    METASTORE_SHARD,
    ZEPPELIN_SHARD,
    advertised_address,
    store_as_client,
)
from raftwood.server.settings import Settings
from raftwood.zeppelin.meta.state_machine import MetaKeeper, MetaMachine

LEASE_TICK_S: Final = 0.05

_log = get_logger("metastore")


class MetastoreTime:
    """One per store, whether it has a replica of the group or not."""

    def __init__(self, environment: Environment, host: NodeHost, group: int) -> None:
        self._clock = environment.clock
        self._host = host
        self._group = group
        self._machine: MetaStateMachine | None = None
        self._ticker: LeaseTicker | None = None

    async def run(self) -> None:
        while True:
            await asyncio.sleep(LEASE_TICK_S)
            try:
                self._tick()
            except (NotFound, Unavailable) as error:
                _log.debug("the metastore's time stands still", reason=error.message)

    def _tick(self) -> None:
        host, group = self._host, self._group
        if group not in host.groups() or not host.is_leading(group):
            return
        command = self._current().due(self._clock.monotonic_ns() // 1_000_000)
        if command is not None:
            host.propose_batch(group, [command], lambda _, __: None)

    def _current(self) -> LeaseTicker:
        """Of the state machine that runs now: a replica that was begun anew has another."""
        machine = self._host.machine(self._group)
        assert isinstance(machine, MetaStateMachine)
        if self._ticker is None or machine is not self._machine:
            self._machine, self._ticker = machine, LeaseTicker(machine)
        return self._ticker


class MetastoreTenant:
    """A `Tenant`."""

    def __init__(
        self,
        environment: Environment,
        host: NodeHost,
        settings: Settings,
        metrics: Metrics,  # noqa: ARG002
    ) -> None:
        self._environment = environment
        self._host = host
        self._members = settings.cluster.addresses()
        self._time = MetastoreTime(environment, host, METASTORE_GROUP)
        self._ticking: asyncio.Task[None] | None = None

    def register(self, service: Service) -> None:
        RaftService(self._host).register(service)

    async def start(self, *, joins: bool) -> None:
        members = None if joins else self._members
        await self._host.start_group(METASTORE_GROUP, MetaStateMachine, members=members)
        self._ticking = asyncio.create_task(self._time.run(), name="the metastore's time")
        self._ticking.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and task.exception() is not None:
            self._environment.end_process(f"the metastore's time failed: {task.exception()!r}")

    def problems(self) -> Mapping[str, str]:
        return {"metastore": self._problem()}

    def _problem(self) -> str:
        """Why the metastore is of no use here; empty where it is replayed and has a leader."""
        if METASTORE_GROUP in self._host.halted():
            return "its replica is damaged, and being repaired"
        try:
            return "" if self._host.leader(METASTORE_GROUP) else "no leader is known"
        except NotFound:
            return "no replica of it is here"

    async def close(self) -> None:
        if self._ticking is not None:
            self._ticking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._ticking


def log_tenant(
    environment: Environment, host: NodeHost, settings: Settings, metrics: Metrics
) -> LogStore:
    """A `Tenant`."""
    place = LogStorePlace(
        address=advertised_address(settings),
        folder=settings.node.data_folder,
        version=__version__,
        first_members=settings.cluster.addresses(),
        network=store_as_client(settings),
    )
    metastore = Guest(
        name="metastore",
        machine=MetaStateMachine,
        run=MetastoreTime(environment, host, METASTORE_SHARD).run,
    )
    return LogStore(
        environment,
        host,
        place,
        settings.logservice,
        settings.hakeeper,
        metrics,
        {METASTORE_SHARD: metastore, ZEPPELIN_SHARD: _zeppelin(environment, host, settings)},
    )


def _zeppelin(environment: Environment, host: NodeHost, settings: Settings) -> Guest:
    def now_ms() -> int:
        return environment.clock.monotonic_ns() // 1_000_000

    def term() -> int | None:
        return host.status(ZEPPELIN_SHARD).term if host.is_leading(ZEPPELIN_SHARD) else None

    return Guest(
        name="zeppelin",
        machine=lambda: MetaMachine(settings.zeppelin_meta, now_ms=now_ms, term=term),
        run=MetaKeeper(host, ZEPPELIN_SHARD, settings.zeppelin_meta).run,
    )


def log_settings(settings: Settings) -> Settings:
    """As given, but for what the log service needs of its host; refused where they do not fit."""
    check_records_fit(settings.logservice, settings.raft)
    return msgspec.structs.replace(settings, raft=host_settings(settings.raft))
