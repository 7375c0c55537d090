"""The checkers accept what may happen and explain what may not."""

import random
from pathlib import Path
from typing import Any

import pytest

from raftwood.base.errors import ConnectionLost, DeadlineExceeded, Overloaded
from raftwood.testing import (
    CheckTooLarge,
    Event,
    History,
    check_log,
    check_registers,
    classify,
    read_history,
    simulate,
    write_history,
)
from raftwood.testing.history import OperationOutcome
from raftwood.testing.runner import Simulation


def event(
    operation: str,
    given: Any,
    output: Any,
    called: float,
    returned: float | None,
    *,
    outcome: OperationOutcome = "ok",
) -> Event:
    return Event(
        client="c",
        operation=operation,
        input=given,
        output=output,
        called=called,
        returned=returned,
        outcome=outcome,
    )


def write(
    value: Any, called: float, returned: float | None, outcome: OperationOutcome = "ok"
) -> Event:
    return event("write", value, None, called, returned, outcome=outcome)


def read(value: Any, called: float, returned: float) -> Event:
    return event("read", None, value, called, returned)


def change(expected: Any, new: Any, done: bool, called: float, returned: float) -> Event:
    return event("compare_and_set", [expected, new], done, called, returned)


GOOD_REGISTERS = {
    "one after another": [write(1, 0, 1), read(1, 2, 3), write(2, 4, 5), read(2, 6, 7)],
    "a read during a write sees old or new": [write(1, 0, 10), read(None, 1, 2), read(1, 3, 4)],
    "an unknown write may take effect late": [
        write(1, 0, 1),
        write(2, 2, None, "unknown"),
        read(1, 3, 4),
        read(2, 5, 6),
    ],
    "an unknown write may never take effect": [write(1, 0, None, "unknown"), read(None, 1, 2)],
    "a failed write is not there": [write(1, 0, 1, "failed"), read(None, 2, 3)],
    "compare and set": [
        write(1, 0, 1),
        change(1, 2, True, 2, 3),
        change(1, 3, False, 4, 5),
        read(2, 6, 7),
    ],
    "an unknown write that nobody saw may explain a failed comparison": [
        write(1, 0, 1),
        write(9, 1.5, None, "unknown"),
        change(1, 2, False, 2, 3),
    ],
}
BAD_REGISTERS = {
    "a stale read": [write(1, 0, 1), write(2, 2, 3), read(1, 4, 5)],
    "a lost write": [write(1, 0, 1), read(None, 2, 3)],
    "going back": [write(1, 0, 10), read(1, 1, 2), read(None, 3, 4)],
    "a value from nowhere": [write(1, 0, 1), read(7, 2, 3)],
    "a failed write that is read": [write(1, 0, 1, "failed"), read(1, 2, 3)],
    "two winners": [write(1, 0, 1), change(1, 2, True, 2, 5), change(1, 3, True, 2, 5)],
    "an unknown write that happens twice": [
        write(2, 0, None, "unknown"),
        read(2, 1, 2),
        write(1, 3, 4),
        read(1, 5, 6),
        read(2, 7, 8),
    ],
}


@pytest.mark.parametrize("name", GOOD_REGISTERS)
def test_a_linearizable_history_is_accepted(name: str) -> None:
    assert check_registers(GOOD_REGISTERS[name]) is None


@pytest.mark.parametrize("name", BAD_REGISTERS)
def test_a_history_that_is_not_linearizable_is_explained(name: str) -> None:
    violation = check_registers(BAD_REGISTERS[name])
    assert violation is not None
    assert "the register holds" in str(violation)
    assert "[" in str(violation)


def test_keys_are_registers_of_their_own() -> None:
    events = [write(1, 0, 1), read(None, 2, 3)]
    events[1].key = "other"
    assert check_registers(events) is None


