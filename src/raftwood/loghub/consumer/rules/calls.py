"""When a lease agent's store calls are due: one of each kind at a time, later after failures."""

from collections.abc import Collection, Iterable

from raftwood.base.errors import InvariantViolated
from raftwood.loghub.consumer.leases import LeaseTimes
from raftwood.loghub.consumer.rules.steps import Ask, AskBecome, AskTake, Call

BACKOFF_MS = 50
FULL_SCAN_EVERY = 20
"""Scans by change do not show what was deleted, nor how fast others read."""
GATHER_MS = 5
"""Most consumers stop at once: all are handed over by one call, not one and then the others."""
PERIODIC = (Call.REGISTER, Call.SCAN, Call.POLL, Call.RENEW)
_EXCLUDES = {Call.RENEW: Call.BECOME, Call.BECOME: Call.RENEW}
"""Both add to a lease's id: one at a time, or one of them would fail for nothing."""
NEVER_MS = 1 << 62


class Calls:
    """Of one agent, in milliseconds of its clock."""

    def __init__(self, times: LeaseTimes) -> None:
        self._backoff_max_ms = times.renew_ms // 2
        self._due: dict[Call, int] = {}
        self._failures: dict[Call, int] = {}
        self._not_before: dict[Call, int] = {}
        self._under_way: dict[Call, tuple[Ask, int, frozenset[str]]] = {}
        self._ended: dict[Call, int] = {}
        self._doubtful: dict[str, int] = {}
        """By shard, the id at which it was to be taken or begun by a call that failed."""
        self._is_closed = False

    def close(self) -> None:
        """From now on nothing is done because its time has come."""
        self._due = {}
        self._is_closed = True

    def want(self, call: Call, at_ms: int) -> None:
        if not self._is_closed:
            self._due[call] = at_ms

    def want_by(self, call: Call, at_ms: int) -> None:
        self.want(call, min(at_ms, self._due.get(call, at_ms)))

    def is_due(self, call: Call, now_ms: int) -> bool:
        return self._due.get(call, NEVER_MS) <= now_ms and self.may_begin(call, now_ms)

    def may_begin(self, call: Call, now_ms: int) -> bool:
        return not self._is_blocked(call) and now_ms >= self._not_before.get(call, now_ms)

    def is_under_way(self, calls: Collection[Call]) -> bool:
        return any(call in self._under_way for call in calls)

    def shards(self, call: Call) -> frozenset[str]:
        """Those that a call under way is about."""
        return self._under_way[call][2] if call in self._under_way else frozenset()

    def begun(self, call: Call, ask: Ask, now_ms: int, shards: Iterable[str]) -> None:
        self._due.pop(call, None)
        self._under_way[call] = (ask, now_ms, frozenset(shards))

    def sent_ms(self, call: Call) -> int:
        return self._under_way[call][1] if call in self._under_way else 0

    def ended_ms(self, call: Call) -> int:
        return self._ended.get(call, 0)

    def ended(self, call: Call, now_ms: int) -> Ask:
        """It was answered; what it had asked for."""
        if call not in self._under_way:
            raise InvariantViolated(f"an answer to {call} came that was not asked for")
        self._failures.pop(call, None)
        self._not_before.pop(call, None)
        self._ended[call] = now_ms
        return self._under_way.pop(call)[0]

    def failed(self, call: Call, now_ms: int, jitter: float) -> None:
        """Try again: twice as late each time, and at least half of that."""
        match self.ended(call, now_ms):
            case AskTake(asked) | AskBecome(asked):
                self._doubtful |= {each.shard: each.lease_id for each in asked}
        failures = self._failures[call] = self._failures.get(call, 0) + 1
        wait_ms = min(BACKOFF_MS << min(failures, 16), self._backoff_max_ms)
        self._not_before[call] = now_ms + int(wait_ms * (0.5 + jitter / 2))
        self._due[call] = self._not_before[call]
        if self._is_closed and call in PERIODIC:
            del self._due[call]

    def is_doubtful(self, shard: str, lease_id: int) -> bool:
        """Whether what followed on this id may be the work of a call that failed.

        Then nobody knows since when others have seen it, and no deadline may be counted from a
        later call that only found it done.
        """
        return self._doubtful.get(shard) == lease_id

    def passed(self, now_ms: int) -> None:
        """What was to be tried again, and is not needed any more."""
        for call, at_ms in list(self._due.items()):
            if at_ms <= now_ms and call not in PERIODIC and call not in self._under_way:
                del self._due[call]

    def next_ms(self) -> int:
        """When the next one is due."""
        waits = [
            max(at_ms, self._not_before.get(call, at_ms))
            for call, at_ms in self._due.items()
            if not self._is_blocked(call)
        ]
        return min(waits, default=NEVER_MS)

    def begin_ms(self, call: Call, wanted_ms: int) -> int:
        """When a call can begin that is wanted at this time."""
        is_blocked = self._is_blocked(call)
        return NEVER_MS if is_blocked else max(wanted_ms, self._not_before.get(call, wanted_ms))

    def _is_blocked(self, call: Call) -> bool:
        return call in self._under_way or _EXCLUDES.get(call) in self._under_way
