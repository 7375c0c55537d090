"""Consumers that share a stream's shards by leases: one joins, one is killed, a shard is split.

Records come all the time; in the end each was processed once, or again where the one that was
killed had not stored a checkpoint behind it. Nobody may begin with a shard while another is still
at it, or before its parents are done.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Final, Self

import msgspec

from raftwood.base.errors import DeadlineExceeded, RaftwoodError
from raftwood.loghub.client import LogHubClient
from raftwood.loghub.model import Shard, ShardStatus
from raftwood.server.parts import LogHubPart
from raftwood_demos.consumer_journal import NUMBER, ConsumerJournal, Tenancy
from raftwood_demos.pipeline_check import FigureCheck
from raftwood_demos.processes import DemoProcess, end_all
from raftwood_demos.standalone_process import StandaloneProcess
from raftwood_demos.story import StoryListener

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


def checks_of(verdict: ConsumerVerdict) -> list[FigureCheck]:
    """The same as figures that must agree."""
    return [
        FigureCheck("clicks sent → consumed", verdict.sent, verdict.sent - verdict.missing),
        FigureCheck("clicks consumed again, but for the crash", 0, verdict.repeated),
        FigureCheck(
            "two consumers at once, child before parent", 0, verdict.overlaps + verdict.early
        ),
    ]


PROCESSOR: Final = "raftwood_demos.consumer_journal:JournalProcessor"
_LOOK_S: Final = 0.02
_KEYS: Final = 1_000
_PAUSE_S: Final = 0.02


class ConsumerGroup(msgspec.Struct, frozen=True, kw_only=True):
    """What all consumers have in common."""

    stream: str
    group: str
    store: str
    """Of the leases."""
    timeout_s: float


class ConsumerProcesses:
    """`raftwood consume` as often as one likes, by name; at the block's end all are gone."""

    def __init__(self, folder: str, loghub: LogHubPart, group: ConsumerGroup) -> None:
        self._folder = folder
        self._loghub = loghub
        self._group = group
        self._processes: dict[str, DemoProcess] = {}

    def __enter__(self) -> Self:
        os.makedirs(self._folder, exist_ok=True)
        return self

    def __exit__(self, *_: object) -> None:
        end_all([*self._processes.values()], is_orderly=False)

    def start(self, name: str) -> int:
        """The process's id."""
        group, part = self._group, self._loghub
        before = self._processes.get(name)
        if before is not None:
            before.close()
        self._processes[name] = DemoProcess(
            self._folder,
            name,
            [
                *("consume", group.stream, "--group", group.group, "--name", name),
                *("--store", group.store, "--timeout", f"{group.timeout_s * 1000:.0f}ms"),
                *("--processor", PROCESSOR),
            ],
            in_folder=True,
            variables={
                "RAFTWOOD_LOGHUB_CLIENT__GATEWAYS": part.native,
                "RAFTWOOD_LOGHUB_CLIENT__ACCESS_KEY": part.access_key,
                "RAFTWOOD_LOGHUB_CLIENT__ACCESS_SECRET": part.access_secret,
            },
        )
        return self._processes[name].pid

    def pids(self) -> dict[str, int]:
        """Of those that run; one that ended by itself is an error."""
        for process in self._processes.values():
            process.check(0, -signal.SIGKILL)
        return {
            name: process.pid for name, process in self._processes.items() if process.is_running
        }

    def kill(self, name: str) -> int:
        """With -9; when it was gone, on the clock that all processes share."""
        return self._processes[name].kill()

    def signal(self, name: str, number: signal.Signals) -> None:
        self._processes[name].signal(number)

    def stop(self, *names: str) -> None:
        """Told to end, they hand all over first."""
        for name in names:
            self.signal(name, signal.SIGTERM)
        for name in names:
            self._processes[name].wait()
        self.pids()


class NumberedLoad:
    """Records from 0 on, over all shards, sent by a thread; `sent` is known when it has ended."""

    def __init__(self, client: LogHubClient, stream: str, *, records_per_s: int) -> None:
        self._client = client
        self._stream = stream.split("/")
        self._records_per_s = records_per_s
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="numbered load")
        self.sent = 0
        self.failure: RaftwoodError | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> int:
        """All that was sent is stored now: how many."""
        self._is_over.set()
        self._thread.join()
        if self.failure is not None:
            raise self.failure
        return self.sent

    def _run(self) -> None:
        began = time.monotonic()
        try:
            with self._client.producer(*self._stream) as producer:
                while not self._is_over.wait(_PAUSE_S):
                    due = int((time.monotonic() - began) * self._records_per_s)
                    for number in range(self.sent, due):
                        producer.send({NUMBER: str(number)}, key=f"key-{number % _KEYS}")
                    self.sent = due
        except RaftwoodError as error:
            self.failure = error


