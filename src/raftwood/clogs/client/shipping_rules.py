"""Which batch goes to which server, and when: the rules of a shipper, without I/O or clock.

Each file has a lane: its batches in order. One is sent, then those that *follow* it, as many as
the server has told that it keeps in order: it stores none of them before the one in front of it. So
a file's lines are stored in the order in which they were given, whichever servers they go by:

- Where a file goes *inside* the receivers' storage, its place, is asked of a server once, named
  with each batch, and asked again only where a receiver says that the place takes no more
  (`moved`), which also says that the batch is not stored there and never will be.
- A batch whose answer is lost is sent again, the same under the same sequence and place, to
  whichever server the ring names then: what is stored at the place is known there, so it is stored
  once. Each batch has its own place for that: the file may go elsewhere by then.
- Where one is not acked, the lane waits for those in front of it, then begins anew with this one,
  which follows nothing: all before it is stored. A place that has ended without a batch has none
  that follows it.
- A server of release 0.1.0 tells of none that follow, and gets one batch at a time; so does a
  server that failed, until it tells again.
- A server that is isolated gives up its lanes at once: they go on at the next server. An answer
  that comes late all the same counts if it is an ack, and for nothing else.

The caller feeds events, then does what `actions` says. `due` says when to come again.
"""

import heapq
from collections.abc import Callable, Iterable
from typing import Final
from zlib import crc32

import msgspec

from raftwood.base.errors import InvariantViolated
from raftwood.clogs.batches import LineBatch
from raftwood.clogs.client.entries import Entry, Lane

NEVER: Final = float("inf")
LANES_MAX: Final = 65_536
"""Beyond it a file that has nothing to ship is forgotten, and asked for anew."""


class ShippingLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How much is under way at once, and how long to wait before another attempt."""

    in_flight_max: int = 64
    """Batches under way at one server."""
    file_in_flight_max: int = 8
    """Of these, of one file."""
    retry_first_s: float = 0.1
    retry_longest_s: float = 5.0

    def retry_delay_s(self, name: str, failures: int) -> float:
        """Longer each time, and different from file to file, so that they do not come at once."""
        longest = min(self.retry_longest_s, self.retry_first_s * (1 << min(failures - 1, 20)))
        return longest * (0.5 + crc32(name.encode()) % 1024 / 2048)


class Send(msgspec.Struct, frozen=True):
    """Send a lane's next batch to a server, at a place."""

    lane: Lane
    entry: Entry
    batch: LineBatch
    """The entry's, which may be let go of meanwhile."""
    server: str
    place: str
    attempt: int
    is_repeat: bool
    was_at: str = ""
    """Where it may be stored without this."""
    follows: bool = False


class Locate(msgspec.Struct, frozen=True):
    """Ask a server where a lane's file goes."""

    lane: Lane
    server: str
    attempt: int


class Load(msgspec.Struct, frozen=True):
    """Read a batch's body from the spool; answer with `loaded`."""

    lane: Lane
    entry: Entry
    attempt: int


Action = Send | Locate | Load


