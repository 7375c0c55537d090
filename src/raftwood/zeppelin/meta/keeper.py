"""`MetaKeeper`: proposes what the meta server's leader plans, where this store is that leader."""

import asyncio
from typing import Any, Final, Protocol

from raftwood.base.errors import RaftwoodError
from raftwood.base.logs import get_logger
from raftwood.zeppelin.meta.changes import Change, MarkSlaves, decode_applied, encode_batch
from raftwood.zeppelin.meta.settings import ZeppelinMetaSettings
from raftwood.zeppelin.meta.state_machine import MetaMachine

TIMEOUT_MS: Final = 5_000
RESTS: Final = 10
"""After a plan none is made for so many times as long as it took."""

_log = get_logger("zeppelin-meta")


class GroupHost(Protocol):
    """What a keeper needs of the store that it is on."""

    def groups(self) -> list[int]: ...

    def is_leading(self, group: int) -> bool: ...

    def machine(self, group: int) -> Any: ...

    async def propose(self, group: int, payload: bytes, *, timeout_ms: int) -> Any: ...


class MetaKeeper:
    """One per store, whether it has a replica of the group or not."""

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
        """What comes within it is one change; who waits for a hand-over is not kept waiting."""
        machine = self._machine()
        if machine is None:
            await asyncio.sleep(self._pause_s)
        else:
            await asyncio.sleep(self._rest_s)
            await machine.wait_for_plan(max(0.0, self._pause_s - self._rest_s))

    def _machine(self) -> MetaMachine | None:
        """None where this store does not lead."""
        host, group = self._host, self._group
        if group not in host.groups() or not host.is_leading(group):
            return None
        machine = host.machine(group)
        assert isinstance(machine, MetaMachine)
        return machine

    async def work(self) -> None:
        """Plan once, and see it through: the next plan is made on what came of this one."""
        host, group = self._host, self._group
        machine = self._machine()
        if machine is None:
            return
        loop = asyncio.get_running_loop()
        began = loop.time()
        changes = machine.plan()
        # A large cluster takes its time to look at, and its store has others to serve.
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
