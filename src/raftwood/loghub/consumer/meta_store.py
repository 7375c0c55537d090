"""Leases in a metastore, one key each: for clusters that have one and want no database.

Every change is conditional on the versions of all rows that it was computed from. The versions come
from earlier reads and writes; if another worker was faster, the rows are read again. A metastore
changes few keys at once, so a call for many leases is several transactions, each for leases of its
own.
"""

import asyncio
import hashlib
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar

import msgspec

from raftwood.base.backoff import Backoff
from raftwood.base.environment import Environment
from raftwood.base.errors import Overloaded
from raftwood.base.seams import Compare, KeyEntry, KeyOperation, MetaStore, RemoveKey, SetKey
from raftwood.loghub.consumer.leases import (
    LeaseOwner,
    NewLease,
    Renewal,
    Renewed,
    Save,
    Scan,
    ShardLease,
    Take,
    WorkerRow,
)
from raftwood.loghub.consumer.memory_store import MemoryLeaseStore, RowChanges, parents_first

Result = TypeVar("Result")
Asked = TypeVar("Asked", NewLease, Renewal, Take, Save, str, tuple[str, str | None])

LEASES_MAX = 60
"""Limit of one transaction, beside a worker and the counter."""
TRIES_MAX = 30
_PAUSE = Backoff(first_ms=50, longest_ms=50, jitter=1)
_PLAIN = re.compile(r"[\w.-]{1,64}", re.ASCII)


