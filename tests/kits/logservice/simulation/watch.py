"""Replicas of shards as seen from outside: all hold the same, at the same LSN."""

import asyncio
from collections.abc import Iterator

from raftwood.logservice.log_state_machine import LogStateMachine
from raftwood.logservice.server.log_store import LogStore
from raftwood.raft.core import Role
from raftwood.raft.replica import Replica
from tests.kits.logservice.log_cluster import LogCluster
from tests.kits.models import Violation

_LOOK_EVERY_S = 0.5


class Watch:
    """Sees all stores of a cluster for the whole run."""

    def __init__(self, cluster: LogCluster) -> None:
        self._cluster = cluster
        self._leaders: dict[tuple[int, int], int] = {}
        self._entries: dict[tuple[int, int], bytes] = {}
        """By shard and LSN."""
        self._seen: dict[tuple[int, int], int] = {}

    @property
    def terms(self) -> int:
        return len(self._leaders)

    async def look(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            for store, replica in self._replicas():
                self._check_leader(store, replica)
                self._check_entries(store, replica)

    def _replicas(self) -> Iterator[tuple[int, Replica]]:
        for store, each in self._cluster.stores.items():
            if self._cluster.machines[store].running:
                for replica in each.host._replicas.values():
                    yield store, replica

    def _check_leader(self, store: int, replica: Replica) -> None:
        if replica.node.raft.role is Role.LEADER:
            place = (replica.group, replica.term)
            if self._leaders.setdefault(place, store) != store:
                raise Violation(f"two stores lead shard {replica.group}: {place}")

    def _check_entries(self, store: int, replica: Replica) -> None:
        cache, shard = replica.storage.cache, replica.group
        first = max(cache.first_index, self._seen.get((store, shard), 0) + 1)
        for entry in cache.slice(first, replica.applied + 1):
            self.agree(store, shard, entry.index, entry.payload)
        self._seen[store, shard] = max(first - 1, replica.applied)

    def agree(self, store: int, shard: int, lsn: int, payload: bytes) -> None:
        if self._entries.setdefault((shard, lsn), payload) != payload:
            raise Violation(f"LSN {lsn} of shard {shard} is another one on store {store}")

    async def compare(self, shard: int, stores: list[int]) -> None:
        """At rest: all replicas have come to the same state, by logs that agree."""
        states = {}
        for store in stores:
            host = self._cluster.stores[store].host
            machine = host.machine(shard)
            assert isinstance(machine, LogStateMachine)
            states[store] = b"".join(machine.save_snapshot(None, lambda: False))  # type: ignore[arg-type]
            first = host.status(shard).first_index
            if first > machine.state.first_lsn:
                raise Violation(
                    f"store {store} has {first} on of shard {shard}, where "
                    f"{machine.state.first_lsn} can be read"
                )
            await self._compare_log(self._cluster.stores[store], shard, first)
        if len(set(states.values())) != 1:
            raise Violation(f"stores {stores} differ on shard {shard}: {states}")

    async def _compare_log(self, store: LogStore, shard: int, first: int) -> None:
        while first <= store.host.applied(shard):
            entries, first = await store.host.read_log(shard, first)
            for entry in entries:
                self.agree(store.host.id, shard, entry.index, bytes(entry.payload))
