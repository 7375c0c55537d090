"""Leases in an SQL database: SQLite, PostgreSQL, MariaDB or MySQL.

A call locks its rows in the order of their shards, lets `MemoryLeaseStore` change them, and writes
the result. Changes that scans have to show take the lock of the group's counter last and keep it
until they are committed, so that their numbers appear in order. Renewals and most checkpoints need
no number: they wait only for calls that change the same rows.
"""

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import msgspec
from msgspec import structs
from sqlalchemy import ColumnElement, Insert, Row, Table, and_, delete, func, or_, select, update
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from raftwood.base.environment import Environment
from raftwood.base.errors import InvalidInput, StoreDamaged
from raftwood.loghub.consumer.leases import (
    GROUP_CHARACTERS_MAX,
    NAME_CHARACTERS_MAX,
    SIGNATURE_CHARACTERS,
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
from raftwood.loghub.consumer.memory_store import MemoryLeaseStore, RowChanges
from raftwood.loghub.consumer.sql_database import CHANGES, LEASES, WORKERS, SqlEngine

Result = TypeVar("Result")
Act = Callable[[MemoryLeaseStore], Awaitable[Result]]

TIMEOUT_S = 3.0
"""The timeout of a call: a renewal that takes as long as its interval is of no use."""
SHARDS_MAX = 1000
"""Limit of one statement."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC).replace(tzinfo=None)
_MS = timedelta(milliseconds=1)


class SqlLeaseStore:
    """One consumer group on one logstore; its rows share tables with all other groups."""

    def __init__(
        self,
        environment: Environment,
        url: str,
        *,
        group: str,
        signature: str,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """`url` as in SQLAlchemy, with or without a driver: sqlite:///file, postgresql://…"""
        _check(group, "a consumer group", GROUP_CHARACTERS_MAX)
        _check(signature, "a logstore's signature", SIGNATURE_CHARACTERS)
        self._clock = environment.clock
        self._key = {"consume_group": group, "logstream_sig": signature}
        self._engine = SqlEngine(environment, url, timeout_s=timeout_s)

    def _of(self, table: Table) -> ColumnElement[bool]:
        return and_(*(table.c[name] == value for name, value in self._key.items()))

    def _now_ms(self) -> int:
        return self._clock.wall_ns() // 1_000_000

    async def open(self) -> None:
        await self._engine.migrate()

        async def make_counter(connection: AsyncConnection) -> None:
            found = await connection.scalar(select(CHANGES.c.latest).where(self._of(CHANGES)))
            if found is None:
                await connection.execute(CHANGES.insert().values(**self._key, latest=0))

        await self._engine.write(make_counter)

    async def close(self) -> None:
        await self._engine.close()

    async def register(self, worker: LeaseOwner) -> WorkerRow:
        return await self._beat(worker, lambda memory: memory.register(worker))

    async def heartbeat(self, worker: LeaseOwner) -> WorkerRow:
        return await self._beat(worker, lambda memory: memory.heartbeat(worker))

    async def _beat(self, worker: LeaseOwner, act: Act[WorkerRow]) -> WorkerRow:
        _check(worker.instance, "a worker's name", NAME_CHARACTERS_MAX)
        _check(worker.process, "a worker's process", NAME_CHARACTERS_MAX)

        async def beat(connection: AsyncConnection) -> WorkerRow:
            before = await self._worker(connection, worker)
            changes = RowChanges((), before)
            await act(changes.memory)
            return await self._write_worker(connection, before, changes)

        return await self._engine.write(beat)

    async def forget_workers(self, rows: Sequence[WorkerRow]) -> None:
        async def forget(connection: AsyncConnection) -> None:
            for row in rows:
                await connection.execute(
                    delete(WORKERS).where(
                        self._of(WORKERS),
                        WORKERS.c.worker_instance == row.instance,
                        WORKERS.c.process == row.process,
                        WORKERS.c.heartbeat == row.heartbeat,
                    )
                )

        if rows:
            await self._engine.write(forget)

    async def scan(self, after: int, processes: Sequence[str] = ()) -> Scan:
        async def look(connection: AsyncConnection) -> Scan:
            # The order matters: changes that the counter has counted are readable, and a heartbeat
            # is never older than the renewed ids beside it, or a live worker's lease could be
            # taken.
            latest, deleted = await self._counters(connection)
            wanted = LEASES.c.update_seq > after
            if processes:
                wanted = or_(wanted, LEASES.c.lease_process.in_(processes))
            if after:
                leases = await self._leases(connection, wanted)
            else:
                leases = await self._leases(connection)
            found = await connection.execute(select(WORKERS).where(self._of(WORKERS)))
            return Scan(leases, [_worker(row) for row in found], latest, deleted)

        return await self._engine.read(look)

    async def own(self, process: str, after: int) -> Scan:
        async def look(connection: AsyncConnection) -> Scan:
            latest, deleted = await self._counters(connection)
            if latest == after and after:
                return Scan((), (), latest, deleted)
            mine = or_(LEASES.c.lease_process == process, LEASES.c.consumer_process == process)
            changed = (LEASES.c.update_seq > after,) if after else ()
            leases = await self._leases(connection, mine, *changed)
            return Scan(leases, (), latest, deleted)

        return await self._engine.read(look)

    async def create(self, leases: Sequence[NewLease], *, deleted_seq: int | None = None) -> None:
        for new in leases:
            for name in (new.shard, *new.parents):
                _check(name, "a shard's id", NAME_CHARACTERS_MAX)

        async def make(connection: AsyncConnection) -> None:
            # Before all rows are read: if two workers create the same, the second sees the first's
            # rows.
            await self._set_counters(connection, latest=CHANGES.c.latest)
            _, deleted = await self._counters(connection)
            if deleted_seq is not None and deleted_seq < deleted:
                return
            changes = RowChanges(await self._leases(connection))
            await changes.memory.create(leases)
            changes.number(await self._count(connection, changes.numbers))
            if changes.made:
                await connection.execute(LEASES.insert(), self._values(changes.made))

        if leases:
            await self._engine.write(make)

    async def renew(self, worker: LeaseOwner, renewals: Sequence[Renewal]) -> Renewed:
        async def act(connection: AsyncConnection) -> Renewed:
            shards = [each.shard for each in renewals]
            before = await self._worker(connection, worker)
            changes = RowChanges(await self._locked(connection, shards), before)
            await changes.memory.renew(worker, renewals)
            row = await self._write_worker(connection, before, changes)
            values = {"lease_id": LEASES.c.lease_id + 1, "update_time": _moment(self._now_ms())}
            for part in _parts([each.shard for each in changes.changed]):
                named = LEASES.c.shard_id.in_(part)
                await connection.execute(
                    update(LEASES).where(self._of(LEASES), named).values(values)
                )
            return Renewed(changes.rows(shards), row)

        return await self._engine.write(act)

    async def take(self, worker: LeaseOwner, takes: Sequence[Take]) -> list[ShardLease]:
        shards = [each.shard for each in takes]
        return (await self._change(shards, lambda memory: memory.take(worker, takes)))[1]

    async def become_consumer(
        self, worker: LeaseOwner, renewals: Sequence[Renewal]
    ) -> list[ShardLease]:
        shards = [each.shard for each in renewals]
        act: Act[list[ShardLease]] = lambda memory: memory.become_consumer(worker, renewals)  # noqa: E731
        return (await self._change(shards, act))[1]

    async def save(self, process: str, saves: Sequence[Save]) -> list[str]:
        shards = [each.shard for each in saves]
        return (await self._change(shards, lambda memory: memory.save(process, saves)))[0]

    async def hand_over(self, process: str, saves: Sequence[Save]) -> list[ShardLease]:
        shards = [each.shard for each in saves]
        return (await self._change(shards, lambda memory: memory.hand_over(process, saves)))[1]

    async def release(self, process: str, shards: Sequence[str]) -> list[ShardLease]:
        return (await self._change(shards, lambda memory: memory.release(process, shards)))[1]

    async def delete(self, shards: Sequence[str]) -> None:
        await self._change(shards, lambda memory: memory.delete(shards))

    async def reset(self, checkpoints: Sequence[tuple[str, str | None]]) -> list[str]:
        shards = [shard for shard, _ in checkpoints]
        return (await self._change(shards, lambda memory: memory.reset(checkpoints)))[0]

    async def _change(
        self, shards: Sequence[str], act: Act[Result]
    ) -> tuple[Result, list[ShardLease]]:
        """Runs `act` on the rows; returns its answer and the rows afterwards."""

        async def change(connection: AsyncConnection) -> tuple[Result, list[ShardLease]]:
            changes = RowChanges(await self._locked(connection, shards))
            answer = await act(changes.memory)
            if changes.numbers:
                changes.number(await self._count(connection, changes.numbers))
            if changes.removed:
                await self._set_counters(connection, deleted=CHANGES.c.latest)
            await self._write_leases(connection, changes)
            return answer, changes.rows(shards)

        if not shards:
            changes = RowChanges(())
            return await act(changes.memory), []
        return await self._engine.write(change)

    async def _counters(self, connection: AsyncConnection) -> tuple[int, int]:
        """Returns the latest `update_seq`, and the one at which leases were last deleted."""
        query = select(CHANGES.c.latest, CHANGES.c.deleted).where(self._of(CHANGES))
        row = (await connection.execute(query)).first()
        if row is None:
            raise StoreDamaged(
                f"{self._engine.place} has no counter for group {self._key['consume_group']!r}: "
                "open the store again"
            )
        return row.latest, row.deleted

    async def _count(self, connection: AsyncConnection, numbers: int) -> int:
        """Takes numbers, and locks the counter until the commit; returns the last one."""
        await self._set_counters(connection, latest=CHANGES.c.latest + numbers)
        return (await self._counters(connection))[0]

    async def _set_counters(self, connection: AsyncConnection, **values: Any) -> None:
        await connection.execute(update(CHANGES).where(self._of(CHANGES)).values(**values))

    async def _leases(
        self, connection: AsyncConnection, *conditions: ColumnElement[bool]
    ) -> list[ShardLease]:
        query = select(LEASES).where(self._of(LEASES), *conditions)
        return [_lease(row) for row in await connection.execute(query)]

    async def _locked(self, connection: AsyncConnection, shards: Sequence[str]) -> list[ShardLease]:
        """Returns the rows, locked in an order that all callers share, which avoids deadlocks."""
        found: list[ShardLease] = []
        for part in _parts(sorted(set(shards))):
            named = LEASES.c.shard_id.in_(part)
            query = select(LEASES).where(self._of(LEASES), named).order_by(LEASES.c.shard_id)
            rows = await connection.execute(query.with_for_update())
            found += [_lease(row) for row in rows]
        return found

    async def _worker(self, connection: AsyncConnection, worker: LeaseOwner) -> WorkerRow | None:
        query = select(WORKERS).where(
            self._of(WORKERS), WORKERS.c.worker_instance == worker.instance
        )
        row = (await connection.execute(query.with_for_update())).first()
        return None if row is None else _worker(row)

    async def _write_worker(
        self, connection: AsyncConnection, before: WorkerRow | None, changes: RowChanges
    ) -> WorkerRow:
        changes.stamp_worker(now_ms=self._now_ms())
        row = changes.worker
        values = {
            "process": row.process,
            "heartbeat": row.heartbeat,
            "timeout_ms": row.timeout_ms,
            "create_time": _moment(row.create_ms),
            "update_time": _moment(row.update_ms),
        }
        if before is None:
            made = WORKERS.insert().values(**self._key, worker_instance=row.instance, **values)
            await connection.execute(made)
        elif row is not before:
            named = WORKERS.c.worker_instance == row.instance
            await connection.execute(update(WORKERS).where(self._of(WORKERS), named).values(values))
        return row

    async def _write_leases(self, connection: AsyncConnection, changes: RowChanges) -> None:
        if changes.changed:
            overwrite = _OVERWRITE[connection.dialect.name]
            await connection.execute(overwrite, self._values(changes.changed))
        for part in _parts(changes.removed):
            named = LEASES.c.shard_id.in_(part)
            await connection.execute(delete(LEASES).where(self._of(LEASES), named))

    def _values(self, leases: Sequence[ShardLease]) -> list[dict[str, Any]]:
        same = {**self._key, "update_time": _moment(self._now_ms())}
        return [same | _columns(lease) for lease in leases]


def _overwriting() -> dict[str, Insert]:
    """Returns for each database the statement that overwrites existing, locked rows.

    They are inserts with a conflict clause: MariaDB's driver batches only these, and PostgreSQL
    uses the primary key for them, while for an update it may choose a worse index on a new table.
    """
    kept = [each for each in LEASES.columns if not each.primary_key]
    key = list(LEASES.primary_key.columns)
    lite, postgres = sqlite.insert(LEASES), postgresql.insert(LEASES)
    maria = mysql.insert(LEASES).on_duplicate_key_update({c.name: func.values(c) for c in kept})
    return {
        "sqlite": lite.on_conflict_do_update(
            index_elements=key, set_={each.name: lite.excluded[each.name] for each in kept}
        ),
        "postgresql": postgres.on_conflict_do_update(
            index_elements=key, set_={each.name: postgres.excluded[each.name] for each in kept}
        ),
        "mariadb": maria,
        "mysql": maria,
    }


_OVERWRITE = _overwriting()


def _columns(lease: ShardLease) -> dict[str, Any]:
    values = structs.asdict(lease)
    values["shard_id"] = values.pop("shard")
    values["check_point"] = values.pop("checkpoint")
    values["parents"] = msgspec.json.encode(lease.parents).decode()
    return values


def _lease(row: Row[Any]) -> ShardLease:
    return ShardLease(
        shard=row.shard_id,
        lease_id=row.lease_id,
        lease_owner=row.lease_owner,
        lease_process=row.lease_process,
        consumer_owner=row.consumer_owner,
        consumer_process=row.consumer_process,
        epoch=row.epoch,
        checkpoint=row.check_point,
        seq=row.seq,
        parents=msgspec.json.decode(row.parents or "[]", type=tuple[str, ...]),
        bytes_per_s=row.bytes_per_s,
        update_seq=row.update_seq,
        timeout_ms=row.timeout_ms,
    )


def _worker(row: Row[Any]) -> WorkerRow:
    return WorkerRow(
        instance=row.worker_instance,
        process=row.process,
        heartbeat=row.heartbeat,
        create_ms=_ms(row.create_time),
        update_ms=_ms(row.update_time),
        timeout_ms=row.timeout_ms,
    )


def _parts(shards: Sequence[str]) -> list[Sequence[str]]:
    return [shards[first : first + SHARDS_MAX] for first in range(0, len(shards), SHARDS_MAX)]


def _moment(ms: int) -> datetime:
    return _EPOCH + ms * _MS


def _ms(moment: datetime | None) -> int:
    return 0 if moment is None else (moment - _EPOCH) // _MS


def _check(name: str, what: str, characters_max: int) -> None:
    if not 0 < len(name) <= characters_max or name != name.rstrip() or "\0" in name:
        raise InvalidInput(
            f"{name[:80]!r} cannot be {what}: give 1 to {characters_max} characters, "
            "without blanks at the end"
        )
