"""The metastore on a store of its own: one raft group, and its time."""

import asyncio
import contextlib
from collections.abc import Mapping

from raftwood.app.groups import METASTORE_GROUP
from raftwood.app.metastore_time import MetastoreTime
from raftwood.app.settings import Settings
from raftwood.base.environment import Environment
from raftwood.base.errors import NotFound
from raftwood.base.metrics import Metrics
from raftwood.metastore.state_machine import MetaStateMachine
from raftwood.net import Service
from raftwood.raft.host.host import Host
from raftwood.raft.remote.service import RaftService


class MetastoreTenant:
    """A `Tenant`."""

    def __init__(
        self,
        environment: Environment,
        host: Host,
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