def wait_until(holds: Callable[[], bool], *, seconds: float, what: str) -> float:
    """How long it took."""
    began = time.monotonic()
    while not holds():
        if time.monotonic() - began > seconds:
            raise DeadlineExceeded(f"{what}: not within {seconds:g} s")
        time.sleep(_LOOK_S)
    return time.monotonic() - began


WAIT_S_MAX: Final = 60.0


class WatchedGroup:
    """Made by `open`. Waits for what has to come about, and says how long that took."""

    def __init__(
        self,
        client: LogHubClient,
        stream: str,
        processes: ConsumerProcesses,
        load: NumberedLoad,
        notes: ConsumerJournal,
    ) -> None:
        self._client = client
        self._stream = stream
        self.processes = processes
        self._load = load
        self.notes = notes
        self.pids: dict[str, int] = {}
        """By name, also of those that are gone."""
        self.faults: list[Fault] = []

    @classmethod
    @contextmanager
    def open(
        cls,
        folder: str,
        client: LogHubClient,
        loghub: LogHubPart,
        group: ConsumerGroup,
        *,
        records_per_s: int,
    ) -> Iterator[Self]:
        """Records come during the block; no process is left behind it."""
        with (
            ConsumerProcesses(folder, loghub, group) as processes,
            NumberedLoad(client, group.stream, records_per_s=records_per_s) as load,
        ):
            yield cls(client, group.stream, processes, load, ConsumerJournal(folder))

    def start(self, *names: str) -> None:
        for name in names:
            self.pids[name] = self.processes.start(name)

    def kill(self, name: str) -> int:
        """With -9; when that was."""
        killed_ns = self.processes.kill(name)
        self.faults.append(Fault(frozenset([self.pids[name]]), killed_ns, killed_ns))
        return killed_ns

    def split(self, shard: int) -> None:
        self._client.split_shard(*self._names, shard=shard)

    def merge(self, shard: int) -> None:
        """With the one that follows."""
        self._client.merge_shard(*self._names, shard=shard)

    @property
    def _names(self) -> tuple[str, str]:
        project, _, logstore = self._stream.partition("/")
        return project, logstore

    def shards(self) -> list[Shard]:
        return self._client.shards(*self._names)

    @property
    def sent(self) -> int:
        return self._load.sent

    def balanced(self, *names: str) -> float:
        """These have all shards, each about as many as the others."""
        shards = {str(each.id) for each in self.shards() if each.status is ShardStatus.READWRITE}
        pids = {self.pids[name] for name in names}
        return self._until(
            lambda: is_balanced(self.notes.holders(), shards, pids),
            f"{', '.join(names)} have all of shards {', '.join(sorted(shards))}",
        )

    def caught_up(self, sent: int | None = None) -> float:
        """All that was sent by now is processed."""
        count = self.sent if sent is None else sent
        return self._until(
            lambda: all(number in self.notes.distinct for number in range(count)),
            f"{count:,} records are processed",
        )

    def _until(self, holds: Callable[[], bool], what: str) -> float:
        def is_so() -> bool:
            self.notes.update()
            self.processes.pids()
            return holds()

        return wait_until(is_so, seconds=WAIT_S_MAX, what=what)

    def end(self) -> ConsumerVerdict:
        """No more records come, the last ones are processed, and all consumers leave."""
        sent = self._load.end()
        self.caught_up(sent)
        self.processes.stop(*self.processes.pids())
        self.notes.update()
        parents = {str(each.id): tuple(map(str, each.parents)) for each in self.shards()}
        return judge(self.notes.tenancies(), sent=sent, parents=parents, faults=self.faults)


def is_balanced(holders: Mapping[str, int], shards: set[str], pids: set[int]) -> bool:
    """Whether exactly these processes have these shards, each about as many as the others."""
    if not shards <= holders.keys():
        return False
    counts = dict.fromkeys(pids, 0)
    for shard in shards:
        if holders[shard] not in counts:
            return False
        counts[holders[shard]] += 1
    return max(counts.values()) - min(counts.values()) <= 1


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


class ConsumerChange(msgspec.Struct, frozen=True):
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
    changes: list[ConsumerChange]
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
        self.changes: list[ConsumerChange] = []

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
        change = ConsumerChange(what, len(moved), took_s, max(idle_ns, default=0) / 1e6)
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