def random_registers(seed: int) -> list[Event]:
    """A history made by a real register: each operation takes effect at a moment within."""
    source = random.Random(seed)
    moments: list[tuple[float, Event]] = []
    for client in range(4):
        now = source.random()
        for number in range(20):
            called = now
            took_effect = called + source.random()
            now = took_effect + source.random()
            kind = source.choice(["read", "write", "compare_and_set"])
            given: Any = client * 100 + number
            if kind == "compare_and_set":
                given = [source.randrange(400), given]
            made = event(kind, given, None, called, now)
            if source.random() < 0.1:
                made.outcome, made.returned = "unknown", None
                if source.random() < 0.5:
                    took_effect += 5 * source.random()
            moments.append((took_effect, made))
            now += source.random() * 0.3
    state = None
    for _, made in sorted(moments, key=lambda moment: moment[0]):
        if made.operation == "read":
            made.output = state
        elif made.operation == "write":
            state = made.input
        else:
            if source.random() < 0.5 and state is not None:
                made.input[0] = state
            made.output = made.input[0] == state
            state = made.input[1] if made.output else state
    return [made for _, made in moments]


@pytest.mark.parametrize("seed", range(30))
def test_histories_of_a_real_register_are_accepted_and_changed_ones_are_not(seed: int) -> None:
    events = random_registers(seed)
    assert check_registers(events) is None
    source = random.Random(seed)
    reads = [each for each in events if each.operation == "read" and each.outcome == "ok"]
    source.choice(reads).output = 999_999
    assert check_registers(events) is not None


def test_a_search_that_grows_too_large_is_given_up() -> None:
    events = [write(number, 0, 100) for number in range(30)] + [read(99, 1, 2)]
    with pytest.raises(CheckTooLarge):
        check_registers(events, states_max=1000)


def append(
    value: str,
    position: int | None,
    called: float,
    returned: float | None,
    outcome: OperationOutcome = "ok",
) -> Event:
    return event("append", value, position, called, returned, outcome=outcome)


def read_log(
    start: int, records: str, called: float, returned: float, *, complete: bool = True
) -> Event:
    output = {
        "records": [[start + index, value] for index, value in enumerate(records)],
        "complete": complete,
    }
    return event("read", start, output, called, returned)


BASE = [append("a", 0, 0, 1), append("b", 1, 2, 3), append("c", None, 4, None, "unknown")]
GOOD_LOGS = {
    "all there": [*BASE, read_log(0, "ab", 5, 6)],
    "an unknown append may be there": [*BASE, read_log(0, "abc", 5, 6)],
    "an unknown append may come later": [*BASE, read_log(0, "ab", 5, 6), read_log(0, "abc", 7, 8)],
    "a read during an append": [*BASE, read_log(0, "a", 2.5, 6)],
    "a part": [*BASE, read_log(1, "b", 5, 6, complete=False)],
    "a part that stops early": [*BASE, read_log(0, "a", 5, 6, complete=False)],
    "behind the end": [*BASE, read_log(7, "", 5, 6)],
    "concurrent appends in any order": [append("a", 1, 0, 5), append("b", 0, 1, 4)],
}
BAD_LOGS = {
    "no stale reads": [*BASE, read_log(0, "a", 5, 6)],
    "exactly once": [*BASE, read_log(0, "aba", 5, 6)],
    "one order for all": [*BASE, read_log(0, "ba", 5, 6)],
    "nothing invented": [*BASE, read_log(0, "abz", 5, 6)],
    "real-time order": [append("a", 1, 0, 1), append("b", 0, 2, 3)],
    "no gaps": [
        *BASE,
        event("read", 0, {"records": [[0, "a"], [2, "c"]], "complete": True}, 5, 6),
    ],
    "order": [
        *BASE,
        event("read", 0, {"records": [[1, "b"], [0, "a"]], "complete": True}, 5, 6),
    ],
}


@pytest.mark.parametrize("name", GOOD_LOGS)
def test_a_good_log_is_accepted(name: str) -> None:
    assert check_log(GOOD_LOGS[name]) is None


@pytest.mark.parametrize("rule", BAD_LOGS)
def test_a_bad_log_is_explained_by_its_rule(rule: str) -> None:
    violation = check_log(BAD_LOGS[rule])
    assert violation is not None
    assert violation.rule == rule, str(violation)


def test_more_bad_logs_are_found() -> None:
    refused = append("a", None, 0, 1, "failed")
    for events in (
        [refused, read_log(0, "a", 2, 3)],
        [append("a", 0, 5, 6), read_log(0, "a", 1, 2)],
        [append("a", 0, 0, 1), append("b", 0, 2, 3)],
        [*BASE, read_log(0, "abc", 5, 6), read_log(0, "ab", 7, 8)],
        [*BASE, append("d", 2, 5, 6), read_log(0, "abc", 7, 8)],
        [append("u", None, 5, None, "unknown"), append("a", 7, 0, 1), read_log(6, "ua", 6, 7)],
    ):
        assert check_log(events) is not None


