"""`MetaKeeper`: proposes what the meta server's leader plans, where this store is that leader."""

import asyncio
from typing import Any, Final, Protocol

from raftwood.base.errors import RaftwoodError
from raftwood.base.logs import get_logger
from raftwood.zeppelin.meta.changes import Change, MarkSlaves, decode_applied, encode_batch
from raftwood.zeppelin.meta.settings import ZeppelinMetaSettings
from raftwood.zeppelin.meta.state_machine import MetaMachine

TIMEOUT_MS: Final = 5_000

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

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._pause_s)
            try:
                await self.work()
            except RaftwoodError as error:
                _log.debug("no plan", reason=error.message)

    async def work(self) -> None:
        """Plan once, and see it through: the next plan is made on what came of this one."""
        host, group = self._host, self._group
        if group not in host.groups() or not host.is_leading(group):
            return
        machine = host.machine(group)
        assert isinstance(machine, MetaMachine)
        changes = machine.plan()
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
