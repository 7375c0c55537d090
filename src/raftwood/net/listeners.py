"""Rules for the connections of every listener: admission, fair shares of the loop, orderly stop.

**Admission.** Bounds on the connections of one address, and of all that have not logged in:

    admission = ConnectionAdmission(1_024, settings.connections)
    entered = admission.enter(connection, address_of(transport))
    ...                                   # close `entered.displaced`, or refuse with `.refusal`
    admission.authenticated(connection)   # once the client has logged in
    admission.leave(connection)

Opening a connection costs a client next to nothing. Without these bounds a client that opens as
many as a listener takes, and sends nothing on them, keeps all others out until each of its
connections has run into a timeout. So a newcomer is let in nevertheless, and displaces the oldest
connection that has not logged in, of the address that has most of these: an honest client logs in
at once. A connection that has logged in is never displaced. These are pure rules: the listener
closes the displaced connection, in the words of its protocol.

**Fair shares.** A client may send as much at once as it likes; a turn of the loop works for it only
for a limited time. Otherwise one deep pipeline would hold the loop for seconds, and with it other
clients, and the heartbeats that keep this process's leases. So a turn's work for the clients of a
listener is bounded in pieces (commands, frames, bytes: the listener's unit) and in time. A
connection with more to do is not read meanwhile, and goes on in a later turn, behind all others
that wait:

    def data_received(self, data):                  # or buffer_updated
        self._waiting += requests_in(data)
        if self._turns.begin():
            self._work()
        else:
            self._turns.queue(self._work)

    def _work(self):
        while self._waiting and self._turns.take():
            self._carry_out(self._waiting.popleft())
        if self._waiting:
            self._turns.queue(self._work)
        (pause or resume reading)

Half of a turn is for connections that wait, and half for what has just come: so a client that sends
one request at a time hardly ever waits behind those that send many. Answers that this process gets
as a client of its peers (to heartbeats, for example) do not pass through here at all.

Leases hang on some requests: heartbeats, and renewals. These must not wait behind clients, or a
node loses its leases because it is busy. So urgent work has a queue of its own. Each turn begins
with that queue, also while others rest. Urgent work gets a half of each half of a turn at the most,
in pieces and in time, and its pieces count as pieces of the half. So clients keep the rest, however
much urgent work there is:

    self._turns.begin_urgent()                      # where it arrives; not where `queue` calls back
    while self._urgent and self._turns.take_urgent():
        self._carry_out(self._urgent.popleft())
    if self._urgent:
        self._turns.queue(self._work_urgent, urgent=True)

**The end.** `stop_accepting` closes listeners without losing a connection that they have accepted.
"""

import asyncio
import ipaddress
from collections.abc import Callable, Iterable
from typing import Final, Generic, TypeAlias, TypeVar

import msgspec

from raftwood.base.metrics import Metrics
from raftwood.base.settings import ConnectionSettings
from raftwood.net.connection import NEVER

BOUND_MIN: Final = 16
"""A share of a small listener is no less: a browser alone opens six connections."""
_IPV6_NETWORK_BITS: Final = 64
"""A client with one IPv6 address usually has the whole network with a prefix this long."""

C = TypeVar("C")


class AdmissionDecision(msgspec.Struct, Generic[C], frozen=True, gc=False):
    """The decision about a newcomer: it is in, unless `refusal` says why not."""

    displaced: C | None = None
    """The connection to close; it no longer counts."""
    refusal: str = ""


