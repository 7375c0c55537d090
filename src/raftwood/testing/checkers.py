"""Checkers of histories: `check_registers` and `check_log` answer a `Violation` or None.

`check_registers`: is a history of registers linearizable? Wing and Gong's search with Lowe's memo.
Operations: `write` (input: value), `read` (output: value) and `compare_and_set` (input: [expected,
new], output: whether it was set). Each key is a register of its own that starts as `initial`. An
unknown operation may take effect at any time after its call, or never: a request that timed out may
still be under way, and to call it failed would blame a store for doing as it was asked.

`check_log`: does a history of an append-only log keep its promises? Operations: `append` (input: a
unique value; output: its position) and `read` (input: the position to start at; output: {"records":
[[position, value], …], "complete": bool}, where `complete` says that the read reached the end of
the log). Each key is a log of its own.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import msgspec

from raftwood.testing.errors import SimulationError
from raftwood.testing.history import Event

__all__ = ["CheckTooLarge", "Violation", "check_log", "check_registers"]

_SHOWN_MAX = 12


class Violation(msgspec.Struct, frozen=True):
    """A promise that a history breaks, in words."""

    rule: str
    explanation: str
    events: list[Event] = []

    def __str__(self) -> str:
        lines = [f"{self.rule}: {self.explanation}"]
        lines += [f"  {event.describe()}" for event in self.events[:_SHOWN_MAX]]
        return "\n".join(lines)


class CheckTooLarge(SimulationError):
    """The search was given up: use a shorter history, or fewer unknown operations."""


def check_registers(
    history: Iterable[Event], *, initial: Any = None, states_max: int = 5_000_000
) -> Violation | None:
    """Returns None if the history is linearizable."""
    by_key: dict[str, list[Event]] = {}
    for event in history:
        by_key.setdefault(event.key, []).append(event)
    for key, events in by_key.items():
        violation = _Search(key, events, _frozen(initial), states_max).run()
        if violation is not None:
            return violation
    return None


class _Entry:
    """A call or a return in order of time, linked so that it can be removed."""

    __slots__ = ("bit", "event", "following", "is_call", "partner", "previous")

    def __init__(self, event: Event | None, *, is_call: bool, bit: int) -> None:
        self.event = event
        self.is_call = is_call
        self.bit = bit
        self.partner: _Entry | None = None
        self.previous: _Entry | None = None
        self.following: _Entry | None = None

    def lift(self) -> None:
        for entry in (self, self.partner):
            if entry is not None:
                assert entry.previous is not None
                entry.previous.following = entry.following
                if entry.following is not None:
                    entry.following.previous = entry.previous

    def put_back(self) -> None:
        for entry in (self.partner, self):
            if entry is not None:
                assert entry.previous is not None
                entry.previous.following = entry
                if entry.following is not None:
                    entry.following.previous = entry


class _Search:
    def __init__(self, key: str, events: list[Event], initial: Hashable, states_max: int) -> None:
        self._key = key
        self._initial = initial
        self._states_max = states_max
        self._events = _relevant(events)
        self._best: tuple[int, list[Event], Hashable, list[Event]] = (-1, [], initial, [])

    def run(self) -> Violation | None:
        head = self._linked()
        required = sum(event.outcome == "ok" for event in self._events)
        state: Hashable = self._initial
        mask = 0
        seen: set[tuple[int, Hashable]] = set()
        done: list[tuple[_Entry, Hashable]] = []
        entry = head.following
        while required:
            assert entry is not None
            if entry.is_call:
                assert entry.event is not None
                fits, after = _step(entry.event, state)
                place = (mask | entry.bit, after)
                if fits and place not in seen:
                    seen.add(place)
                    if len(seen) > self._states_max:
                        raise CheckTooLarge(f"key {self._key!r}: over {self._states_max} states")
                    done.append((entry, state))
                    state = after
                    mask |= entry.bit
                    required -= entry.event.outcome == "ok"
                    entry.lift()
                    entry = head.following
                else:
                    entry = entry.following
                continue
            # A return: its operation had to be placed before here, and no place fitted.
            self._remember(head, done, state)
            if not done:
                return self._violation()
            entry, state = done.pop()
            assert entry.event is not None
            mask &= ~entry.bit
            required += entry.event.outcome == "ok"
            entry.put_back()
            entry = entry.following
        return None

    def _linked(self) -> _Entry:
        moments: list[tuple[float, int, _Entry]] = []
        for number, event in enumerate(self._events):
            call = _Entry(event, is_call=True, bit=1 << number)
            moments.append((event.called, 1, call))
            if event.outcome == "ok":
                assert event.returned is not None
                back = _Entry(event, is_call=False, bit=0)
                call.partner = back
                # At one moment a call counts as before a return: the two are concurrent.
                moments.append((event.returned, 2, back))
        moments.sort(key=lambda moment: moment[:2])
        head = last = _Entry(None, is_call=False, bit=0)
        for _, _, entry in moments:
            last.following, entry.previous = entry, last
            last = entry
        return head

    def _remember(self, head: _Entry, done: list[tuple[_Entry, Hashable]], state: Hashable) -> None:
        if len(done) <= self._best[0]:
            return
        open_now: list[Event] = []
        entry = head.following
        while entry is not None and entry.is_call:
            assert entry.event is not None
            open_now.append(entry.event)
            entry = entry.following
        placed = [each.event for each, _ in done[-3:] if each.event is not None]
        self._best = (len(done), placed, state, open_now)

    def _violation(self) -> Violation:
        count, placed, state, open_now = self._best
        return Violation(
            "not linearizable",
            f"key {self._key!r}: {count} operations can be put in order, after which the register"
            f" holds {state!r}; then none of the last {len(open_now)} below fits"
            f" (the first {len(placed)} are the last that were placed)",
            placed + open_now,
        )


def _step(event: Event, state: Hashable) -> tuple[bool, Hashable]:
    if event.operation == "read":
        return _frozen(event.output) == state, state
    if event.operation == "write":
        return True, _frozen(event.input)
    if event.operation == "compare_and_set":
        expected, new = event.input
        matches = _frozen(expected) == state
        if event.outcome == "ok" and bool(event.output) != matches:
            return False, state
        return True, _frozen(new) if matches else state
    raise ValueError(f"{event.operation!r} is not an operation of a register")


def _relevant(events: list[Event]) -> list[Event]:
    """Drops events that cannot matter, above all unknown writes whose value no client saw."""
    seen: set[Hashable] = set()
    has_failed_comparison = False
    for event in events:
        if event.operation == "read" and event.outcome == "ok":
            seen.add(_frozen(event.output))
        elif event.operation == "compare_and_set":
            seen.add(_frozen(event.input[0]))
            has_failed_comparison |= event.outcome == "ok" and not event.output
    kept = []
    for event in events:
        if event.outcome == "failed":
            continue
        if event.outcome == "unknown":
            if event.operation == "read":
                continue
            value = event.input if event.operation == "write" else event.input[1]
            if _frozen(value) not in seen and not has_failed_comparison:
                continue
        kept.append(event)
    return sorted(kept, key=lambda event: event.called)


def _frozen(value: Any) -> Hashable:
    if isinstance(value, (list, tuple)):
        return tuple(_frozen(each) for each in value)
    if isinstance(value, dict):
        return tuple(sorted((key, _frozen(each)) for key, each in value.items()))
    result: Hashable = value
    return result


def check_log(
    history: Iterable[Event],
    *,
    linearizable_reads: bool = True,
    final: dict[str, Sequence[tuple[int, Any]]] | None = None,
    truncated_before: int = 0,
) -> Violation | None:
    """Returns None if acked appends are there exactly once, in real-time order, alike for all
    readers.

    `final` is the whole log per key, read after the cluster came to rest; positions below
    `truncated_before` may be gone from it.
    """
    by_key: dict[str, list[Event]] = {}
    for event in history:
        by_key.setdefault(event.key, []).append(event)
    for key in final or {}:
        by_key.setdefault(key, [])
    for key, events in by_key.items():
        ordered = sorted(events, key=lambda event: event.called)
        if final is not None and key in final:
            ordered.append(_final_read(ordered, key, final[key], truncated_before))
        violation = _Log(key, ordered, linearizable_reads=linearizable_reads).check()
        if violation is not None:
            return violation
    return None


def _final_read(
    events: list[Event], key: str, records: Sequence[tuple[int, Any]], start: int
) -> Event:
    last = max([max(event.called, event.returned or event.called) for event in events], default=0.0)
    return Event(
        client="final",
        operation="read",
        key=key,
        input=start,
        output={"records": [list(record) for record in records], "complete": True},
        called=last + 1.0,
        returned=last + 2.0,
        outcome="ok",
    )


class _Log:
    """One log's history."""

    def __init__(self, key: str, events: list[Event], *, linearizable_reads: bool) -> None:
        self._key = key
        self._linearizable_reads = linearizable_reads
        self._appends: dict[Any, Event] = {}
        self._events = events
        self._reads = [
            event for event in events if event.operation == "read" and event.outcome == "ok"
        ]
        # The value at each position, and the event that first reported it.
        self._value_at: dict[int, Any] = {}
        self._position_of: dict[Any, int] = {}
        self._told_by: dict[int, Event] = {}

    def check(self) -> Violation | None:
        return (
            self._gather()
            or self._check_real_time_order()
            or self._check_gaps()
            or (self._check_staleness() if self._linearizable_reads else None)
        )

    def _broken(self, rule: str, explanation: str, *events: Event) -> Violation:
        return Violation(rule, f"log {self._key!r}: {explanation}", list(events))

    def _gather(self) -> Violation | None:
        """Checks that each position has one value, and each value one position, for all clients."""
        for event in self._events:
            if event.operation == "append":
                if event.input in self._appends:
                    raise ValueError(f"value {event.input!r} is appended by two operations")
                self._appends[event.input] = event
            elif event.operation != "read":
                raise ValueError(f"{event.operation!r} is not an operation of a log")
        for event in self._events:
            if event.operation == "append" and event.outcome == "ok":
                violation = self._learn(event.output, event.input, event)
                if violation is not None:
                    return violation
        for event in self._reads:
            last: int | None = None
            for position, value in event.output["records"]:
                if last is not None and position <= last:
                    return self._broken("order", f"{position} is read after {last}", event)
                last = position
                violation = self._check_origin(value, event) or self._learn(position, value, event)
                if violation is not None:
                    return violation
        return None

    def _learn(self, position: int, value: Any, event: Event) -> Violation | None:
        if self._value_at.setdefault(position, value) != value:
            return self._broken(
                "one order for all",
                f"position {position} holds {self._value_at[position]!r} and also {value!r}",
                self._told_by[position],
                event,
            )
        if self._position_of.setdefault(value, position) != position:
            first = self._position_of[value]
            return self._broken(
                "exactly once",
                f"{value!r} stands at {first} and again at {position}",
                self._told_by[first],
                event,
            )
        self._told_by.setdefault(position, event)
        return None

    def _check_origin(self, value: Any, read: Event) -> Violation | None:
        append = self._appends.get(value)
        if append is None:
            return self._broken("nothing invented", f"nobody appended {value!r}", read)
        if append.outcome == "failed":
            explanation = f"{value!r} was refused and yet is read"
            return self._broken("nothing invented", explanation, append, read)
        if read.returned is not None and append.called > read.returned:
            explanation = f"{value!r} is read before it was appended"
            return self._broken("nothing invented", explanation, read, append)
        return None

    def _check_real_time_order(self) -> Violation | None:
        """Checks that an append called after another had returned comes behind it."""
        returned = sorted(
            (event for event in self._appends.values() if event.outcome == "ok"),
            key=lambda event: event.returned or 0.0,
        )
        index = 0
        highest: Event | None = None
        for value, event in sorted(self._appends.items(), key=lambda pair: pair[1].called):
            while index < len(returned) and (returned[index].returned or 0.0) < event.called:
                if highest is None or returned[index].output > highest.output:
                    highest = returned[index]
                index += 1
            position = self._position_of.get(value)
            if highest is not None and position is not None and position <= highest.output:
                return self._broken(
                    "real-time order",
                    f"{value!r} at {position} was appended after {highest.input!r} at"
                    f" {highest.output} had been acked",
                    highest,
                    event,
                )
        return None

    def _check_gaps(self) -> Violation | None:
        """Checks that a read leaves out nothing between its start and its last record."""
        known = sorted(self._value_at)
        for read in self._reads:
            records = read.output["records"]
            if not records:
                continue
            start = read.input
            present = {position for position, _ in records}
            for position in _between(known, start, records[-1][0]):
                if position not in present:
                    return self._broken(
                        "no gaps",
                        f"a read from {start} to {records[-1][0]} lacks"
                        f" {self._value_at[position]!r} at {position}",
                        self._told_by[position],
                        read,
                    )
        return None

    def _check_staleness(self) -> Violation | None:
        """Checks that a complete read shows all that was acked or read before its call."""
        facts: list[tuple[float, int, Event]] = [
            (event.returned or 0.0, event.output, event)
            for event in self._appends.values()
            if event.outcome == "ok"
        ]
        facts += [
            (read.returned or 0.0, read.output["records"][-1][0], read)
            for read in self._reads
            if read.output["records"]
        ]
        facts.sort(key=lambda fact: fact[0])
        index = 0
        highest: tuple[int, Event] | None = None
        for read in self._reads:
            while index < len(facts) and facts[index][0] < read.called:
                if highest is None or facts[index][1] > highest[0]:
                    highest = (facts[index][1], facts[index][2])
                index += 1
            if highest is None or not read.output["complete"]:
                continue
            records = read.output["records"]
            if highest[0] < read.input:
                continue
            if not records or records[-1][0] < highest[0]:
                seen = f"ends at {records[-1][0]}" if records else "is empty"
                return self._broken(
                    "no stale reads",
                    f"a read {seen} although position {highest[0]} was known before it began",
                    highest[1],
                    read,
                )
        return None


def _between(ordered: list[int], first: int, last: int) -> Iterable[int]:
    return ordered[bisect_left(ordered, first) : bisect_right(ordered, last)]
