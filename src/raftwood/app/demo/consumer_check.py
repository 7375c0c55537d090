"""Whether consumers kept their promise: each record once, or as often as faults allow.

A record may come again only where its process was at fault (killed, stopped, cut off from the
store of leases) before it had stored a checkpoint behind it. Nobody may begin with a shard while
another is still at it, or before its parents are done.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final

import msgspec

from raftwood.app.demo.consumer_notes import Tenancy
from raftwood.app.demo.pipeline_check import Check

_LAST_CALL_NS: Final = 1_000_000_000
"""A process that was stopped in the middle of a call may end that call when it goes on."""


class Fault(msgspec.Struct, frozen=True):
    """What happened to processes, on the clock that they share."""

    pids: frozenset[int]
    began_ns: int
    ended_ns: int
    """The same moment for one that was killed."""
    is_overrun: bool = False
    """They were stopped, maybe within a call, which no deadline can end."""


class ConsumerVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """What the notes say."""

    sent: int
    processed: int
    """Also again."""
    missing: int
    again: int
    """As faults allow."""
    repeated: int
    """With no fault that allows it."""
    overlaps: int
    """How often two were at one shard."""
    early: int
    """Shards that were begun before a parent was done."""

    @property
    def held(self) -> bool:
        return not (self.missing or self.repeated or self.overlaps or self.early)


def judge(
    tenancies: Mapping[str, Sequence[Tenancy]],
    *,
    sent: int,
    parents: Mapping[str, Sequence[str]],
    faults: Sequence[Fault],
) -> ConsumerVerdict:
    """Records are numbered from 0 to `sent`; `tenancies` are in the order of their epochs."""
    seen: dict[int, tuple[str, bool]] = {}
    """By number, the shard that it came from, and whether it may come again."""
    again = repeated = 0
    for shard, rows in tenancies.items():
        for place, row in enumerate(rows):
            following = rows[place + 1] if place + 1 < len(rows) else None
            is_excused = any(_is_hit(row, following, fault) for fault in faults)
            for index, number in enumerate(row.numbers):
                before = seen.get(number)
                if before is not None and before == (shard, True):
                    again += 1
                elif before is not None:
                    repeated += 1
                seen[number] = (shard, is_excused and index >= row.kept)
    return ConsumerVerdict(
        sent=sent,
        processed=sum(len(row.numbers) for rows in tenancies.values() for row in rows),
        missing=sum(number not in seen for number in range(sent)),
        again=again,
        repeated=repeated,
        overlaps=_overlaps(tenancies, faults),
        early=_early(tenancies, parents),
    )


def _is_hit(row: Tenancy, following: Tenancy | None, fault: Fault) -> bool:
    """Whether a fault ended it: it was under way, and did nothing behind the fault."""
    return (
        row.pid in fault.pids
        and row.first_ns <= fault.ended_ns
        and row.last_ns <= fault.ended_ns + _LAST_CALL_NS
        and (following is None or following.first_ns >= fault.began_ns)
    )


def _overlaps(tenancies: Mapping[str, Sequence[Tenancy]], faults: Sequence[Fault]) -> int:
    return sum(
        following.first_ns < row.last_ns
        and not any(each.is_overrun and _is_hit(row, following, each) for each in faults)
        for rows in tenancies.values()
        for row, following in pairwise(rows)
    )


def _early(tenancies: Mapping[str, Sequence[Tenancy]], parents: Mapping[str, Sequence[str]]) -> int:
    """What a parent's stopped process does when it goes on comes too late, and is no part of it."""
    return sum(
        tenancies[parent][-1].last_ns > rows[0].first_ns
        for shard, rows in tenancies.items()
        for parent in parents.get(shard, ())
        if parent in tenancies
    )


def checks_of(verdict: ConsumerVerdict) -> list[Check]:
    """The same as figures that must agree."""
    return [
        Check("clicks sent → consumed", verdict.sent, verdict.sent - verdict.missing),
        Check("clicks consumed again, but for the crash", 0, verdict.repeated),
        Check("two consumers at once, child before parent", 0, verdict.overlaps + verdict.early),
    ]