def test_stale_reads_are_allowed_where_nobody_promised_more() -> None:
    assert check_log([*BASE, read_log(0, "a", 5, 6)], linearizable_reads=False) is None


def test_the_final_log_must_hold_everything_that_was_acked() -> None:
    assert check_log(BASE, final={"": [(0, "a"), (1, "b")]}) is None
    assert check_log(BASE, final={"": [(0, "a"), (1, "b"), (5, "c")]}) is None
    lost = check_log(BASE, final={"": [(0, "a")]})
    assert lost is not None
    assert "position 1" in str(lost)
    assert check_log(BASE, final={"": []}) is not None
    assert check_log(BASE, final={"": [(1, "b")]}) is not None
    assert check_log(BASE, final={"": [(1, "b")]}, truncated_before=1) is None


def random_log(seed: int) -> list[Event]:
    source = random.Random(seed)
    moments: list[tuple[float, Event]] = []
    for client in range(4):
        now = source.random()
        for number in range(25):
            called = now
            effect = called + source.random()
            now = effect + source.random()
            kind = source.choice(["append", "append", "read"])
            made = event(kind, f"{client}.{number}", None, called, now)
            if kind == "append" and source.random() < 0.15:
                made.outcome, made.returned = "unknown", None
            moments.append((effect, made))
    log: list[str] = []
    for _, made in sorted(moments, key=lambda moment: moment[0]):
        if made.operation == "append":
            if made.outcome == "ok":
                made.output = len(log)
            elif source.random() < 0.5:
                continue
            log.append(made.input)
        else:
            start = source.randrange(len(log) + 1)
            stop = source.choice([len(log), len(log), start + 3])
            records = [[index, log[index]] for index in range(start, min(stop, len(log)))]
            made.input = start
            made.output = {"records": records, "complete": stop >= len(log)}
    return [made for _, made in moments]


@pytest.mark.parametrize("seed", range(30))
def test_histories_of_a_real_log_are_accepted_and_changed_ones_are_not(seed: int) -> None:
    events = random_log(seed)
    assert check_log(events) is None
    source = random.Random(seed)
    reads = [e for e in events if e.operation == "read" and len(e.output["records"]) > 2]
    records = source.choice(reads).output["records"]
    kind = source.randrange(3)
    if kind == 0:
        del records[source.randrange(1, len(records) - 1)]
    elif kind == 1:
        records[0][1], records[1][1] = records[1][1], records[0][1]
    else:
        records[-1][1] = records[0][1]
    assert check_log(events) is not None


def test_a_history_is_the_same_after_writing_and_reading(tmp_path: Path) -> None:
    events = sorted(random_log(1), key=lambda each: each.called)
    path = tmp_path / "history.jsonl"
    write_history(path, events)
    assert read_history(path) == events
    assert len(path.read_bytes().splitlines()) == len(events)


def test_a_time_out_is_unknown_and_a_refusal_a_failure() -> None:
    assert classify(TimeoutError()) == "unknown"
    assert classify(DeadlineExceeded("late")) == "unknown"
    assert classify(ConnectionLost("gone")) == "unknown"
    assert classify(ConnectionResetError()) == "unknown"
    assert classify(Overloaded("full")) == "failed"
    assert classify(ConnectionRefusedError()) == "failed"


def test_a_history_orders_events_although_the_clock_stands_still() -> None:
    async def refused() -> None:
        raise Overloaded("full")

    async def late() -> None:
        raise TimeoutError

    async def fine() -> int:
        return 7

    async def scenario(simulation: Simulation) -> list[Event]:
        history = History(lambda: simulation.now)
        await history.run("c", "write", refused(), given=1)
        await history.run("c", "write", late(), given=2)
        assert await history.run("c", "read", fine(), key="k", output=str) == 7
        return history.events

    one, two, three = simulate(1, scenario).result
    assert [each.outcome for each in (one, two, three)] == ["failed", "unknown", "ok"]
    assert two.returned is None
    assert three.output == "7"
    assert one.called < (one.returned or 0) < two.called < three.called < (three.returned or 0)
