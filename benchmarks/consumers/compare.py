"""All groups one after the other: shards that move, members that die, and rates."""

import pathlib
from collections.abc import Callable
from typing import Final

import msgspec

from benchmarks.consumers import moving, rates
from benchmarks.consumers.groups import GROUPS, Group
from benchmarks.consumers.moving import Moved
from benchmarks.consumers.rates import RatePace
from benchmarks.harness.cluster import check_disk
from benchmarks.harness.comparison import Results, Steps
from benchmarks.peers.programs import CACHE

SYSTEMS: Final = tuple(GROUPS)
RATES: Final = {"sqlite": rates.OURS, "kafka": rates.KAFKA}


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """How often, and for how long, each thing is measured."""

    rounds: int = 3
    """Times that nine members join one."""
    kills: int = 3
    rate_rounds: int = 3
    warm_s: float = 1.0
    seconds: float = 3.0
    warm_up_factor: float = 1.0


QUICK: Final = Pace(rounds=1, kills=1, rate_rounds=1, warm_s=0.3, seconds=0.7, warm_up_factor=0.1)


class GroupResults(Results, kw_only=True):
    """With what is not a load."""

    moved: dict[str, Moved] = msgspec.field(default_factory=dict)


def compare(
    names: tuple[str, ...] = SYSTEMS,
    pace: Pace | None = None,
    *,
    folder: pathlib.Path = CACHE / "data",
    progress: Callable[[str], None] = print,
) -> GroupResults:
    """First how shards change hands, then the rates."""
    results = GroupResults(disk=check_disk(folder))
    steps = Steps(results, progress)
    groups = steps.prepared(names, lambda name: GROUPS[name]())
    pace = pace or Pace()
    for group in groups:
        with steps.step(group.name):
            moved = results.moved[group.name] = Moved()
            _move(group, moved, pace, folder, progress)
    rate_pace = RatePace(
        warm_s=pace.warm_s,
        seconds=pace.seconds,
        rounds=pace.rate_rounds,
        warm_up_factor=pace.warm_up_factor,
    )
    for name, row in RATES.items():
        if name in results.systems:
            rates.measure(row, rate_pace, folder, steps)
    return results


def _move(
    group: Group, moved: Moved, pace: Pace, folder: pathlib.Path, progress: Callable[[str], None]
) -> None:
    with group.running(folder) as members:
        moving.measure(
            members,
            moved,
            cycles=pace.rounds,
            kills=pace.kills,
            progress=lambda step: progress(f"{group.name}: {step}"),
        )
