"""The rules of a producer: which records go to which shard, and when. No I/O, clock or randomness.

Each shard has a lane: the records for it in order, and at most one batch under way, under the
lane's next sequence. So records of one key are stored in the order in which they were sent:
- A batch whose answer is lost is sent again, unchanged, under the same sequence. Nothing behind it
is sent before its answer. The shard stores it once.
- `ShardReadonly` says that the batch is not stored and never will be under its sequence. The lane
is sealed; when the shards are known again, all its records move, in order, to where their keys
belong now. Until then later records of these keys queue up behind them.
- If a shard disappears from the list while its batch is under way, the batch is sent until it is
answered.

Records without a key go to one shard until it has stored a batch, then to the next one.

The caller feeds events (`add`, `stored`, …), then does what `actions` says.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from typing import ClassVar, Final

import msgspec

from raftwood.base.backoff import Backoff
from raftwood.base.errors import InvariantViolated
from raftwood.delivery.lanes import LaneAttempts
from raftwood.delivery.pump import NEVER
from raftwood.loghub.model import Shard, ShardStatus
from raftwood.loghub.shards import contains, covers_all


class ProducerRecord(msgspec.Struct, gc=False, eq=False):
    """One record, or several that were given as one batch and stay together.

    It is not tracked for garbage: there may be very many, and each ends with its outcome.
    """

    is_whole: ClassVar[bool] = False
    """It is a batch by itself."""
    data: bytes
    size: int
    route: str | None
    """The hash of its key; None if it has no key."""
    shared: bytes = b""
    """The encoded topic, source and tags, which all records of a batch share."""
    deadline: float = 0.0
    count: int = 1


class ProducerBatch:
    """Records that are sent together, under one sequence, as often as needed."""

    __slots__ = ("is_doubtful", "records", "sequence", "settled", "was_sent")

    def __init__(self, sequence: int, records: list[ProducerRecord]) -> None:
        self.sequence = sequence
        self.records = records
        self.settled = 0
        """The number of records at the front whose time is over; they have failed already."""
        self.was_sent = False
        """The sender sets it at the first byte."""
        self.is_doubtful = False
        """An answer was lost: the batch may be stored."""


class ShardLane(LaneAttempts):
    """The records for one shard, in order."""

    __slots__ = (
        "batch",
        "begin",
        "end",
        "is_sealed",
        "is_under_way",
        "log",
        "queue",
        "shard",
    )

    def __init__(self, shard: Shard, producer: str) -> None:
        super().__init__(f"{producer} {shard.log}")
        self.shard = shard.id
        self.log = shard.log
        """The shard's log; it differs if the logstore was deleted and created anew."""
        self.begin = shard.begin
        self.end = shard.end
        self.queue: deque[ProducerRecord] = deque()
        self.batch: ProducerBatch | None = None
        """The batch that must be stored before all records of the queue."""
        self.is_under_way = False
        """The batch was sent and is not answered yet."""
        self.is_sealed = False
        """The shard takes no more; the records wait until the shards are known."""

    def holds(self, route: str) -> bool:
        return contains(self.begin, self.end, route)


_WRITABLE: Final = (ShardStatus.READWRITE, ShardStatus.SEALING)
_ROUTES_MAX: Final = 65_536
"""Limit of keys whose lane is cached; above it the cache is cleared."""


class ProducerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How records make batches, and how long to wait before another attempt."""

    delivery_timeout_s: float = 30.0
    batch_records_max: int = 16_384
    batch_bytes_max: int = 1 << 20
    linger_s: float = 0.0
    """How long a lane that has nothing under way waits for more."""
    retry: Backoff = Backoff(first_ms=40, longest_ms=1_000)


class SendToShard(msgspec.Struct, frozen=True):
    """Send the lane's batch, for the first time or again."""

    lane: ShardLane
    batch: ProducerBatch


