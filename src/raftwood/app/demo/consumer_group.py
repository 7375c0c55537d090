"""A group of consumers at work: processes that come and go, and what has to come about then."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, Self

from raftwood.app.demo.consumer_check import ConsumerVerdict, Fault, judge
from raftwood.app.demo.consumer_notes import NoteBook
from raftwood.app.demo.consumer_processes import (
    ConsumerGroup,
    ConsumerProcesses,
    NumberedLoad,
    wait_until,
)
from raftwood.app.parts import LogHubPart
from raftwood.loghub.client import LogHubClient
from raftwood.loghub.model import Shard, ShardStatus

WAIT_S_MAX: Final = 60.0


class WatchedGroup:
    """Made by `open`. Waits for what has to come about, and says how long that took."""

    def __init__(
        self,
        client: LogHubClient,
        stream: str,
        processes: ConsumerProcesses,
        load: NumberedLoad,
        notes: NoteBook,
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
            yield cls(client, group.stream, processes, load, NoteBook(folder))

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