class MetaLeaseStore:
    """One consumer group on one logstore; the owner of the metastore closes it."""

    def __init__(
        self, environment: Environment, store: MetaStore, *, group: str, signature: str
    ) -> None:
        self._environment = environment
        self._store = store
        # A range reads in this order, so a counter is never newer than the leases, and the leases
        # are never newer than the heartbeats.
        root = f"/consumers/{_plain(group)}/{signature}"
        self._root = f"{root}/"
        self._counter_key = f"{root}/counter"
        self._lease_prefix = f"{root}/lease/"
        self._worker_prefix = f"{root}/worker/"
        self._known: dict[str, KeyEntry] = {}
        """Entries by key, as last seen; a stale one makes a compare fail."""

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        pass

    async def register(self, worker: LeaseOwner) -> WorkerRow:
        changes = (await self._change((), lambda memory: memory.register(worker), worker))[1]
        return changes.worker

    async def heartbeat(self, worker: LeaseOwner) -> WorkerRow:
        return (await self.renew(worker, ())).worker

    async def forget_workers(self, rows: Sequence[WorkerRow]) -> None:
        for row in rows:
            key = self._worker_key(row.instance)
            found = await self._store.get(key)
            if found is not None:
                kept = msgspec.msgpack.decode(found.value, type=WorkerRow)
                if (kept.process, kept.heartbeat) == (row.process, row.heartbeat):
                    await self._store.compare_and_set(key, None, version=found.version)

    async def scan(self, after: int, processes: Sequence[str] = ()) -> Scan:
        entries = await self._read_all(self._root)
        wanted = frozenset(processes)
        leases = [
            lease
            for lease in self._leases(entries)
            if not after or lease.update_seq > after or lease.lease_process in wanted
        ]
        workers = [
            _decode_worker(entry) for entry in entries if entry.key.startswith(self._worker_prefix)
        ]
        counter = next((each for each in entries if each.key == self._counter_key), None)
        return Scan(leases, workers, *_counters(counter))

    async def own(self, process: str, after: int) -> Scan:
        latest, deleted = _counters(await self._read(self._counter_key))
        if latest == after:
            return Scan((), (), latest, deleted)
        leases = [
            lease
            for lease in self._leases(await self._read_all(self._lease_prefix))
            if process in (lease.lease_process, lease.consumer_process) and lease.update_seq > after
        ]
        return Scan(leases, (), latest, deleted)

    async def create(self, leases: Sequence[NewLease], *, deleted_seq: int | None = None) -> None:
        attempt = 0
        await self._read_all(self._root)
        while True:
            _, deleted = _counters(self._known.get(self._counter_key))
            if deleted_seq is not None and deleted_seq < deleted:
                return
            # Compare with the entries of this moment: other calls may have read more meanwhile.
            changes = RowChanges(self._leases(self._known.values()))
            await changes.memory.create(leases)
            # A lease whose parent has none shows that the parent is over: parents come first.
            made = parents_first(changes.made)[:LEASES_MAX]
            if not made:
                return
            changes.keep_made(made)
            # Each creation increments the counter: if another worker had created, this write would
            # fail.
            if await self._is_written(changes, [self._lease_key(each.shard) for each in made]):
                continue
            attempt += 1
            if attempt == TRIES_MAX:
                raise self._contended()
            await self._pause(attempt)
            await self._read_all(self._root)

    async def renew(self, worker: LeaseOwner, renewals: Sequence[Renewal]) -> Renewed:
        leases: list[ShardLease] = []
        # The heartbeat goes with each part, in the transaction that renews; without parts, alone.
        for part in _parts(renewals) or ((),):
            act = partial(MemoryLeaseStore.renew, worker=worker, renewals=part)
            changes = (await self._change(_shards(part), act, worker))[1]
            leases += changes.rows(_shards(part))
        return Renewed(leases, changes.worker)

    async def take(self, worker: LeaseOwner, takes: Sequence[Take]) -> list[ShardLease]:
        return (await self._in_parts(takes, lambda memory, part: memory.take(worker, part)))[1]

    async def become_consumer(
        self, worker: LeaseOwner, renewals: Sequence[Renewal]
    ) -> list[ShardLease]:
        return (
            await self._in_parts(
                renewals, lambda memory, part: memory.become_consumer(worker, part)
            )
        )[1]

    async def save(self, process: str, saves: Sequence[Save]) -> list[str]:
        return (await self._in_parts(saves, lambda memory, part: memory.save(process, part)))[0]

    async def hand_over(self, process: str, saves: Sequence[Save]) -> list[ShardLease]:
        return (await self._in_parts(saves, lambda memory, part: memory.hand_over(process, part)))[
            1
        ]

    async def release(self, process: str, shards: Sequence[str]) -> list[ShardLease]:
        return (await self._in_parts(shards, lambda memory, part: memory.release(process, part)))[1]

    async def delete(self, shards: Sequence[str]) -> None:
        for part in _parts(shards):
            await self._change(part, partial(MemoryLeaseStore.delete, shards=part))

    async def reset(self, checkpoints: Sequence[tuple[str, str | None]]) -> list[str]:
        return (await self._in_parts(checkpoints, lambda memory, part: memory.reset(part)))[0]

    async def _in_parts(
        self,
        asked: Sequence[Asked],
        act: Callable[[MemoryLeaseStore, Sequence[Asked]], Awaitable[list[Result]]],
    ) -> tuple[list[Result], list[ShardLease]]:
        """Runs `act` in parts; returns all of its answers, and the rows afterwards."""
        answers: list[Result] = []
        leases: list[ShardLease] = []
        for part in _parts(asked):
            answer, changes = await self._change(_shards(part), _on(act, part))
            answers += answer
            leases += changes.rows(_shards(part))
        return answers, leases

    async def _change(
        self,
        shards: Sequence[str],
        act: Callable[[MemoryLeaseStore], Awaitable[Result]],
        worker: LeaseOwner | None = None,
    ) -> tuple[Result, RowChanges]:
        """Runs `act` on the rows; returns its answer and the changes of leases and worker."""
        keys = list(dict.fromkeys(self._lease_key(shard) for shard in shards))
        worker_key = None if worker is None else self._worker_key(worker.instance)
        for attempt in range(TRIES_MAX):
            # The first attempt uses cached rows: mostly no other worker has changed them.
            if attempt:
                read = (*keys, self._counter_key, *((worker_key,) if worker_key else ()))
                await asyncio.gather(*(self._read(key) for key in read))
            known = [self._known[key] for key in keys if key in self._known]
            row = self._known.get(worker_key) if worker_key else None
            changes = RowChanges(self._leases(known), None if row is None else _decode_worker(row))
            answer = await act(changes.memory)
            changes.stamp_worker(now_ms=self._environment.clock.wall_ns() // 1_000_000)
            if changes.is_nothing:
                if attempt:
                    return answer, changes
            elif await self._is_written(changes, [*keys, *((worker_key,) if worker_key else ())]):
                return answer, changes
            await self._pause(attempt)
        raise self._contended()

    async def _is_written(self, changes: RowChanges, read: Sequence[str]) -> bool:
        """Writes the changes if all rows that were read are unchanged."""
        compared = list(read)
        operations: list[KeyOperation] = []
        if changes.numbers:
            latest, deleted = _counters(self._known.get(self._counter_key))
            latest += changes.numbers
            changes.number(latest)
            counters = (latest, latest if changes.removed else deleted)
            compared.append(self._counter_key)
            operations.append(SetKey(self._counter_key, msgspec.msgpack.encode(counters)))
        operations += [
            SetKey(self._lease_key(lease.shard), msgspec.msgpack.encode(lease))
            for lease in (*changes.made, *changes.changed)
        ]
        operations += [RemoveKey(self._lease_key(shard)) for shard in changes.removed]
        if changes.changed_worker is not None:
            key = self._worker_key(changes.changed_worker.instance)
            operations.append(SetKey(key, msgspec.msgpack.encode(changes.changed_worker)))
        outcome = await self._store.transact(
            [Compare(key, self._known_version(key)) for key in compared], operations
        )
        if outcome.held:
            for operation in operations:
                if isinstance(operation, SetKey):
                    self._keep(KeyEntry(operation.key, operation.value, outcome.version))
                else:
                    self._known.pop(operation.key, None)
        return outcome.held

    def _keep(self, entry: KeyEntry) -> None:
        if entry.version > self._known_version(entry.key):
            self._known[entry.key] = entry

    def _known_version(self, key: str) -> int:
        entry = self._known.get(key)
        return 0 if entry is None else entry.version

    async def _read(self, key: str) -> KeyEntry | None:
        found = await self._store.get(key)
        if found is None:
            self._known.pop(key, None)
            return None
        self._keep(KeyEntry(key, found.value, found.version))
        return self._known[key]

    async def _read_all(self, prefix: str) -> list[KeyEntry]:
        entries: list[KeyEntry] = []
        start: str | None = ""
        while start is not None:
            part = await self._store.range(prefix=prefix, start=start)
            entries += part.entries
            start = part.next_start
        kept = {key: entry for key, entry in self._known.items() if not key.startswith(prefix)}
        self._known = kept | {entry.key: entry for entry in entries}
        return entries

    def _leases(self, entries: Iterable[KeyEntry]) -> list[ShardLease]:
        return [
            msgspec.msgpack.decode(entry.value, type=ShardLease)
            for entry in entries
            if entry.key.startswith(self._lease_prefix)
        ]

    def _lease_key(self, shard: str) -> str:
        return self._lease_prefix + _plain(shard)

    def _worker_key(self, instance: str) -> str:
        return self._worker_prefix + _plain(instance)

    async def _pause(self, attempt: int) -> None:
        if attempt:
            await asyncio.sleep(_PAUSE.delay_s(0, self._environment.random))

    def _contended(self) -> Overloaded:
        return Overloaded(f"too many change the leases below {self._root} at once: try again")


def _on(
    act: Callable[[MemoryLeaseStore, Sequence[Asked]], Awaitable[Result]], part: Sequence[Asked]
) -> Callable[[MemoryLeaseStore], Awaitable[Result]]:
    return lambda memory: act(memory, part)


def _shards(asked: Sequence[Asked]) -> list[str]:
    return [_shard(each) for each in asked]


def _shard(asked: NewLease | Renewal | Take | Save | str | tuple[str, str | None]) -> str:
    if isinstance(asked, str):
        return asked
    return asked[0] if isinstance(asked, tuple) else asked.shard


def _parts(asked: Sequence[Asked]) -> list[Sequence[Asked]]:
    return [asked[first : first + LEASES_MAX] for first in range(0, len(asked), LEASES_MAX)]


def _plain(name: str) -> str:
    """Encodes a name for use in a key: keys are limited in length and characters."""
    if _PLAIN.fullmatch(name):
        return name
    return "~" + hashlib.sha256(name.encode()).hexdigest()[:32]


def _counters(entry: KeyEntry | None) -> tuple[int, int]:
    """Returns the latest `update_seq`, and the one at which leases were last deleted."""
    if entry is None:
        return 0, 0
    return msgspec.msgpack.decode(entry.value, type=tuple[int, int])


def _decode_worker(entry: KeyEntry) -> WorkerRow:
    return msgspec.msgpack.decode(entry.value, type=WorkerRow)