class ShippingRules:
    """All lanes of one shipper. `route` names the server of a file, by the ring as it is now.

    A lane with something to send is in one state: ready, under way, held (its server has enough
    under way), or waiting before another attempt. Only a lane whose file has no server is in none
    of them, until `servers_changed`.
    """

    def __init__(self, limits: ShippingLimits, route: Callable[[str], str | None]) -> None:
        self._limits = limits
        self._route = route
        self._lanes: dict[str, Lane] = {}
        self._ready: dict[Lane, None] = {}
        self._waiting: list[tuple[float, int, Lane]] = []
        """A heap; what is in it for another time than the lane's `retry_at` is passed over."""
        self._turn = 0
        self._held: dict[str, dict[Lane, None]] = {}
        """By server, in the order in which they came."""
        self._freed: dict[str, None] = {}
        """Servers with fewer under way than there were."""
        self._in_flight: dict[str, int] = {}
        self._windows: dict[str, int] = {}
        """Batches of a file that a server keeps in order; of others it is one."""
        self.due: float = NEVER
        """When `actions` has something to do even if nothing happens before."""

    # Events

    def add(self, entry: Entry) -> Lane:
        """One more batch of its file, behind all others."""
        lane = self._lanes.get(entry.name)
        if lane is None:
            lane = self._lanes[entry.name] = Lane(entry.name)
        lane.queue.append(entry)
        self._offer(lane)
        return lane

    def told(self, server: str, window: int) -> None:
        """How many batches of a file the server keeps in order."""
        self._windows[server] = window

    def located(self, lane: Lane, attempt: int, place: str) -> None:
        """A server has told where the file goes."""
        if lane.is_asking and attempt == lane.attempt:
            self._leave(lane)
            lane.place = place
            self._offer(lane)

    def acked(self, lane: Lane, entry: Entry, place: str) -> list[Entry]:
        """The entry is stored; which ones are over by that, in order. Its lane goes on at the place
        told with it.
        """
        if entry.is_stored:
            return []  # it was sent twice, and both were answered
        entry.is_stored = True
        over: list[Entry] = []
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

    def moved(self, lane: Lane, entry: Entry, attempt: int, *, now: float) -> None:
        """The place takes no more, and has not stored the batch: the next one is asked for."""
        if self._is_in_flight(lane, entry, attempt):
            ended = entry.place
            behind = lane.queue.index(entry)
            for at, each in enumerate(lane.queue):
                if at >= behind and each.place == ended:
                    each.place = ""
            if lane.place == ended:
                lane.place = ""
            self._break_off(lane, entry, now)

    def failed(self, lane: Lane, entry: Entry | None, attempt: int, *, now: float) -> None:
        """No answer, or one that says to try again: the batch may be stored or not. Without an
        entry, nothing came of what was asked.
        """
        if entry is not None:
            if self._is_in_flight(lane, entry, attempt):
                self._windows.pop(lane.server, None)
                self._break_off(lane, entry, now)
        elif lane.is_asking and attempt == lane.attempt:
            self._windows.pop(lane.server, None)
            self._leave(lane)
            self._try_later(lane, now)

    def out_of_order(self, lane: Lane, entry: Entry, attempt: int, *, now: float) -> None:
        """The server does not know the one before: it may be stored by now all the same."""
        if self._is_in_flight(lane, entry, attempt):
            self._break_off(lane, entry, now)

    def is_wanted(self, action: Send) -> bool:
        """Whether the batch is still to be sent: others may have changed that a moment ago."""
        return self._is_in_flight(action.lane, action.entry, action.attempt)

    def not_sent(self, action: Send, *, now: float) -> None:
        """The batch could not even be sent: unless it was before, it is not stored."""
        action.entry.was_sent, action.entry.place = action.is_repeat, action.was_at
        self.failed(action.lane, action.entry, action.attempt, now=now)

    def refused(self, lane: Lane, entry: Entry, attempt: int) -> list[Entry]:
        """The batch will never be taken as it is; those that were given up just now. Behind it,
        those go too that somebody else keeps, who will give them again in their order.
        """
        if lane.is_asking and attempt == lane.attempt and lane.queue[0] is entry:
            self._leave(lane)
        elif not self._is_in_flight(lane, entry, attempt):
            return []
        self._take_back(lane, entry)
        if entry.is_dropped:
            self._offer(lane)
            return []
        at = lane.queue.index(entry)
        behind = [] if entry.is_keepable else list(lane.queue)[at + 1 :]
        over = [entry, *(each for each in behind if not each.is_keepable)]
        for each in over:
            lane.queue.remove(each)
        self._succeed(lane)
        return over

    def loaded(self, lane: Lane, attempt: int) -> None:
        """The batch of the lane's first entry is in memory again, or not wanted any more."""
        if lane.is_asking and attempt == lane.attempt:
            self._leave(lane)
            self._offer(lane)

    def dropped(self, entry: Entry) -> None:
        """The entry, which was never sent, is given up."""
        if entry.was_sent:
            raise InvariantViolated(f"a batch of {entry.name} that was sent is dropped")
        entry.is_dropped = True
        lane = self._lanes.get(entry.name)
        if lane is not None and not lane.is_under_way:
            self._skip_dropped(lane)
            self._forget_if_idle(lane)

    def servers_changed(self, live: Iterable[str]) -> None:
        """The ring is another one: lanes under way at servers that left it go on elsewhere."""
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
        """What is to be done now."""
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

    def entries(self) -> list[Entry]:
        """All that is not stored yet, in order per file."""
        return [
            entry for lane in self._lanes.values() for entry in lane.queue if not entry.is_dropped
        ]

    def is_idle(self, name: str) -> bool:
        """Whether no batch of the file waits or is under way."""
        lane = self._lanes.get(name)
        return lane is None or all(entry.is_dropped for entry in lane.queue)

    # Lanes

    @staticmethod
    def _is_in_flight(lane: Lane, entry: Entry, attempt: int) -> bool:
        return attempt == lane.attempt and entry in lane.in_flight

    def _offer(self, lane: Lane) -> None:
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

    def _serve(self, lane: Lane, actions: list[Action]) -> None:
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
            actions.append(Load(lane, entry, lane.attempt))
        elif entry.batch.is_resumed or entry.place or lane.place:
            self._send(lane, entry, entry.batch, actions)
            self._go_on(lane, actions)
        else:
            self._ask(lane)
            actions.append(Locate(lane, server, lane.attempt))

    def _ask(self, lane: Lane) -> None:
        lane.is_asking = True
        self._in_flight[lane.server] = self._in_flight.get(lane.server, 0) + 1

    def _send(self, lane: Lane, entry: Entry, batch: LineBatch, actions: list[Action]) -> None:
        # Where a resumed one may have been sent is not known any more: receivers look for it.
        place = "" if batch.is_resumed else entry.place or lane.place
        is_repeat, was_at, follows = entry.was_sent, entry.place, bool(lane.in_flight)
        entry.was_sent, entry.place = True, place
        lane.in_flight.append(entry)
        lane.last = batch
        self._in_flight[lane.server] = self._in_flight.get(lane.server, 0) + 1
        actions.append(
            Send(
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

    def _go_on(self, lane: Lane, actions: list[Action]) -> None:
        """Send those that may follow what is under way."""
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

    def _may_follow(self, lane: Lane, entry: Entry) -> bool:
        last, batch = lane.last, entry.batch
        return (
            last is not None
            and batch is not None
            and not (last.is_resumed or batch.is_resumed or entry.is_dropped or entry.is_stored)
            and (batch.producer, batch.sequence) == (last.producer, last.sequence + 1)
            and (entry.place or lane.place) == lane.in_flight[-1].place
            and self._route(lane.name) == lane.server
        )

    def _leave(self, lane: Lane) -> None:
        """What was asked is answered, or nobody waits for it any more."""
        lane.is_asking = False
        self._free(lane, 1)

    def _free(self, lane: Lane, count: int) -> None:
        self._in_flight[lane.server] -= count
        if not self._in_flight[lane.server]:
            del self._in_flight[lane.server]
        self._freed[lane.server] = None

    def _take_back(self, lane: Lane, entry: Entry) -> None:
        """Wait no more for a batch and those behind it; more go once those before it are stored."""
        if entry not in lane.in_flight:
            return
        count = 0
        while lane.in_flight[-1] is not entry:
            lane.in_flight.pop()
            count += 1
        lane.in_flight.pop()
        lane.goes_on = False
        self._free(lane, count + 1)

    def _break_off(self, lane: Lane, entry: Entry, now: float) -> None:
        self._take_back(lane, entry)
        if not lane.in_flight:
            self._try_later(lane, now)

    def _reset(self, lane: Lane) -> None:
        """It need not wait any more, for whatever it waits."""
        if lane.held_at in self._held:
            self._held[lane.held_at].pop(lane, None)
        lane.held_at = ""
        lane.retry_at = 0.0
        lane.failures = 0

    def _succeed(self, lane: Lane) -> None:
        self._reset(lane)
        self._offer(lane)
        self._forget_if_idle(lane)

    def _try_later(self, lane: Lane, now: float) -> None:
        lane.failures += 1
        lane.retry_at = now + self._limits.retry_delay_s(lane.name, lane.failures)
        self._turn += 1
        heapq.heappush(self._waiting, (lane.retry_at, self._turn, lane))

    @staticmethod
    def _skip_dropped(lane: Lane) -> None:
        while lane.queue and lane.queue[0].is_dropped:
            lane.queue.popleft()

    def _forget_if_idle(self, lane: Lane) -> None:
        """An idle lane is kept for its place, unless there are very many."""
        is_idle = not lane.queue and not lane.is_under_way
        # One that was forgotten before may have a successor by now.
        if is_idle and len(self._lanes) > LANES_MAX and self._lanes.get(lane.name) is lane:
            del self._lanes[lane.name]
