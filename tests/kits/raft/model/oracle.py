"""Knows everything and checks that raft keeps its promises (Raft, figure 3).

One leader per term; what is committed stays and is in the log of every later leader; every replica
applies the same entries once and in order, under the same memberships; a read sees what was
committed before it began. Log matching is checked over whole logs from time to time.
"""

from bisect import bisect_left, bisect_right
from itertools import pairwise
from zlib import crc32

from raftwood.raft.core import UNLIMITED, ConfState, Entry, ReadState, Snapshot
from raftwood.raft.core.raft import Raft
from tests.kits.models import Violation


class Oracle:
    """The committed log as the first to commit saw it, and what was seen of all nodes."""

    def __init__(self, bootstrap: Snapshot) -> None:
        # Row i of each list is entry i; up to the bootstrap's index there is nothing to compare.
        filler = bootstrap.index + 1
        self.terms = [bootstrap.term] * filler
        self.payloads = [b""] * filler
        self.commit_terms = [0] * filler
        """The term in which an entry was committed, which may be above its own."""
        self.states = [0] * filler
        self.leaders: dict[int, int] = {}
        self._change_indexes = [0]
        self._configurations = [bootstrap.configuration]
        self._reads: dict[bytes, int] = {}
        self.reads_served = 0

    @property
    def last(self) -> int:
        return len(self.terms) - 1

    # Leaders

    def saw_leader(self, raft: Raft) -> None:
        term = raft.term
        known = self.leaders.get(term)
        if known == raft.id:
            return
        if known is not None:
            raise Violation(f"nodes {known} and {raft.id} both lead in term {term}")
        self.leaders[term] = raft.id
        # What was committed in an earlier term must be in this log.
        needed = bisect_left(self.commit_terms, term) - 1
        log = raft.log
        if log.last_index < needed:
            raise Violation(
                f"leader {raft.id} of term {term} ends at {log.last_index}; {needed} is committed"
            )
        if needed >= log.first_index and log.term(needed) != self.terms[needed]:
            raise Violation(f"leader {raft.id} of term {term} has another entry {needed}")

    # Commits

    def saw_commit(self, raft: Raft, seen: int) -> int:
        """Compare what a node committed since `seen`; answers up to where it was compared."""
        log = raft.log
        committed = log.committed
        low = max(seen + 1, log.first_index)
        if low > committed:
            return committed
        for entry in log.slice(low, committed + 1, UNLIMITED):
            index = entry.index
            if index <= self.last:
                if self.terms[index] != entry.term or self.payloads[index] != entry.payload:
                    raise Violation(f"node {raft.id} commits another entry {index} than others")
            elif index == self.last + 1:
                self._commit(entry, raft.term)
            else:
                raise Violation(f"node {raft.id} commits {index}, and nobody {self.last + 1}")
        return committed

    def _commit(self, entry: Entry, term: int) -> None:
        self.terms.append(entry.term)
        self.payloads.append(entry.payload)
        self.commit_terms.append(max(term, self.commit_terms[-1]))
        self.states.append(crc32(entry.payload, self.states[-1]))

    # State machines

    def applied(self, node: int, index: int, state: int) -> None:
        if index > self.last:
            raise Violation(f"node {node} applies {index}, which is not committed")
        if state != self.states[index]:
            raise Violation(f"node {node} has applied something else up to {index}")

    def changed(self, node: int, index: int, configuration: ConfState) -> None:
        if index > self._change_indexes[-1]:
            self._change_indexes.append(index)
            self._configurations.append(configuration)
        else:
            self._compare(node, index, configuration)

    def restored(self, node: int, snapshot: Snapshot) -> None:
        self.applied(node, snapshot.index, int.from_bytes(snapshot.data))
        self._compare(node, snapshot.index, snapshot.configuration)

    def _compare(self, node: int, index: int, configuration: ConfState) -> None:
        expected = self._configurations[bisect_right(self._change_indexes, index) - 1]
        if configuration != expected:
            raise Violation(f"node {node} is at {index} with {configuration}, not {expected}")

    # Reads

    def read_began(self, context: bytes) -> None:
        self._reads[context] = self.last

    def read_allowed(self, node: int, state: ReadState) -> None:
        began = self._reads.get(state.context)
        if began is None:
            raise Violation(f"node {node} serves a read that nobody asked for")
        self.reads_served += 1
        if state.index < began:
            raise Violation(f"node {node} reads at {state.index}; {began} was committed before")

    # Whole logs

    def compare_logs(self, rafts: list[Raft]) -> None:
        """Where two logs agree on an entry's term, they agree on it and all before (Raft, 5.3)."""
        logs = {}
        for raft in rafts:
            log = raft.log
            entries = log.slice(log.first_index, log.last_index + 1, UNLIMITED)
            for entry in entries[: log.committed + 1 - log.first_index]:
                if entry.term != self.terms[entry.index]:
                    raise Violation(f"node {raft.id} has changed its committed entry {entry.index}")
            logs[raft.id] = {entry.index: entry for entry in entries}
        for first, second in pairwise(logs):
            _compare_two(first, logs[first], second, logs[second])


def _compare_two(
    first: int, entries: dict[int, Entry], second: int, others: dict[int, Entry]
) -> None:
    agreed = False
    for index in sorted(entries.keys() & others.keys(), reverse=True):
        one, other = entries[index], others[index]
        agreed = agreed or one.term == other.term
        if agreed and (one.term != other.term or one.payload != other.payload):
            raise Violation(f"nodes {first} and {second} agree after {index} and not there")
