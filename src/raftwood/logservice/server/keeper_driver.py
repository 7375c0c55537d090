"""What HAKeeper's leader does each tick: lets time go on, sets the cluster up, and plans.

It also plans as soon as somebody wants something, and lets the stores know that orders wait: else a
new shard would take a tick and a heartbeat to begin.
"""

from collections.abc import Callable, Mapping

from raftwood.base.errors import RaftwoodError
from raftwood.base.logs import get_logger
from raftwood.logservice.hakeeper.commands import (
    AddGuests,
    InitialCluster,
    Scheduled,
    SetInitialCluster,
    decode_result,
    encode_command,
)
from raftwood.logservice.hakeeper.reports import HAKEEPER_SHARD
from raftwood.logservice.hakeeper.settings import HaKeeperSettings
from raftwood.logservice.hakeeper.state import Phase, State
from raftwood.logservice.hakeeper.state_machine import HaKeeperStateMachine
from raftwood.logservice.server.pacing import Pacing
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
        version: str,
        tell: Callable[[int], None],
    ) -> None:
        """`tell` lets a store know that orders wait for it."""
        self._host = host
        self._settings = settings
        self._first_members = dict(first_members)
        self._guests = dict(guests)
        self._version = version
        self._tell = tell
        self._pacing = Pacing(settings.tick_ms)

    async def run(self) -> None:
        while True:
            is_tick = await self._pacing.wait()
            try:
                await self._work(is_tick=is_tick)
            except RaftwoodError as error:
                _log.debug("no tick", reason=error.message)

    def plan_soon(self) -> None:
        """Somebody wants something: orders need not wait for the next tick."""
        self._pacing.ask()

    async def _work(self, *, is_tick: bool) -> None:
        host = self._host
        if HAKEEPER_SHARD not in host.groups() or not host.is_leading(HAKEEPER_SHARD):
            return
        machine = host.machine(HAKEEPER_SHARD)
        assert isinstance(machine, HaKeeperStateMachine)
        term = host.status(HAKEEPER_SHARD).term
        if is_tick:
            await self._propose(machine.tick_command())
        if machine.state.phase is Phase.CREATED:
            await self._set_initial_cluster()
        elif is_tick:
            await self._add_guests(machine.state)
        command = machine.schedule_command(term)
        if command is None:
            return
        result = decode_result(await self._propose(command))
        if isinstance(result, Scheduled) and result.taken:
            for store in sorted({order.to_store for order in machine.state.orders.values()}):
                self._tell(store)

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

    async def _add_guests(self, state: State) -> None:
        """Those that a cluster lacks which began with an older program; once no store runs that
        any more, for it could not carry this out.
        """
        missing = {each: name for each, name in self._guests.items() if each not in state.shards}
        if missing and all(each.version == self._version for each in state.stores.values()):
            decode_result(await self._propose(encode_command(AddGuests(missing))))
            _log.info("guests begin", names=sorted(missing.values()))

    async def _propose(self, command: bytes) -> bytes:
        timeout_ms = self._settings.tick_ms * 10
        return bytes(await self._host.propose(HAKEEPER_SHARD, command, timeout_ms=timeout_ms))
