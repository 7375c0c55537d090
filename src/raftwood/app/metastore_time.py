"""`MetastoreTime`: lets the time of a metastore's raft group go on where this store leads it."""

import asyncio
from typing import Final

from raftwood.base.environment import Environment
from raftwood.base.errors import NotFound, Unavailable
from raftwood.base.logs import get_logger
from raftwood.metastore.lease_ticker import LeaseTicker
from raftwood.metastore.state_machine import MetaStateMachine
from raftwood.raft.host.host import Host

LEASE_TICK_S: Final = 0.05

_log = get_logger("metastore")


class MetastoreTime:
    """One per store, whether it has a replica of the group or not."""

    def __init__(self, environment: Environment, host: Host, group: int) -> None:
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