class ConnectionAdmission(Generic[C]):
    """The connections of one listener, or of several that share a bound."""

    def __init__(self, connections_max: int, settings: ConnectionSettings | None = None) -> None:
        settings = settings or ConnectionSettings()
        self.connections_max = connections_max
        self.address_max = _share(connections_max, settings.address_percent)
        self.unauthenticated_max = _share(connections_max, settings.unauthenticated_percent)
        self.dropped = {"address": 0, "unauthenticated": 0, "total": 0}
        """Connections displaced or refused, by the bound that was reached."""
        self._addresses: dict[C, str] = {}
        self._counts: dict[str, int] = {}
        self._unauthenticated: dict[str, dict[C, None]] = {}
        """Connections by address, the oldest first."""
        self._unauthenticated_count = 0

    @property
    def count(self) -> int:
        return len(self._addresses)

    @property
    def unauthenticated_count(self) -> int:
        return self._unauthenticated_count

    def enter(self, connection: C, address: str) -> AdmissionDecision[C]:
        """Admits a newcomer, at the cost of another connection if a bound is reached."""
        address = _network(address)
        is_address_full = self._counts.get(address, 0) >= self.address_max
        reason = ""
        if len(self._addresses) >= self.connections_max:
            reason = "total"
        elif is_address_full:
            reason = "address"
        elif self._unauthenticated_count >= self.unauthenticated_max:
            reason = "unauthenticated"
        displaced = None
        if reason:
            self.dropped[reason] += 1
            # An address at its own limit loses one of its own connections.
            of_address = self._unauthenticated.get(address)
            victims = of_address if is_address_full else self._of_busiest_address()
            if not victims:
                return AdmissionDecision(refusal=self._refusal(reason))
            displaced = next(iter(victims))
            self.leave(displaced)
        self._addresses[connection] = address
        self._counts[address] = self._counts.get(address, 0) + 1
        self._unauthenticated.setdefault(address, {})[connection] = None
        self._unauthenticated_count += 1
        return AdmissionDecision(displaced)

    def authenticated(self, connection: C) -> None:
        """Notes that the client has logged in: its connection can no longer be displaced."""
        address = self._addresses.get(connection)
        if address is None or (of_address := self._unauthenticated.get(address)) is None:
            return
        if connection in of_address:
            del of_address[connection]
            self._unauthenticated_count -= 1
            if not of_address:
                del self._unauthenticated[address]

    def leave(self, connection: C) -> None:
        """Removes a connection that ended, was displaced, or was never admitted."""
        self.authenticated(connection)
        address = self._addresses.pop(connection, None)
        if address is not None:
            self._counts[address] -= 1
            if not self._counts[address]:
                del self._counts[address]

    def count_in(self, metrics: Metrics, listener: str) -> None:
        """Registers metrics: dropped connections, and those that have not logged in."""
        for reason in self.dropped:
            metrics.pull_counter(
                "connections_dropped_total",
                "Connections displaced or refused, by the bound that was reached.",
                lambda reason=reason: self.dropped[reason],  # type: ignore[misc]
                {"listener": listener, "reason": reason},
            )
        metrics.pull_gauge(
            "connections_unauthenticated",
            "Connections that have not logged in.",
            lambda: self._unauthenticated_count,
            {"listener": listener},
        )

    def _of_busiest_address(self) -> dict[C, None] | None:
        # Linear in addresses, which are at most as many as unauthenticated connections.
        return max(self._unauthenticated.values(), key=len, default=None)

    def _refusal(self, reason: str) -> str:
        if reason == "address":
            return (
                f"this address has {self.address_max} connections, all that one may: use fewer, or "
                "raise connections.address_percent"
            )
        return (
            f"the server has no room for another connection, it has {self.connections_max}: try "
            "again later, or raise its connections_max"
        )


DISPLACED: Final = (
    "the connection made room for another, for nobody has logged in on it: log in at once, or "
    "raise connections.unauthenticated_percent"
)


def address_of(transport: asyncio.BaseTransport) -> str:
    """The peer's address; empty if the system does not know it."""
    peer = transport.get_extra_info("peername")
    return str(peer[0]) if isinstance(peer, tuple) and peer else ""


def _share(connections_max: int, percent: int) -> int:
    return min(connections_max, max(BOUND_MIN, connections_max * percent // 100))


def _network(address: str) -> str:
    """The address itself, or for IPv6 its network."""
    if ":" not in address:
        return address
    try:
        parsed = ipaddress.IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(parsed), _IPV6_NETWORK_BITS), strict=False))


