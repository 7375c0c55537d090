"""What HAKeeper's leader does each tick: lets time go on, sets the cluster up, and plans."""

import asyncio
from collections.abc import Mapping

from raftwood.base.errors import RaftwoodError
from raftwood.base.logs import get_logger
from raftwood.logservice.hakeeper.commands import (
    InitialCluster,
    SetInitialCluster,
    decode_result,
    encode_command,
)
from raftwood.logservice.hakeeper.reports import HAKEEPER_SHARD
from raftwood.logservice.hakeeper.settings import HaKeeperSettings
from raftwood.logservice.hakeeper.state import Phase
from raftwood.logservice.hakeeper.state_machine import HaKeeperStateMachine
from raftwood.raft.host.host import Host

_log = get_logger("hakeeper")


class KeeperDriver:
    """Runs on every store, and does something where that one leads HAKeeper."""

    def __init__(
        self,
        host: Host,
        settings: HaKeeperSettings,
        first_members: Mapping[int, str],
        guests: Mapping[int, str],
    ) -> None:
        self._host = host
        self._settings = settings
        self._first_members = dict(first_members)
        self._guests = dict(guests)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._settings.tick_ms / 1000)
            try:
                await self._tick()
            except RaftwoodError as error:
                _log.debug("no tick", reason=error.message)

    async def _tick(self) -> None:
        host = self._host
        if HAKEEPER_SHARD not in host.groups() or not host.is_leading(HAKEEPER_SHARD):
            return
        machine = host.machine(HAKEEPER_SHARD)
        assert isinstance(machine, HaKeeperStateMachine)
        term = host.status(HAKEEPER_SHARD).term
        await self._propose(machine.tick_command())
        if machine.state.phase is Phase.CREATED:
            await self._set_initial_cluster()
        command = machine.schedule_command(term)
        if command is not None:
            await self._propose(command)

    async def _set_initial_cluster(self) -> None:
        settings = self._settings
        stores = len(self._first_members)
        if not stores:
            return
        result = decode_result(
            await self._propose(
                encode_command(
                    SetInitialCluster(
                        log_shards=settings.log_shards,
                        tn_shards=settings.tn_shards,
                        log_replicas=min(settings.log_replicas, stores),
                        hakeeper_replicas=min(settings.hakeeper_replicas, stores),
                        members=self._first_members,
                        guests=self._guests,
                    )
                )
            )
        )
        if isinstance(result, InitialCluster) and result.is_first:
            _log.info("initial cluster", shards=settings.log_shards, stores=stores)

    async def _propose(self, command: bytes) -> bytes:
        timeout_ms = self._settings.tick_ms * 10
        return bytes(await self._host.propose(HAKEEPER_SHARD, command, timeout_ms=timeout_ms))
