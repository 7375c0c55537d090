"""A model of the segment log in plain lists, and random writes that are valid for it."""

import copy
import random
from dataclasses import dataclass, field

from raftwood.disk.segment_log import (
    DropGroup,
    Record,
    Run,
    SegmentLog,
    SetState,
    TruncateHead,
    TruncateTail,
)


@dataclass
class Group:
    head: int = 1
    runs: list[Run] = field(default_factory=list)
    state: bytes | None = None
    next_index: int = 1
    was_truncated: bool = field(default=False, compare=False)


class LogModel:
    """What a log should hold after some writes."""

    def __init__(self) -> None:
        self.groups: dict[int, Group] = {}

    def copy(self) -> "LogModel":
        return copy.deepcopy(self)

    def apply(self, records: tuple[Record, ...]) -> None:
        for record in records:
            if isinstance(record, DropGroup):
                del self.groups[record.group]
                continue
            group = self.groups.setdefault(record.group, Group())
            match record:
                case Run():
                    group.runs.append(record)
                    group.next_index = record.first_index + record.count
                case SetState(_, data):
                    group.state = data
                case TruncateHead(_, up_to):
                    group.was_truncated = True
                    group.head = max(group.head, up_to + 1)
                    group.next_index = max(group.next_index, group.head)
                    group.runs = [r for r in group.runs if r.first_index + r.count > group.head]
                case TruncateTail(_, from_index):
                    group.runs = [r for r in group.runs if r.first_index < from_index]
                    group.next_index = from_index
                    if not (group.runs or group.was_truncated or group.state is not None):
                        del self.groups[record.group]

    def random_write(
        self, rng: random.Random, *, groups: int, bytes_max: int
    ) -> tuple[Record, ...]:
        """One to four records that fit; mostly runs."""
        records: list[Record] = []
        future = self.copy()
        for _ in range(rng.choice((1, 1, 1, 2, 4))):
            record = future._random_record(rng, rng.randrange(groups), bytes_max, records)
            future.apply((record,))
            records.append(record)
        return tuple(records)

    def _random_record(
        self, rng: random.Random, number: int, bytes_max: int, before: list[Record]
    ) -> Record:
        group = self.groups.get(number)
        choice = rng.random()
        if group is not None and choice < 0.1:
            reach = 3 if rng.random() < 0.1 else 0
            lowest = 0 if rng.random() < 0.1 else group.head - 1
            return TruncateHead(number, rng.randrange(lowest, group.next_index + reach))
        wrote_run = any(isinstance(r, Run) and r.group == number for r in before)
        if group is not None and choice < 0.15 and not wrote_run:
            cuts = [r.first_index for r in group.runs if r.first_index >= group.head]
            return TruncateTail(number, rng.choice([*cuts, group.next_index]))
        if group is not None and choice < 0.17:
            return DropGroup(number)
        if choice < 0.3:
            return SetState(number, rng.randbytes(rng.randrange(40)))
        first = group.next_index if group else 1
        payload = rng.randbytes(rng.randrange(bytes_max))
        return Run(number, rng.randrange(5), first, rng.randrange(1, 4), payload)


async def contents(log: SegmentLog) -> dict[int, Group]:
    """All that a log holds, read back through its public interface."""
    found: dict[int, Group] = {}
    for number in log.groups():
        bounds = log.bounds(number)
        group = Group(bounds.head, [], log.state(number), bounds.next_index)
        index = bounds.head
        while index < bounds.next_index:
            for run in await log.read(number, index, bytes_max=4096):
                group.runs.append(
                    Run(number, run.term, run.first_index, run.count, bytes(run.payload))
                )
                assert run.first_index <= index < run.first_index + run.count, "the wrong run"
                index = run.first_index + run.count
        found[number] = group
    return found
