"""`Seats`: all logs that this process has to do with, and the lease that it owns some under.

One watch tells who owns what; one lease stands behind all records of this process.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from raftwood.base.environment import Environment
from raftwood.base.seams import MetaStore
from raftwood.dlog.log.log_writer import LogWriter
from raftwood.dlog.shared.owner_records import OwnerRecords
from raftwood.dlog.shared.ownership import (
    GiveBack,
    LeaseBegan,
    LeaseEnded,
    Owner,
    OwnerGone,
    OwnerSeen,
    Phase,
)
from raftwood.dlog.shared.peers import PeerNetwork, Peers
from raftwood.dlog.shared.seat import Seat
from raftwood.dlog.shared.settings import SharedDlogSettings
from raftwood.dlog.shared.tenure import Tenure

CLOSE_S_MAX: Final = 5.0
"""For logs to be closed in order; whoever comes next recovers the rest."""
_PAUSE_S: Final = 0.02


class Seats:
    """Use `start`, and `close` when done."""

    def __init__(
        self,
        environment: Environment,
        store: MetaStore,
        open_writer: Callable[[str], Awaitable[LogWriter]],
        network: PeerNetwork,
        settings: SharedDlogSettings,
        *,
        name: str,
    ) -> None:
        self.name = name
        self._environment = environment
        self._store = store
        self._open_writer = open_writer
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self.peers = Peers(environment, network, name, self._gone)
        self._records = OwnerRecords(store, self._heard)
        self._tenure = Tenure(store, ttl_ms=settings.lease_ms, began=self._began, ended=self._ended)
        self._seats: dict[str, Seat] = {}
        self._address = ""
        self._me: Owner | None = None
        self._sweeping: asyncio.TimerHandle | None = None

    async def start(self, address: str) -> None:
        """From here on it can be asked there."""
        self._address = address
        await self._records.start()
        self._tenure.start()
        self._sweep()

    @property
    def is_in_office(self) -> bool:
        """Whether what this process owns is its own still, by its clock."""
        return self._tenure.is_valid

    def seat(self, log: str) -> Seat:
        seat = self._seats.get(log)
        if seat is None:
            seat = self._seats[log] = Seat(
                log, self.name, self._environment, self._store, self._open_writer
            )
            if self._me is not None:
                seat.tell(LeaseBegan(self._me))
            seat.tell(self._records.known(log))
        seat.used = self._loop.time()
        return seat

    def owned(self) -> list[Seat]:
        """Those whose writer is open here."""
        return [each for each in self._seats.values() if each.rules.phase is Phase.OWNING]

    async def close(self) -> None:
        """Give all back, then let go of the lease."""
        if self._sweeping is not None:
            self._sweeping.cancel()
        deadline = self._loop.time() + CLOSE_S_MAX
        while any(each.rules.claim for each in self._seats.values()):
            for seat in list(self._seats.values()):
                seat.tell(GiveBack())
            if self._loop.time() > deadline:
                break
            await asyncio.sleep(_PAUSE_S)
        await self._records.close()
        await self._tenure.close()
        for seat in self._seats.values():
            await seat.close()
        await self.peers.close()

    # What happens

    def _began(self, lease: int) -> None:
        self._me = Owner(self.name, self._address, lease)
        for seat in list(self._seats.values()):
            seat.tell(LeaseBegan(self._me))

    def _ended(self) -> None:
        self._me = None
        for seat in list(self._seats.values()):
            seat.tell(LeaseEnded())

    def _heard(self, log: str, seen: OwnerSeen) -> None:
        seat = self._seats.get(log)
        if seat is not None:
            seat.tell(seen)

    def _gone(self, owner: Owner) -> None:
        for seat in list(self._seats.values()):
            seat.tell(OwnerGone(owner))

    def _sweep(self) -> None:
        idle_s = self._settings.idle_ms / 1000
        self._sweeping = self._loop.call_later(idle_s / 4, self._sweep)
        before = self._loop.time() - idle_s
        for log, seat in list(self._seats.items()):
            if seat.used > before:
                continue
            if seat.is_idle:
                del self._seats[log]
            else:
                seat.tell(GiveBack())
