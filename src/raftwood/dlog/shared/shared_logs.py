"""`SharedLogs`: DLOG as the `Logs` seam, for one of many processes that use the same logs.

Names should not be used again: a log that was opened before stays the old one.
"""

from typing import Final
from weakref import WeakSet

from raftwood.base.environment import Environment
from raftwood.base.errors import AlreadyExists, InvalidName
from raftwood.base.seams import Log, MetaStore
from raftwood.dlog.log.dlogs import Dlogs
from raftwood.dlog.shared.owner_records import remove_owner
from raftwood.dlog.shared.peer_service import PeerService
from raftwood.dlog.shared.peers import PeerNetwork
from raftwood.dlog.shared.seats import Seats
from raftwood.dlog.shared.settings import SharedDlogSettings
from raftwood.dlog.shared.shared_log import SharedLog
from raftwood.dlog.shared.upkeep import Upkeep
from raftwood.net import Service

OPENED_MAX: Final = 4_096
"""Logs that are kept open, those used last."""


class SharedLogs:
    """Register it with the service that others reach this process by, then `start`; `close` when
    done. `name` is this process's among all that share logs, and its identity on the network.
    """

    def __init__(
        self,
        environment: Environment,
        store: MetaStore,
        dlogs: Dlogs,
        network: PeerNetwork,
        *,
        name: str,
        settings: SharedDlogSettings | None = None,
    ) -> None:
        self.name = name
        self._store = store
        self._dlogs = dlogs
        self._settings = settings or SharedDlogSettings()
        self.seats = Seats(
            environment, store, dlogs.open_writer, network, self._settings, name=name
        )
        self._upkeep = Upkeep(environment, dlogs, interval_ms=self._settings.upkeep_ms)
        self._opened: dict[str, SharedLog] = {}
        """In the order in which they were last asked for."""
        self._used: WeakSet[SharedLog] = WeakSet()

    def register(self, service: Service) -> None:
        PeerService(self.seats).register(service)

    async def start(self, address: str) -> None:
        """The service is served there: from here on this process can own logs."""
        await self.seats.start(address)
        self._upkeep.start()

    async def create(self, name: str) -> None:
        """A log without batches; nothing where it is there already."""
        try:
            await self._dlogs.create(name, self._settings.log_config())
        except AlreadyExists:
            return

    async def open(self, name: str) -> Log:
        """`NotFound` where there is none."""
        log = self._opened.pop(name, None)
        if log is None or log.is_removed:
            meta = (await self._dlogs.metas.read(name)).meta
            reader = await self._dlogs.open_reader(name)
            log = self._opened.pop(name, None)  # another may have been faster
            if log is None or log.is_removed:
                log = SharedLog(
                    name,
                    meta.token,
                    self._dlogs,
                    self.seats,
                    reader,
                    timeout_ms=self._settings.timeout_ms,
                )
                self._used.add(log)
        self._opened[name] = log
        while len(self._opened) > OPENED_MAX:
            del self._opened[next(iter(self._opened))]
        return log

    async def remove(self, name: str) -> None:
        """The log and all its batches; nothing where it is gone already."""
        try:
            await self._dlogs.remove(name)
        except InvalidName:
            return  # there never was one
        await remove_owner(self._store, name)
        log = self._opened.pop(name, None)
        if log is not None:
            log.is_removed = True

    async def names(self, prefix: str) -> list[str]:
        """Of all logs whose name begins so, in order."""
        return await self._dlogs.names(prefix)

    async def close(self) -> None:
        """Give back what is owned here, so that others need not wait for it."""
        await self._upkeep.close()
        await self.seats.close()
        for log in list(self._used):
            await log.close()