Work: TypeAlias = Callable[[], None]


class TurnLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How much of one turn of the loop all clients of a listener may take, in two halves."""

    pieces_max: int = 1_024
    """The limit of a turn; each half may exceed its share by one slice."""
    slice_pieces_max: int = 64
    """The limit of one connection's slice, before the next one's."""
    clock_pieces: int = 16
    """Pieces between two looks at the clock."""
    turn_ms: int = 2
    rest_ms: int = 5
    """The pause between two slices while the system behind them (a disk, say) lags."""


class FairScheduler:
    """Divides the turns of the loop among the connections of one listener."""

    def __init__(
        self, limits: TurnLimits | None = None, *, is_behind: Callable[[], bool] = lambda: False
    ) -> None:
        """While `is_behind` returns true, waiting connections get one slice per rest."""
        self.limits = limits = limits or TurnLimits()
        self._is_behind = is_behind
        self._loop = asyncio.get_running_loop()
        self._turn_s = limits.turn_ms / 1000
        self._queue: dict[Work, None] = {}
        self._urgent_queue: dict[Work, None] = {}
        self._is_next_due = False
        self._rest: asyncio.TimerHandle | None = None
        self._slice_left = 0
        self._clock_left = 0
        self._half_left = 0
        """Pieces left in the present half."""
        self._half_ends = 0.0
        self._urgent_slice_left = 0
        self._urgent_left = 0
        """Urgent pieces left in the present half."""
        self._urgent_ends = NEVER
        """Set by the half's first urgent piece: time spent on clients before does not count."""

    @property
    def queue_length(self) -> int:
        """Connections that wait for a turn."""
        return len(self._queue) + len(self._urgent_queue)

    def begin(self) -> bool:
        """Begins a slice for new bytes; returns False if this turn has no room for it."""
        now = self._loop.time()
        if self._half_left <= 0 or now >= self._half_ends:
            if self._is_next_due:
                return False
            # That half may be of an earlier turn; this one's end will be seen.
            self._begin_half(now)
            self._expect_next()
        self._begin_slice()
        return True

    def take(self, wanted: int = 1) -> int:
        """Returns how many pieces the present slice may do now; 0: go on in a later turn.

        A slice gets at least `clock_pieces`, so that each connection makes progress, and is not cut
        short for being the last one of a turn.
        """
        if self._clock_left <= 0:
            if self._slice_left <= 0:
                return 0
            if self._loop.time() >= self._half_ends:
                self._half_left = 0
                return 0
            self._clock_left = min(self.limits.clock_pieces, self._slice_left)
        count = min(wanted, self._clock_left)
        self._clock_left -= count
        self._slice_left -= count
        self._half_left -= count
        return count

    def look_again(self, unused: int = 0) -> None:
        """Has the clock read before the next piece, since the last one may have taken long.

        `unused` pieces were taken and not done.
        """
        self._clock_left = 0
        self._slice_left += unused
        self._half_left += unused

    def begin_urgent(self) -> None:
        """Begins a slice for new urgent bytes; other slices go on after it."""
        if not self._is_next_due:
            self._begin_half(self._loop.time())
            self._expect_next()
        self._urgent_slice_left = self.limits.clock_pieces

    def take_urgent(self) -> bool:
        """Whether an urgent piece may be done now; otherwise it waits for a later turn."""
        if self._urgent_slice_left <= 0 or self._urgent_left <= 0:
            return False
        now = self._loop.time()
        if self._urgent_ends == NEVER:
            self._urgent_ends = now + self._turn_s / 4
        elif now >= self._urgent_ends:
            self._urgent_left = 0
            return False
        self._urgent_slice_left -= 1
        self._urgent_left -= 1
        self._half_left -= 1
        return True

    def queue(self, work: Work, *, urgent: bool = False) -> None:
        """Calls `work` once, in a slice of a later turn; in the order of calls to `queue`."""
        (self._urgent_queue if urgent else self._queue)[work] = None
        if urgent or self._rest is None:
            self._expect_next()

    def forget(self, work: Work) -> None:
        """Removes queued work."""
        self._queue.pop(work, None)
        self._urgent_queue.pop(work, None)

    async def pause(self) -> None:
        """Waits for a slice: tasks call this before each; returns in a turn with room for it."""
        if self.begin():
            self._half_left -= self.limits.slice_pieces_max
            return
        turn = self._loop.create_future()

        def come() -> None:
            if not turn.done():
                self._half_left -= self.limits.slice_pieces_max
                turn.set_result(None)

        self.queue(come)
        await turn

    def close(self) -> None:
        """Drops all queued work."""
        self._queue.clear()
        self._urgent_queue.clear()
        if self._rest is not None:
            self._rest.cancel()

    def _begin_half(self, now: float) -> None:
        self._half_left = self.limits.pieces_max // 2
        self._half_ends = now + self._turn_s / 2
        self._urgent_left = self._half_left // 2
        self._urgent_ends = NEVER

    def _begin_slice(self) -> None:
        self._slice_left = self.limits.slice_pieces_max
        self._clock_left = min(self.limits.clock_pieces, self._slice_left)

    def _expect_next(self) -> None:
        if not self._is_next_due:
            self._is_next_due = True
            self._loop.call_soon(self._next)

    def _next(self) -> None:
        """Begins a turn: waiting connections come first, in slices, for half of it."""
        self._is_next_due = False
        is_resting = self._rest is not None
        if not self._urgent_queue and (is_resting or not self._queue):
            return
        self._begin_half(self._loop.time())
        try:
            self._serve_urgent()
            if not is_resting:
                self._serve()
        finally:
            # New bytes have a half of their own.
            self._begin_half(self._loop.time())
            self._expect_next()

    def _serve_urgent(self) -> None:
        queue = self._urgent_queue
        # Each once: work that queues itself again may lack something other than a turn.
        for work in list(queue):
            if self._urgent_left <= 0 or self._loop.time() >= self._urgent_ends:
                return
            # Earlier work may have removed it.
            if work in queue:
                del queue[work]
                self._urgent_slice_left = self.limits.clock_pieces
                work()

    def _serve(self) -> None:
        queue = self._queue
        if not queue:
            return
        is_behind = self._is_behind()
        if is_behind:
            self._rest = self._loop.call_later(self.limits.rest_ms / 1000, self._rested)
        # At least one slice, however long urgent work took.
        while queue:
            # Work that it queues again is behind all others, and may still come round in this turn.
            work = next(iter(queue))
            del queue[work]
            self._begin_slice()
            work()
            if is_behind or self._half_left <= 0 or self._loop.time() >= self._half_ends:
                return

    def _rested(self) -> None:
        self._rest = None
        if self._queue:
            self._expect_next()


_TURNS_TO_ACCEPT: Final = 4


async def stop_accepting(listeners: Iterable[asyncio.Server]) -> None:
    """Closes listeners; when it returns, each connection that they accepted has its protocol.

    asyncio creates a connection's transport a turn after it accepted it, and fails if the listener
    was closed in between: that connection would never be served or closed. So the listeners first
    stop accepting, and are closed once all accepted connections have appeared.
    """
    listeners = list(listeners)
    loop = asyncio.get_running_loop()
    # Other loops (uvloop, the simulation) accept within one turn.
    if isinstance(loop, asyncio.SelectorEventLoop):
        for listener in listeners:
            for each in listener.sockets:
                loop.remove_reader(each.fileno())
        await _accepted()
    for listener in listeners:
        listener.close()
    await _accepted()


async def _accepted() -> None:
    for _ in range(_TURNS_TO_ACCEPT):
        await asyncio.sleep(0)
