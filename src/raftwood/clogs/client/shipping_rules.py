"""The shipping rules and their state: batches on their way, and a lane for each file.

clogs' text routes each message by its file's name (section "Load balancing") and accepts that some
are lost while a server is isolated ("High availability"). Here a batch is stored once, behind the
file's earlier ones, whichever servers it goes by (docs/decisions/0028). One rule carries that: a
batch that was sent and not answered is in doubt, and may go nowhere but to the place that it was
sent to. Planted bugs are in `tests/kits/clogs/shipping_model/mutants.py`.
"""

import heapq
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

import msgspec

from raftwood.base.backoff import Backoff
from raftwood.base.errors import InvariantViolated, RaftwoodError
from raftwood.clogs.frames import LineBatch
from raftwood.delivery.lanes import LaneAttempts
from raftwood.delivery.pump import NEVER

if TYPE_CHECKING:
    from raftwood.clogs.client.batch_builder import LineDelivery
    from raftwood.clogs.client.spool import Spool

Done = Callable[[RaftwoodError | None], None]
"""Called once with a batch's outcome: None if it is stored, or the error why it never will be."""


class QueuedBatch:
    """One batch until it is stored or given up; its body may be on disk alone."""

    __slots__ = (
        "batch",
        "count",
        "done",
        "flushes",
        "held_bytes",
        "is_dropped",
        "is_keepable",
        "is_stored",
        "name",
        "place",
        "size",
        "spool",
        "spool_group",
        "spool_index",
        "was_sent",
    )

    def __init__(self, batch: LineBatch, done: Done, *, is_keepable: bool = True) -> None:
        self.name = batch.name
        self.batch: LineBatch | None = batch
        """None while only the spool has the body."""
        self.count = batch.count
        self.size = len(batch.body)
        self.done = done
        self.flushes: list[LineDelivery] | None = None
        """Further deliveries that wait for it, beside the caller's own."""
        self.held_bytes = 0
        """The bytes of bounded memory that it takes."""
        self.is_keepable = is_keepable
        """Whether it may be spooled or dropped; false if the caller keeps the lines."""
        self.was_sent = False
        """A copy may be on its way: it can be stored at any time, and so is never dropped."""
        self.place = ""
        """The place that it was sent to: it may be stored there, and nowhere else."""
        self.is_stored = False
        self.is_dropped = False
        self.spool: Spool | None = None
        """The spool that it is in."""
        self.spool_group = 0
        self.spool_index = 0


class FileLane(LaneAttempts):
    """The batches of one file, in order."""

    __slots__ = (
        "attempt",
        "goes_on",
        "held_at",
        "in_flight",
        "is_asking",
        "last",
        "name",
        "place",
        "queue",
        "server",
    )

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name
        self.queue: deque[QueuedBatch] = deque()
        """The first one is the next to be stored."""
        self.place = ""
        """The place of the file as receivers gave it; empty: to be asked."""
        self.server = ""
        """The server that was asked or sent to last."""
        self.is_asking = False
        """A request for its place, or for its first batch's body, is under way."""
        self.in_flight: deque[QueuedBatch] = deque()
        """Sent, and not answered: the first ones of the queue, all by one attempt."""
        self.last: LineBatch | None = None
        """The last batch in flight."""
        self.goes_on = False
        """Whether more batches may follow these."""
        self.attempt = 0
        """Counts all attempts, so that a late answer can be recognized."""
        self.held_at = ""
        """The server at which it waits until fewer batches are under way."""

    @property
    def is_under_way(self) -> bool:
        return self.is_asking or bool(self.in_flight)


LANES_MAX: Final = 65_536
"""Above it a file that has nothing to ship is forgotten, and its place is asked anew."""


class ShippingLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How much is under way at once, and how long to wait before another attempt."""

    in_flight_max: int = 64
    """Batches under way at one server."""
    file_in_flight_max: int = 8
    """The limit for one file."""
    retry: Backoff = Backoff(first_ms=100, longest_ms=5_000)


class ShipBatch(msgspec.Struct, frozen=True):
    """Send a lane's next batch to a server, at a place."""

    lane: FileLane
    entry: QueuedBatch
    batch: LineBatch
    """The entry's body, which the entry may release meanwhile."""
    server: str
    place: str
    attempt: int
    is_repeat: bool
    was_at: str = ""
    """The place where it may be stored even without this send."""
    follows: bool = False


class LocateFile(msgspec.Struct, frozen=True):
    """Ask a server where a lane's file goes."""

    lane: FileLane
    server: str
    attempt: int


class LoadBatch(msgspec.Struct, frozen=True):
    """Read a batch's body from the spool; answer with `loaded`."""

    lane: FileLane
    entry: QueuedBatch
    attempt: int


Action = ShipBatch | LocateFile | LoadBatch


class ShippingRules:
    """All lanes of one shipper. `route` names the server of a file, by the ring as it is now.

    A lane with something to send is in one state: ready, under way, held (its server has enough
    under way), or waiting before another attempt. Only a lane whose file has no server is in none
    of them, until `servers_changed`.
    """

    def __init__(self, limits: ShippingLimits, route: Callable[[str], str | None]) -> None:
        self._limits = limits
        self._route = route
        self._lanes: dict[str, FileLane] = {}
        self._ready: dict[FileLane, None] = {}
        self._waiting: list[tuple[float, int, FileLane]] = []
        """A heap; entries for another time than the lane's `retry_at` are skipped."""
        self._turn = 0
        self._held: dict[str, dict[FileLane, None]] = {}
        """By server, in order of arrival."""
        self._freed: dict[str, None] = {}
        """Servers with fewer batches under way than before."""
        self._in_flight: dict[str, int] = {}
        self._windows: dict[str, int] = {}
        """Batches of a file that a server keeps in order; one for servers not listed."""
        self.due: float = NEVER
        """When `actions` has something to do even if nothing happens before."""

    # Events

    def add(self, entry: QueuedBatch) -> FileLane:
        """Adds a batch behind all others of its file."""
        lane = self._lanes.get(entry.name)
        if lane is None:
            lane = self._lanes[entry.name] = FileLane(entry.name)
        lane.queue.append(entry)
        self._offer(lane)
        return lane

    def told(self, server: str, window: int) -> None:
        """A server has sent how many batches of a file it keeps in order."""
        self._windows[server] = window

    def located(self, lane: FileLane, attempt: int, place: str) -> None:
        """A server has answered where the file goes."""
        if lane.is_asking and attempt == lane.attempt:
            self._leave(lane)
            lane.place = place
            self._offer(lane)

    def acked(self, lane: FileLane, entry: QueuedBatch, place: str) -> list[QueuedBatch]:
        """The entry is stored; returns the entries that are over by that, in order. Its lane
        continues at the place in the ack.
        """
        if entry.is_stored:
            return []  # it was sent twice, and both were answered
        # An ack counts however late it comes, and of whichever attempt: the batch is stored
        # (planted bug "a late ack counts for nothing"). Batches are over in order all the same: a
        # caller that sees the second stored believes that the first is stored (planted bug "acks
        # count
        # in any order").
        entry.is_stored = True
        over: list[QueuedBatch] = []
        while lane.queue and lane.queue[0].is_stored:
            first = lane.queue.popleft()
            over.append(first)
            if lane.in_flight and lane.in_flight[0] is first:
                lane.in_flight.popleft()
                self._free(lane, 1)
        if over:
            if lane.is_asking:
                self._leave(lane)
            lane.place = place
            self._succeed(lane)
        return over

    def moved(self, lane: FileLane, entry: QueuedBatch, attempt: int, *, now: float) -> None:
        """The place takes no more, and has not stored the batch: asks for the next place."""
        if self._is_in_flight(lane, entry, attempt):
            # The place has ended without this batch, and so without those behind it: they are in
            # doubt no more. Those in front of it may be stored there, and keep the place (planted
            # bugs "a place that takes no more is kept" and "the file goes on at a place that has
            # ended").
            ended = entry.place
            behind = lane.queue.index(entry)
            for at, each in enumerate(lane.queue):
                if at >= behind and each.place == ended:
                    each.place = ""
            if lane.place == ended:
                lane.place = ""
            self._break_off(lane, entry, now)

    def failed(
        self, lane: FileLane, entry: QueuedBatch | None, attempt: int, *, now: float
    ) -> None:
        """No answer, or one that says to try again: the batch may be stored or not. Without an
        entry, nothing came of what was asked.
        """
        # The batch keeps its place. With a new place it could be stored a second time: the answer
        # alone may be lost (planted bug "a place changes while a batch is in doubt"). A failure of
        # an earlier attempt says nothing of this one (planted bug "a stale failure counts").
        if entry is not None:
            if self._is_in_flight(lane, entry, attempt):
                self._windows.pop(lane.server, None)
                self._break_off(lane, entry, now)
        elif lane.is_asking and attempt == lane.attempt:
            self._windows.pop(lane.server, None)
            self._leave(lane)
            self._try_later(lane, now)

    def out_of_order(self, lane: FileLane, entry: QueuedBatch, attempt: int, *, now: float) -> None:
        """The server does not know the batch before: that one may be stored all the same."""
        if self._is_in_flight(lane, entry, attempt):
            self._break_off(lane, entry, now)

    def is_wanted(self, action: ShipBatch) -> bool:
        """Whether the batch is still to be sent: other events may just have changed that."""
        return self._is_in_flight(action.lane, action.entry, action.attempt)

    def not_sent(self, action: ShipBatch, *, now: float) -> None:
        """The batch could not be sent: unless it was sent before, it is not stored."""
        action.entry.was_sent, action.entry.place = action.is_repeat, action.was_at
        self.failed(action.lane, action.entry, action.attempt, now=now)

    def refused(self, lane: FileLane, entry: QueuedBatch, attempt: int) -> list[QueuedBatch]:
        """The batch will never be accepted as it is; returns the entries given up just now. Those
        are also the later ones whose lines the caller keeps: it gives them again in their order.
        """
        if lane.is_asking and attempt == lane.attempt and lane.queue[0] is entry:
            self._leave(lane)
        elif not self._is_in_flight(lane, entry, attempt):
            return []
        self._take_back(lane, entry)
        if entry.is_dropped:
            self._offer(lane)
            return []
        # Lines that a tailer keeps come again in their order. If those behind the refused batch
        # went on without it, they would stand in front of it then (planted bug "what is behind a
        # refused batch goes on without it").
        at = lane.queue.index(entry)
        behind = [] if entry.is_keepable else list(lane.queue)[at + 1 :]
        over = [entry, *(each for each in behind if not each.is_keepable)]
        for each in over:
            lane.queue.remove(each)
        self._succeed(lane)
        return over

    def loaded(self, lane: FileLane, attempt: int) -> None:
        """The batch of the lane's first entry is in memory again, or not wanted any more."""
        if lane.is_asking and attempt == lane.attempt:
            self._leave(lane)
            self._offer(lane)

    def dropped(self, entry: QueuedBatch) -> None:
        """The entry, which was never sent, is given up."""
        # A batch that was sent may be stored at any time: its caller would hear that it was
        # dropped, and find it stored (planted bug "a batch that was sent is dropped").
        if entry.was_sent:
            raise InvariantViolated(f"a batch of {entry.name} that was sent is dropped")
        entry.is_dropped = True
        lane = self._lanes.get(entry.name)
        if lane is not None and not lane.is_under_way:
            self._skip_dropped(lane)
            self._forget_if_idle(lane)

    def servers_changed(self, live: Iterable[str]) -> None:
        """The ring has changed: lanes under way at servers that left it continue elsewhere."""
        known = set(live)
        self._windows = {server: each for server, each in self._windows.items() if server in known}
        self._ready.clear()
        self._waiting.clear()
        self._held.clear()
        for lane in self._lanes.values():
            if lane.is_under_way and lane.server not in known:
                if lane.is_asking:
                    self._leave(lane)
                else:
                    self._take_back(lane, lane.in_flight[0])
                lane.attempt += 1  # what is answered to the last one comes too late
            if not lane.is_under_way:
                self._reset(lane)
            self._offer(lane)

    # Actions

    def actions(self, now: float) -> list[Action]:
        """Returns what to do now."""
        waiting = self._waiting
        while waiting and waiting[0][0] <= now:
            at, _, lane = heapq.heappop(waiting)
            if lane.retry_at == at:
                lane.retry_at = 0.0
                self._offer(lane)
        actions: list[Action] = []
        for server in self._freed:
            self._serve_held(server, actions)
        self._freed.clear()
        for lane in self._ready:
            self._serve(lane, actions)
        self._ready.clear()
        self.due = waiting[0][0] if waiting else NEVER
        return actions

    # For figures

    @property
    def lane_count(self) -> int:
        return len(self._lanes)

    @property
    def in_flight(self) -> int:
        return sum(self._in_flight.values())

    def entries(self) -> list[QueuedBatch]:
        """Returns all entries that are not stored yet, in order per file."""
        return [
            entry for lane in self._lanes.values() for entry in lane.queue if not entry.is_dropped
        ]

    def is_idle(self, name: str) -> bool:
        """Whether no batch of the file waits or is under way."""
        lane = self._lanes.get(name)
        return lane is None or all(entry.is_dropped for entry in lane.queue)

    # Lanes

    @staticmethod
    def _is_in_flight(lane: FileLane, entry: QueuedBatch, attempt: int) -> bool:
        return attempt == lane.attempt and entry in lane.in_flight

    def _offer(self, lane: FileLane) -> None:
        """There may be something to do for the lane."""
        if len(lane.queue) > len(lane.in_flight) and not (
            lane.is_asking or lane.held_at or lane.retry_at
        ):
            self._ready[lane] = None

    def _has_room(self, server: str) -> bool:
        return self._in_flight.get(server, 0) < self._limits.in_flight_max

    def _serve_held(self, server: str, actions: list[Action]) -> None:
        held = self._held.get(server)
        while held and self._has_room(server):
            lane = next(iter(held))
            del held[lane]
            lane.held_at = ""
            self._serve(lane, actions)
        if held is not None and not held:
            del self._held[server]

    def _serve(self, lane: FileLane, actions: list[Action]) -> None:
        self._skip_dropped(lane)
        if not lane.queue:
            self._forget_if_idle(lane)
            return
        if lane.is_asking:
            return
        if lane.in_flight:
            self._go_on(lane, actions)
            return
        entry = lane.queue[0]
        server = self._route(lane.name)
        if server is None:
            return  # no server is known yet: `servers_changed` comes
        if not self._has_room(server):
            lane.held_at = server
            self._held.setdefault(server, {})[lane] = None
            return
        lane.server = server
        lane.attempt += 1
        lane.goes_on = True
        if entry.batch is None:
            # It counts as under way: so the bodies that are read back have a bound as well.
            self._ask(lane)
            actions.append(LoadBatch(lane, entry, lane.attempt))
        elif entry.batch.is_resumed or entry.place or lane.place:
            self._send(lane, entry, entry.batch, actions)
            self._go_on(lane, actions)
        else:
            self._ask(lane)
            actions.append(LocateFile(lane, server, lane.attempt))

    def _ask(self, lane: FileLane) -> None:
        lane.is_asking = True
        self._in_flight[lane.server] = self._in_flight.get(lane.server, 0) + 1

    def _send(
        self, lane: FileLane, entry: QueuedBatch, batch: LineBatch, actions: list[Action]
    ) -> None:
        # Where a resumed one may have been sent is not known any more: receivers look for it.
        place = "" if batch.is_resumed else entry.place or lane.place
        is_repeat, was_at, follows = entry.was_sent, entry.place, bool(lane.in_flight)
        entry.was_sent, entry.place = True, place
        lane.in_flight.append(entry)
        lane.last = batch
        self._in_flight[lane.server] = self._in_flight.get(lane.server, 0) + 1
        actions.append(
            ShipBatch(
                lane=lane,
                entry=entry,
                batch=batch,
                server=lane.server,
                place=place,
                attempt=lane.attempt,
                is_repeat=is_repeat,
                was_at=was_at,
                follows=follows,
            )
        )

    def _go_on(self, lane: FileLane, actions: list[Action]) -> None:
        """Sends batches that may follow those under way."""
        window = min(self._limits.file_in_flight_max, self._windows.get(lane.server, 1))
        while (
            lane.goes_on
            and len(lane.in_flight) < min(window, len(lane.queue))
            and self._has_room(lane.server)
            and not self._held.get(lane.server)  # others wait for their first one
        ):
            entry = lane.queue[len(lane.in_flight)]
            lane.goes_on = self._may_follow(lane, entry)
            if lane.goes_on and entry.batch is not None:
                self._send(lane, entry, entry.batch, actions)

    def _may_follow(self, lane: FileLane, entry: QueuedBatch) -> bool:
        # A receiver stores what follows only behind the one in front of it, which it knows by
        # producer and sequence and at one place. At another place no receiver holds this batch back
        # while the one in front is lost (planted bug "a batch follows to a place that it was not
        # sent to").
        last, batch = lane.last, entry.batch
        return (
            last is not None
            and batch is not None
            and not (last.is_resumed or batch.is_resumed or entry.is_dropped or entry.is_stored)
            and (batch.producer, batch.sequence) == (last.producer, last.sequence + 1)
            and (entry.place or lane.place) == lane.in_flight[-1].place
            and self._route(lane.name) == lane.server
        )

    def _leave(self, lane: FileLane) -> None:
        """The request is answered, or its answer is not needed any more."""
        lane.is_asking = False
        self._free(lane, 1)

    def _free(self, lane: FileLane, count: int) -> None:
        self._in_flight[lane.server] -= count
        if not self._in_flight[lane.server]:
            del self._in_flight[lane.server]
        self._freed[lane.server] = None

    def _take_back(self, lane: FileLane, entry: QueuedBatch) -> None:
        """Stops waiting for a batch and those behind it; the next ones go after those before it."""
        if entry not in lane.in_flight:
            return
        count = 0
        while lane.in_flight[-1] is not entry:
            lane.in_flight.pop()
            count += 1
        lane.in_flight.pop()
        lane.goes_on = False
        self._free(lane, count + 1)

    def _break_off(self, lane: FileLane, entry: QueuedBatch, now: float) -> None:
        self._take_back(lane, entry)
        if not lane.in_flight:
            self._try_later(lane, now)

    def _reset(self, lane: FileLane) -> None:
        """Ends all waiting of the lane."""
        if lane.held_at in self._held:
            self._held[lane.held_at].pop(lane, None)
        lane.held_at = ""
        lane.recovered()

    def _succeed(self, lane: FileLane) -> None:
        self._reset(lane)
        self._offer(lane)
        self._forget_if_idle(lane)

    def _try_later(self, lane: FileLane, now: float) -> None:
        lane.failed(self._limits.retry, now)
        self._turn += 1
        heapq.heappush(self._waiting, (lane.retry_at, self._turn, lane))

    @staticmethod
    def _skip_dropped(lane: FileLane) -> None:
        while lane.queue and lane.queue[0].is_dropped:
            lane.queue.popleft()

    def _forget_if_idle(self, lane: FileLane) -> None:
        """Forgets an idle lane, but only if there are very many: a lane remembers its place."""
        is_idle = not lane.queue and not lane.is_under_way
        # One that was forgotten before may have a successor by now.
        if is_idle and len(self._lanes) > LANES_MAX and self._lanes.get(lane.name) is lane:
            del self._lanes[lane.name]
