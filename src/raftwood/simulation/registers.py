"""Is a history of registers linearizable? Wing and Gong's search with Lowe's memo.

Operations: `write` (input: value), `read` (output: value) and `compare_and_set` (input: [expected,
new], output: whether it was set). Each key is a register of its own that starts as `initial`. An
unknown operation may take effect at any time after its call, or never.
"""

from collections.abc import Hashable, Iterable
from typing import Any

import msgspec

from raftwood.simulation.errors import SimulationError
from raftwood.simulation.history import Event

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
    """The search was given up: shorten the history or lessen the unknown operations."""


def check_registers(
    history: Iterable[Event], *, initial: Any = None, states_max: int = 5_000_000
) -> Violation | None:
    """None where the history is linearizable."""
    by_key: dict[str, list[Event]] = {}
    for event in history:
        by_key.setdefault(event.key, []).append(event)
    for key, events in by_key.items():
        violation = _Search(key, events, _frozen(initial), states_max).run()
        if violation is not None:
            return violation
    return None


class _Entry:
    """A call or a return in the order of time, linked so that it can be lifted out."""

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
            # A return: its operation had to be placed before here, and nothing fitted.
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
    """Leave out what cannot matter, above all unknown writes whose value nobody saw."""
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
