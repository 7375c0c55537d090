"""Operations on a consumer group: list its leases, send workers away, reset checkpoints."""

import asyncio
import uuid
from collections.abc import Collection, Mapping
from typing import Final

import msgspec

from raftwood.base.environment import Environment
from raftwood.base.errors import Conflict, DeadlineExceeded, NotFound
from raftwood.loghub.consumer.leases import NOBODY, SENT_AWAY, LeaseOwner, LeaseStore, NewLease
from raftwood.loghub.consumer.source import ShardSource

_LOOK_S: Final = 0.1


class GroupRow(msgspec.Struct, frozen=True, kw_only=True):
    """One shard's row in `raftwood group show`."""

    shard: str
    owner: str
    consumer: str
    """Differs from the owner while the shard is handed over."""
    epoch: int
    checkpoint: str | None
    lag_s: float | None
    """The age of the first unprocessed batch; None if it is unknown."""
    bytes_per_s: float


async def show_group(
    store: LeaseStore, source: ShardSource, environment: Environment
) -> list[GroupRow]:
    """Returns one row for each lease, by shard."""
    scan = await store.scan(0)
    rows = []
    for lease in sorted(scan.leases, key=lambda each: (len(each.shard), each.shard)):
        lag_s: float | None = None
        if lease.is_ended:
            lag_s = 0.0
        elif lease.checkpoint is not None:
            lag_s = await _lag_s(source, lease.shard, lease.checkpoint, environment)
        rows.append(
            GroupRow(
                shard=lease.shard,
                owner=lease.lease_owner,
                consumer=lease.consumer_owner,
                epoch=lease.epoch,
                checkpoint=lease.checkpoint,
                lag_s=lag_s,
                bytes_per_s=round(lease.bytes_per_s, 1),
            )
        )
    return rows


async def _lag_s(
    source: ShardSource, shard: str, checkpoint: str, environment: Environment
) -> float | None:
    try:
        received_ms = await source.next_received_ms(shard, checkpoint)
    except NotFound:
        return None  # it was freed before the group read it
    now_ms = environment.clock.wall_ns() // 1_000_000
    return 0.0 if received_ms is None else max(0, now_ms - received_ms) / 1000


async def leased_shards(store: LeaseStore, source: ShardSource) -> list[str]:
    """Returns the shards that the group reads or will read. Shards that are over are left out,
    because their children are listed.

    Creates a lease for each shard that has none yet.
    """
    shards = await source.list_shards()
    await store.create([NewLease(each.id, each.parents) for each in shards])
    found = [lease.shard for lease in (await store.scan(0)).leases]
    return sorted(found, key=lambda shard: (len(shard), shard))


async def reset_group(store: LeaseStore, positions: Mapping[str, str]) -> None:
    """Sets the next position of shards that no worker consumes; all of them, or none."""
    leases = {lease.shard: lease for lease in (await store.scan(0)).leases}
    over = [shard for shard in positions if shard not in leases]
    if over:
        raise Conflict(
            f"shards {', '.join(over)} are over: their children are read, and can be set"
        )
    refused = [shard for shard in positions if leases[shard].consumer_process != NOBODY]
    refused = refused or await store.reset(list(positions.items()))
    if refused:
        raise Conflict(
            f"shards {', '.join(refused)} are being consumed: stop the group's workers first, or "
            "drain them with `raftwood group drain`"
        )


async def drain_workers(
    store: LeaseStore, environment: Environment, names: Collection[str], *, wait_s: float
) -> list[str]:
    """Sends the named workers away, or all; returns their names once none of them has a shard.

    The call takes the name from each worker. A worker that sees this hands over its shards and
    ends. The row that says so stays until the worker sees it; a busy or paused worker sees it late.
    If the worker is dead, others take its shards when the leases expire, and remove the row like
    that of any worker that stands still.
    """
    scan = await store.scan(0)
    found = [row for row in scan.workers if not names or row.instance in names]
    chosen = [row.instance for row in found]
    unknown = sorted(set(names) - set(chosen))
    if unknown:
        raise NotFound(f"the group has no worker {', '.join(unknown)}: `raftwood group show`")
    processes = {row.process for row in found}
    for lease in scan.leases:
        # The workers that were sent away earlier and are still there.
        processes |= {lease.lease_process} if lease.lease_owner in chosen else set()
        processes |= {lease.consumer_process} if lease.consumer_owner in chosen else set()
    for row in found:
        if not row.is_sent_away:
            number = uuid.UUID(int=environment.random.getrandbits(128), version=4)
            await store.register(LeaseOwner(row.instance, f"{SENT_AWAY}{number}"))
    await _until_gone(store, processes, wait_s)
    return chosen


async def _until_gone(store: LeaseStore, processes: Collection[str], wait_s: float) -> None:
    try:
        async with asyncio.timeout(wait_s):
            while True:
                scan = await store.scan(0)
                held = [
                    lease.shard
                    for lease in scan.leases
                    if lease.lease_process in processes or lease.consumer_process in processes
                ]
                if not held:
                    return
                await asyncio.sleep(_LOOK_S)
    except TimeoutError as error:
        raise DeadlineExceeded(
            f"shards {', '.join(held)} are not handed over yet: their workers are busy or dead; "
            "others take them when their leases expire"
        ) from error
