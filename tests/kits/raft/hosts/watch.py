"""What is seen of the stores from outside: who leads in which term, and what the logs hold."""

import asyncio
from collections.abc import Callable
from itertools import pairwise

from raftwood.raft.core import Role
from raftwood.raft.membership import members_of
from raftwood.raft.node_host import NodeHost
from raftwood.raft.replica import Replica
from tests.kits.models import Violation
from tests.kits.raft.hosts.witness import Witness

_LOOK_EVERY_S = 0.5


class Watch:
    """Sees the hosts of all stores for the whole run."""

    def __init__(self, witness: Witness, is_victim: Callable[[int], bool]) -> None:
        self._witness = witness
        self._is_victim = is_victim
        self.hosts: dict[int, NodeHost] = {}
        self.halted: dict[tuple[int, int], str] = {}
        """By store and group: why a replica was halted at some time."""
        self._leaders: dict[tuple[int, int], int] = {}
        self._entries: dict[tuple[int, int, int], tuple[int, int, bytes]] = {}
        """By group, index and term: the entry before's term, and the entry's kind and payload."""
        self._seen: dict[tuple[int, int], tuple[int, int]] = {}

    def opened(self, host: NodeHost) -> None:
        self.hosts[host.id] = host

    @property
    def terms(self) -> int:
        return len(self._leaders)

    async def look(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            self.look_once()

    def look_once(self) -> None:
        if self._witness.broken is not None:
            raise self._witness.broken
        for store, host in self.hosts.items():
            for group, problem in host.halted().items():
                self.halted[store, group] = problem
            if host._repairs.damage_count and not self._is_victim(store):
                raise Violation(
                    f"store {store} found damage although its disk is good: {host.halted()}"
                )
            for replica in host._replicas.values():
                self._check_leader(store, replica)
                self._check_entries(store, replica)

    def _check_leader(self, store: int, replica: Replica) -> None:
        if replica.node.raft.role is not Role.LEADER:
            return
        place = (replica.group, replica.term)
        if self._leaders.setdefault(place, store) != store:
            raise Violation(
                f"stores {self._leaders[place]} and {store} both lead group {replica.group} in "
                f"term {replica.term}"
            )

    def _check_entries(self, store: int, replica: Replica) -> None:
        """The same index and term mean the same entry, and the same one before: log matching."""
        group = replica.group
        cache = replica.storage.cache
        last = cache.get(cache.next_index - 1)
        if last is None:
            return
        end = (last.index, last.term)
        if self._seen.get((store, group)) == end:
            return
        self._seen[store, group] = end
        entries = cache.slice(cache.first_index, cache.next_index)
        # Of the first one it is not known here which one came before.
        for before, entry in pairwise(entries):
            found = (before.term, entry.kind, entry.payload)
            known = self._entries.setdefault((group, entry.index, entry.term), found)
            if known != found:
                raise Violation(
                    f"entry {entry.index} of term {entry.term} in group {group} is {found} on "
                    f"store {store} and {known} on another"
                )

    def members(self, group: int) -> tuple[int, ...]:
        """Who belongs to a group, as its newest leader sees it; nobody where there is none."""
        leaders = [
            replica
            for host in self.hosts.values()
            for replica in host._replicas.values()
            if replica.group == group and replica.is_leader
        ]
        if not leaders:
            return ()
        return tuple(members_of(max(leaders, key=lambda each: each.term).configuration))

    def describe(self) -> str:
        """What each replica says of itself, for a group that does not come to life."""
        return "\n".join(
            f"store {store} group {replica.group}: {replica.node.raft.role.value} of term "
            f"{replica.term}, leader {replica.leader}, applied {replica.applied}, commit "
            f"{replica.node.raft.log.committed}, last {replica.storage.last_index()}, "
            f"{len(replica.tickets)} tickets, {len(replica.backlog)} in the backlog, serving "
            f"{replica.is_serving}, asleep {replica.is_asleep}, {replica.configuration}"
            for store, host in sorted(self.hosts.items())
            for replica in host._replicas.values()
        )