class AskForShards(msgspec.Struct, frozen=True):
    """Ask for the logstore's shards; answer with `learned` or `not_learned`."""


class Settle(msgspec.Struct, frozen=True):
    """Fail these records: their time is over."""

    records: Sequence[ProducerRecord]
    is_unknown: bool
    """Whether they may be stored all the same, now or later."""


Action = SendToShard | AskForShards | Settle


class ProducerRules:
    """One producer of one logstore."""

    def __init__(self, limits: ProducerLimits, producer: str = "") -> None:
        self._limits = limits
        self._producer = producer
        self._in_order: list[ShardLane] = []
        """The lanes of writable shards, in order of their ranges."""
        self._begins: list[str] = []
        """The begins of these ranges."""
        self._retired: list[ShardLane] = []
        """Lanes of shards that take no more, each with a batch that is not answered yet."""
        self._routes: dict[str, ShardLane] = {}
        self._unrouted: deque[ProducerRecord] = deque()
        """Records that came before the shards were known."""
        self._keyless: ShardLane | None = None
        """The lane that takes records without a key for now, and how many bytes more it takes."""
        self._keyless_room = 0
        self._keyless_turn = 0
        self._sequences: dict[int, int] = {}
        self._is_asking = False
        self._asks = LaneAttempts(producer)
        self.is_hurried = False
        """Nothing lingers: a caller waits for all of it."""
        self.due: float = NEVER
        """When `actions` has something to do even if no event comes before."""

    # Events

    def add(self, record: ProducerRecord) -> None:
        """Adds a record to be stored."""
        route = record.route
        if route is not None:
            lane = self._routes.get(route) or self._lane_of(route)
        else:
            lane = self._keyless
            self._keyless_room -= record.size
            if self._keyless_room < 0 or lane is None:
                lane = self._next_keyless()
        if lane is None:
            self._unrouted.append(record)
        else:
            lane.queue.append(record)

    def stored(self, lane: ShardLane) -> ProducerBatch:
        """The batch under way is stored and done."""
        return self._end(lane)

    def refused(self, lane: ShardLane) -> ProducerBatch:
        """The shard will never take the batch; it is done."""
        return self._end(lane)

    def lost(self, lane: ShardLane, *, now: float) -> None:
        """No answer came: the batch may be stored, so it is sent again unchanged."""
        assert lane.batch is not None
        lane.batch.is_doubtful = True
        self._try_later(lane, now)

    def put_off(self, lane: ShardLane, *, now: float) -> None:
        """The batch is not stored, but may be later."""
        self._try_later(lane, now)
        batch = lane.batch
        if batch is not None and not batch.was_sent:
            # It was never sent: it may be batched anew, with what came meanwhile.
            lane.queue.extendleft(reversed(self._take(lane).records))
            self._move_on()

    def readonly(self, lane: ShardLane) -> None:
        """The shard was split or merged: the batch is not stored there and never will be."""
        lane.queue.extendleft(reversed(self._take(lane).records))
        self._seal(lane)

    def gone(self, lane: ShardLane) -> ProducerBatch | None:
        """The shard was deleted: a batch that may have been stored before is done, and returned."""
        assert lane.batch is not None
        if not lane.batch.is_doubtful:
            self.readonly(lane)
            return None
        batch = self._take(lane)
        self._seal(lane)
        return batch

    def learned(self, shards: Iterable[Shard], *, now: float) -> None:
        """The logstore's shards are known."""
        writable = sorted(
            (each for each in shards if each.status in _WRITABLE), key=lambda each: each.begin
        )
        self.not_learned(now=now)
        if not covers_all([(each.begin, each.end) for each in writable]):
            return
        known = {lane.log: lane for lane in self._in_order}
        self._in_order = [
            known.pop(each.log) if each.log in known else ShardLane(each, self._producer)
            for each in writable
        ]
        self._begins = [each.begin for each in writable]
        self._retired += known.values()
        self._routes.clear()
        self._keyless = None
        self._move_on()
        unrouted, self._unrouted = self._unrouted, deque()
        for record in unrouted:
            self.add(record)

    def not_learned(self, *, now: float) -> None:
        """The request for the shards failed; it is repeated a little later."""
        self._is_asking = False
        self._asks.failed(self._limits.retry, now)

    def no_shards(self, *, now: float) -> list[ProducerRecord]:
        """There is no such logstore: returns the records that wait for its shards."""
        self.not_learned(now=now)
        waiting = list(self._unrouted)
        self._unrouted.clear()
        for lane in self._in_order:
            if lane.is_sealed:
                waiting += lane.queue
                lane.queue.clear()
        return waiting

    # Actions

    def actions(self, now: float) -> list[Action]:
        """Returns what to do now; `due` says when to call again at the latest."""
        self.due = NEVER
        actions: list[Action] = []
        self._expire(now, actions)
        for lane in [*self._in_order, *self._retired]:
            self._serve(lane, now, actions)
        if not self._wants_shards():
            self._asks.failures = 0
        elif self._is_asking:
            pass
        elif now < self._asks.retry_at:
            self._wake_at(self._asks.retry_at)
        else:
            self._is_asking = True
            actions.append(AskForShards())
        return actions

    def outstanding(self) -> list[ProducerRecord]:
        """Returns all records that wait or are under way."""
        waiting, unknown = self.abandon()
        return waiting + unknown

    def abandon(self) -> tuple[list[ProducerRecord], list[ProducerRecord]]:
        """At the end: returns the records that are not stored, and those that may be."""
        waiting: list[ProducerRecord] = list(self._unrouted)
        unknown: list[ProducerRecord] = []
        for lane in [*self._in_order, *self._retired]:
            if lane.batch is not None:
                (unknown if lane.batch.was_sent else waiting).extend(lane.batch.records)
            waiting += lane.queue
        return waiting, unknown

    # Routing

    def _lane_of(self, route: str) -> ShardLane | None:
        lane = next((each for each in self._retired if each.holds(route)), None)
        if lane is None:
            if not self._begins:
                return None
            lane = self._in_order[bisect_right(self._begins, route) - 1]
        if len(self._routes) >= _ROUTES_MAX:
            self._routes.clear()
        self._routes[route] = lane
        return lane

    def _next_keyless(self) -> ShardLane | None:
        """Returns the next lane in turn, first among those whose shards answer."""
        lanes = self._in_order
        if not lanes:
            return None
        first = self._keyless_turn % len(lanes)
        lane = min(lanes[first:] + lanes[:first], key=lambda each: (each.is_sealed, each.failures))
        self._keyless_turn = lanes.index(lane) + 1
        self._keyless, self._keyless_room = lane, self._limits.batch_bytes_max
        return lane

    def _move_on(self) -> None:
        """Routes the records of retired lanes again, once they have no batch under way."""
        if not self._retired:
            return
        # The older lanes come first: a record's key may have been in several of them.
        done = [lane for lane in self._retired if lane.batch is None]
        self._retired = [lane for lane in self._retired if lane.batch is not None]
        self._routes.clear()
        for lane in done:
            for record in lane.queue:
                self.add(record)

    def _wants_shards(self) -> bool:
        return bool(self._unrouted) or any(lane.is_sealed and lane.queue for lane in self._in_order)

    # Batches

    def _serve(self, lane: ShardLane, now: float, actions: list[Action]) -> None:
        if lane.is_under_way:
            return
        if lane.batch is None and (
            not lane.queue or lane.is_sealed or self._lingers(lane.queue, now)
        ):
            return
        if now < lane.retry_at:
            self._wake_at(lane.retry_at)
            return
        if lane.batch is None:
            lane.batch = self._gather(lane)
        lane.is_under_way = True
        actions.append(SendToShard(lane, lane.batch))

    def _gather(self, lane: ShardLane) -> ProducerBatch:
        """Takes the first records that fit into one batch and share topic, source and tags."""
        limits, queue = self._limits, lane.queue
        take = queue.popleft
        first = take()
        records = [first]
        if not first.is_whole:
            shared, left = first.shared, limits.batch_bytes_max - first.size
            for _ in range(min(len(queue), limits.batch_records_max - 1)):
                record = take()
                left -= record.size
                if left < 0 or record.shared != shared or record.is_whole:
                    queue.appendleft(record)
                    break
                records.append(record)
        sequence = self._sequences.get(lane.shard, 0) + 1
        self._sequences[lane.shard] = sequence
        return ProducerBatch(sequence, records)

    def _lingers(self, queue: deque[ProducerRecord], now: float) -> bool:
        """Whether to wait for more records."""
        limits = self._limits
        if not limits.linger_s or self.is_hurried or self._is_full(queue):
            return False
        until = queue[0].deadline - limits.delivery_timeout_s + limits.linger_s
        if now >= until:
            return False
        self._wake_at(until)
        return True

    def _is_full(self, queue: deque[ProducerRecord]) -> bool:
        if len(queue) >= self._limits.batch_records_max or queue[0].is_whole:
            return True
        # An exact sum is not worth its time: the average of the first few will do.
        few = [queue[place].size for place in range(min(len(queue), 8))]
        return sum(few) / len(few) * len(queue) >= self._limits.batch_bytes_max

    def _end(self, lane: ShardLane) -> ProducerBatch:
        batch = self._take(lane)
        lane.recovered()
        self._leave(lane)
        self._move_on()
        return batch

    def _leave(self, lane: ShardLane) -> None:
        """Lets another lane take the records without a key."""
        if lane is self._keyless:
            self._keyless = None

    def _take(self, lane: ShardLane) -> ProducerBatch:
        batch = lane.batch
        if batch is None:
            raise InvariantViolated(f"shard {lane.shard} answered, and nothing was sent")
        lane.batch = None
        lane.is_under_way = False
        return batch

    def _seal(self, lane: ShardLane) -> None:
        lane.is_sealed = True
        self._leave(lane)
        self._asks.retry_at = 0.0
        self._move_on()

    def _try_later(self, lane: ShardLane, now: float) -> None:
        lane.is_under_way = False
        lane.failed(self._limits.retry, now)
        self._leave(lane)

    # Time

    def _expire(self, now: float, actions: list[Action]) -> None:
        late: list[ProducerRecord] = []
        self._expire_queue(self._unrouted, now, late)
        for lane in [*self._in_order, *self._retired]:
            self._expire_queue(lane.queue, now, late)
            if lane.batch is not None:
                self._expire_batch(lane, lane.batch, now, late, actions)
        if late:
            actions.append(Settle(late, is_unknown=False))

    def _expire_queue(
        self, queue: deque[ProducerRecord], now: float, late: list[ProducerRecord]
    ) -> None:
        while queue and queue[0].deadline <= now:
            late.append(queue.popleft())
        if queue:
            self._wake_at(queue[0].deadline)

    def _expire_batch(
        self,
        lane: ShardLane,
        batch: ProducerBatch,
        now: float,
        late: list[ProducerRecord],
        actions: list[Action],
    ) -> None:
        first = last = batch.settled
        while last < len(batch.records) and batch.records[last].deadline <= now:
            last += 1
        if last < len(batch.records):
            self._wake_at(batch.records[last].deadline)
        elif first == 0 and not lane.is_under_way and not batch.is_doubtful:
            # No copy of it is on its way, so it may be dropped.
            late += self._take(lane).records
            self._move_on()
            return
        # The batch stays until it is answered, or it might be stored behind later ones.
        batch.settled = last
        if last > first:
            actions.append(Settle(batch.records[first:last], is_unknown=True))

    def _wake_at(self, moment: float) -> None:
        self.due = min(self.due, moment)
