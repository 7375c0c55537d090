"""Consumers that share a stream's shards by leases: one joins, one is killed, a shard is split.

Records come all the time; in the end each was processed once, or again where the one that was
killed had not stored a checkpoint behind it.
"""

import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final

import msgspec

from raftwood.app.demo.consumer_check import ConsumerVerdict
from raftwood.app.demo.consumer_group import WatchedGroup
from raftwood.app.demo.consumer_notes import Tenancy
from raftwood.app.demo.consumer_processes import ConsumerGroup
from raftwood.app.demo.standalone_process import StandaloneProcess
from raftwood.app.demo.story import StoryListener
from raftwood.app.parts import LogHubPart
from raftwood.loghub.client import LogHubClient

FIRST: Final = ("anne", "ben", "cleo")
JOINS: Final = "dora"
KILLED: Final = "ben"
_STEADY_S: Final = 1.0


class ConsumersPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How large the story is."""

    shards: int = 8
    records_per_s: int = 2_000
    timeout_s: float = 2.0
    """Of a lease."""


class Change(msgspec.Struct, frozen=True):
    """Something that happened to the group."""

    what: str
    moves: int
    """Shards that went from one consumer to another."""
    balanced_s: float
    """Until all shards were shared evenly; a process that joins has to start first."""
    idle_ms: float
    """The longest time that nobody was at a shard that moved, or that began."""


class ShardStory(msgspec.Struct, frozen=True, kw_only=True):
    """A shard, and who had it."""

    shard: str
    parents: tuple[str, ...]
    consumers: list[str]
    records: int
    """As they were processed, also again."""


class ConsumersOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it."""

    seconds: float
    timeout_s: float
    changes: list[Change]
    shards: list[ShardStory]
    verdict: ConsumerVerdict

    @property
    def held(self) -> bool:
        return self.verdict.held


def run(folder: str, plan: ConsumersPlan, listener: StoryListener) -> ConsumersOutcome:
    """On a Raftwood of its own."""
    listener.on_progress("starting Raftwood", 0, 0)
    with StandaloneProcess(folder) as standalone, standalone.client() as client:
        listener.on_step(f"Raftwood runs, natively at {standalone.loghub.native}")
        client.create_project("demo")
        return play(folder, plan, listener, standalone.loghub, client, stream="demo/clicks")


def play(
    folder: str,
    plan: ConsumersPlan,
    listener: StoryListener,
    loghub: LogHubPart,
    client: LogHubClient,
    *,
    stream: str,
) -> ConsumersOutcome:
    """The stream is made; its project is there."""
    began = time.perf_counter()
    project, _, logstore = stream.partition("/")
    client.create_logstore(project, logstore, shard_count=plan.shards)
    leases = ConsumerGroup(
        stream=stream,
        group="demo",
        store=f"sqlite:///{folder}/leases.sqlite",
        timeout_s=plan.timeout_s,
    )
    with WatchedGroup.open(
        f"{folder}/consumers", client, loghub, leases, records_per_s=plan.records_per_s
    ) as group:
        story = _Story(plan, listener, group)
        story.start()
        story.join()
        story.kill()
        story.split()
        listener.on_progress("the last records", 0, 0)
        verdict = group.end()
        listener.on_step(f"{verdict.sent:,} records are processed, and all consumers have left")
    return ConsumersOutcome(
        seconds=time.perf_counter() - began,
        timeout_s=plan.timeout_s,
        changes=story.changes,
        shards=story.shards(),
        verdict=verdict,
    )


class _Story:
    def __init__(self, plan: ConsumersPlan, listener: StoryListener, group: WatchedGroup) -> None:
        self._plan = plan
        self._listener = listener
        self._group = group
        self._names = list(FIRST)
        self.changes: list[Change] = []

    def start(self) -> None:
        self._listener.on_progress("consumers start", 0, 0)
        self._group.start(*self._names)
        took_s = self._group.balanced(*self._names)
        self._listener.on_step(
            f"{', '.join(self._names)} share {self._plan.shards} shards after {took_s:.1f} s"
        )
        self._go_on()

    def join(self) -> None:
        self._listener.on_progress(f"{JOINS} joins", 0, 0)
        began_ns = time.monotonic_ns()
        self._names.append(JOINS)
        self._group.start(JOINS)
        self._changed(f"{JOINS} joins", began_ns)

    def kill(self) -> None:
        self._listener.on_progress(f"{KILLED} is killed", 0, 0)
        killed_ns = self._group.kill(KILLED)
        self._names.remove(KILLED)
        self._changed(f"{KILLED} is killed with -9", killed_ns)

    def split(self) -> None:
        self._listener.on_progress("a shard is split", 0, 0)
        began_ns = time.monotonic_ns()
        self._group.split(0)
        self._changed("shard 0 is split", began_ns)

    def _changed(self, what: str, began_ns: int) -> None:
        took_s = self._group.balanced(*self._names)
        tenancies = self._group.notes.tenancies()
        moved = [
            (row, following)
            for rows in tenancies.values()
            for row, following in pairwise(rows)
            if following.first_ns > began_ns and row.pid != following.pid
        ]
        idle_ns = [following.first_ns - row.last_ns for row, following in moved]
        idle_ns += _begin_gaps(tenancies, self._parents(), began_ns)
        change = Change(what, len(moved), took_s, max(idle_ns, default=0) / 1e6)
        self.changes.append(change)
        self._listener.on_step(
            f"{what}: {change.moves} shards move, the longest pause of a shard is "
            f"{change.idle_ms:,.0f} ms; shared evenly after {took_s:.1f} s"
        )
        self._go_on()

    def _go_on(self) -> None:
        """A while without anything new, so that each change stands by itself."""
        time.sleep(_STEADY_S)
        self._group.caught_up()

    def _parents(self) -> dict[str, tuple[str, ...]]:
        return {str(each.id): tuple(map(str, each.parents)) for each in self._group.shards()}

    def shards(self) -> list[ShardStory]:
        names = {pid: name for name, pid in self._group.pids.items()}
        parents = self._parents()
        return [
            ShardStory(
                shard=shard,
                parents=parents.get(shard, ()),
                consumers=[names[row.pid] for row in rows],
                records=sum(len(row.numbers) for row in rows),
            )
            for shard, rows in sorted(
                self._group.notes.tenancies().items(), key=lambda each: int(each[0])
            )
        ]


def _begin_gaps(
    tenancies: Mapping[str, Sequence[Tenancy]],
    parents: Mapping[str, Sequence[str]],
    began_ns: int,
) -> list[int]:
    """Between the end of a parent and the beginning of its child, for children since then."""
    return [
        rows[0].first_ns - tenancies[parent][-1].last_ns
        for shard, rows in tenancies.items()
        for parent in parents.get(shard, ())
        if rows[0].first_ns > began_ns and parent in tenancies
    ]
