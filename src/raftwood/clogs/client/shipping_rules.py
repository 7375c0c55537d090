"""Which batch goes to which server, and when: the rules of a shipper, without I/O or clock.

Each file has a lane: its batches in order, one under way at the most. So a file's lines are stored
in the order in which they were given, whichever servers they go by:

- Where a file goes *inside* the receivers' storage, its place, is asked of a server once, named
  with each batch, and asked again only where a receiver says that the place takes no more
  (`moved`), which also says that the batch is not stored there and never will be.
- A batch whose answer is lost is sent again, the same under the same sequence and place, to
  whichever server the ring names then: what is stored at the place is known there, so it is stored
  once.
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
    """Lanes under way at one server."""
    retry_first_s: float = 0.1
    retry_longest_s: float = 5.0

    def retry_delay_s(self, name: str, failures: int) -> float:
        """Longer each time, and different from file to file, so that they do not come at once."""
        longest = min(self.retry_longest_s, self.retry_first_s * (1 << min(failures - 1, 20)))
        return longest * (0.5 + crc32(name.encode()) % 1024 / 2048)


class Send(msgspec.Struct, frozen=True):
    """Send a lane's first batch to a server, at a place."""

    lane: Lane
    entry: Entry
    batch: LineBatch
    """The entry's, which may be let go of meanwhile."""
    server: str
    place: str
    attempt: int
    is_repeat: bool


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

    def located(self, lane: Lane, attempt: int, place: str) -> None:
        """A server has told where the file goes."""
        if self._is_current(lane, attempt):
            self._leave(lane)
            lane.place = place
            self._offer(lane)

    def acked(self, lane: Lane, entry: Entry, place: str) -> bool:
        """The entry is stored; whether that is news. Its lane goes on at the place told with it."""
        if not lane.queue or lane.queue[0] is not entry:
            return False  # it was sent twice, and both were answered
        if lane.is_under_way:
            self._leave(lane)
        lane.queue.popleft()
        lane.place = place
        self._succeed(lane)
        return True

    def moved(self, lane: Lane, attempt: int, *, now: float) -> None:
        """The place takes no more, and has not stored the batch: the next one is asked for."""
        if self._is_current(lane, attempt):
            self._leave(lane)
            lane.place = ""
            self._try_later(lane, now)

    def failed(self, lane: Lane, attempt: int, *, now: float) -> None:
        """No answer, or one that says to try again: the batch may be stored or not."""
        if self._is_current(lane, attempt):
            self._leave(lane)
            self._try_later(lane, now)

    def not_sent(self, action: Send, *, now: float) -> None:
        """The batch could not even be sent: unless it was before, it is not stored."""
        action.entry.was_sent = action.is_repeat
        self.failed(action.lane, action.attempt, now=now)

    def refused(self, lane: Lane, entry: Entry, attempt: int) -> bool:
        """The batch will never be taken as it is; whether it was given up just now."""
        if not self._is_current(lane, attempt) or lane.queue[0] is not entry:
            return False
        self._leave(lane)
        if entry.is_dropped:
            self._offer(lane)
            return False
        lane.queue.popleft()
        self._succeed(lane)
        return True

    def loaded(self, lane: Lane, attempt: int) -> None:
        """The batch of the lane's first entry is in memory again, or not wanted any more."""
        if self._is_current(lane, attempt):
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
        self._ready.clear()
        self._waiting.clear()
        self._held.clear()
        for lane in self._lanes.values():
            if lane.is_under_way and lane.server not in known:
                self._leave(lane)
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
    def _is_current(lane: Lane, attempt: int) -> bool:
        return lane.is_under_way and attempt == lane.attempt

    def _offer(self, lane: Lane) -> None:
        if lane.queue and not (lane.is_under_way or lane.held_at or lane.retry_at):
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
        entry = lane.queue[0]
        server = self._route(lane.name)
        if server is None:
            return  # no server is known yet: `servers_changed` comes
        if not self._has_room(server):
            lane.held_at = server
            self._held.setdefault(server, {})[lane] = None
            return
        self._in_flight[server] = self._in_flight.get(server, 0) + 1
        lane.is_under_way = True
        lane.server = server
        lane.attempt += 1
        if entry.batch is None:
            # It counts as under way: so the bodies that are read back have a bound as well.
            actions.append(Load(lane, entry, lane.attempt))
            return
        if entry.batch.is_resumed:
            place = ""  # where it may have been sent is not known any more: receivers look for it
        elif lane.place:
            place = lane.place
        else:
            actions.append(Locate(lane, server, lane.attempt))
            return
        is_repeat, entry.was_sent = entry.was_sent, True
        actions.append(Send(lane, entry, entry.batch, server, place, lane.attempt, is_repeat))

    def _leave(self, lane: Lane) -> None:
        lane.is_under_way = False
        self._in_flight[lane.server] -= 1
        if not self._in_flight[lane.server]:
            del self._in_flight[lane.server]
        self._freed[lane.server] = None

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
