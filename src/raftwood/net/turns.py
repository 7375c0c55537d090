"""How the connections of a listener share the turns of the event loop.

A client may send as much at once as it likes; a turn of the loop works for it only so long. Else
one deep pipeline would hold the loop for seconds, and with it other clients, and the heartbeats
that keep this process's leases. So a turn's work for the clients of a listener is bounded in pieces
(commands, frames, bytes: what the listener counts) and in time. A connection with more to do is not
read from meanwhile, and goes on in a later turn, behind all others that wait:

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
one request at a time hardly ever waits behind those that send many. What this process hears from
its peers as their client (answers to heartbeats among it) does not pass through here at all.

What others' leases hang on does not wait behind clients: urgent work has a queue of its own, which
each turn begins with, and which does not rest. It may take a half of each half of a turn, in pieces
and in time, and the pieces count as the half's, so clients keep the other half of it however much
is urgent:

    self._turns.begin_urgent()                      # not where `queue` calls back
    while self._urgent and self._turns.take_urgent():
        self._carry_out(self._urgent.popleft())
    if self._urgent:
        self._turns.queue(self._work_urgent, urgent=True)
"""

import asyncio
from collections.abc import Callable
from typing import TypeAlias

import msgspec

from raftwood.net.deadlines import NEVER

Work: TypeAlias = Callable[[], None]


class TurnLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What all clients of a listener may take of one turn of the loop; both halves together."""

    pieces_max: int = 1_024
    """Each half has one slice more at the most."""
    slice_pieces_max: int = 64
    """Of one connection, before the next one has its slice."""
    clock_pieces: int = 16
    """Between two looks at the clock."""
    turn_ms: int = 2
    rest_ms: int = 5
    """Between two slices while what they lead to (a disk, say) is behind."""


class Turns:
    """Of one listener."""

    def __init__(
        self, limits: TurnLimits | None = None, *, is_behind: Callable[[], bool] = lambda: False
    ) -> None:
        """While it `is_behind`, connections that wait have one slice for each rest, and no more."""
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
        """Pieces of the half that is under way."""
        self._half_ends = 0.0
        self._urgent_slice_left = 0
        self._urgent_left = 0
        """Urgent pieces of the half that is under way."""
        self._urgent_ends = NEVER
        """Known from the half's first urgent piece on: what others took of it is not theirs."""

    @property
    def queue_length(self) -> int:
        """Connections that wait for a turn."""
        return len(self._queue) + len(self._urgent_queue)

    def begin(self) -> bool:
        """Begin a slice for what has just come; False where this turn has no room for it."""
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
        """How many pieces the slice that was begun may do now; 0: go on in a later turn.

        A slice gets at least `clock_pieces`, so that each connection gets on, and is not cut short
        for being the last one of a turn.
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
        """What was just done may have taken long: have the clock looked at before the next piece.

        `unused` pieces were taken and not done.
        """
        self._clock_left = 0
        self._slice_left += unused
        self._half_left += unused

    def begin_urgent(self) -> None:
        """Begin a slice for what has just come and is urgent; other slices go on after it."""
        if not self._is_next_due:
            self._begin_half(self._loop.time())
            self._expect_next()
        self._urgent_slice_left = self.limits.clock_pieces

    def take_urgent(self) -> bool:
        """Whether an urgent piece may be done now; else it waits for a later turn."""
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
        """Call this once, in a slice of a later turn; in the order of calls to `queue`."""
        (self._urgent_queue if urgent else self._queue)[work] = None
        if urgent or self._rest is None:
            self._expect_next()

    def forget(self, work: Work) -> None:
        """It is not called any more."""
        self._queue.pop(work, None)
        self._urgent_queue.pop(work, None)

    async def pause(self) -> None:
        """For tasks, before each slice: returns in a turn that has room for it."""
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
        """Nobody waits any more."""
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
        """A turn begins: those that wait come first, in slices, for half of it."""
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
            # What has just come has a half of its own.
            self._begin_half(self._loop.time())
            self._expect_next()

    def _serve_urgent(self) -> None:
        queue = self._urgent_queue
        # Each once: what it queues again may lack something else than a turn.
        for work in list(queue):
            if self._urgent_left <= 0 or self._loop.time() >= self._urgent_ends:
                return
            # One before it may have had it forgotten.
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
        # One slice at the least, however long what was urgent took.
        while queue:
            # What it queues again is behind all others, and may still come round in this turn.
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
