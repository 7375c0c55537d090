"""Does a history of an append-only log keep its promises?

Operations: `append` (input: a value that nobody else appends; output: its position) and `read`
(input: the position to start at; output: {"records": [[position, value], …], "complete": bool},
where `complete` says that the read reached the end of the log). Each key is a log of its own.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import Any

from raftwood.simulation.history import Event
from raftwood.simulation.registers import Violation


def check_log(
    history: Iterable[Event],
    *,
    linearizable_reads: bool = True,
    final: dict[str, Sequence[tuple[int, Any]]] | None = None,
    truncated_before: int = 0,
) -> Violation | None:
    """None where acked appends are there exactly once, in real-time order, alike for all readers.

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
        # What stands where, and who said so first.
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
        """One value per position, one position per value, for everybody."""
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
        """An append called after another had returned stands behind it."""
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
        """A read leaves out nothing that stands between its start and its last record."""
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
        """A complete read shows what was acked, or read by anybody, before it was called."""
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
