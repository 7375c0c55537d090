"""Disks that fill up: alarms come before, nothing acked is lost, and it goes on by itself."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from raftwood.base.errors import DiskFull
from raftwood.logservice.client.log_client import AsyncLogClient
from raftwood.logservice.hakeeper.commands import ClusterView
from tests.kits.logservice.load import Load, read_all
from tests.kits.logservice.processes import LogProcesses, log_stores, shard_of
from tests.kits.processes import fill, in_small_disk, seen_inside
from tests.kits.running import run

pytestmark = pytest.mark.needs("tmpfs")

_DISK_KIB = 24 << 10
_ALARM_BYTES = 14 << 20
_REFUSE_BYTES = 8 << 20
_RECORD_BYTES = 20 << 10
_KEPT = 200
"""Records behind a truncation: a fraction of a disk, and some seconds of a load."""
_LAG_MAX = 20


async def append_until_refused(stores: LogProcesses, client: AsyncLogClient) -> list[int]:
    """Also sees that the alarm came before."""
    acked: list[int] = []
    alarmed_at = 0
    refusal = ""
    while not refusal:
        assert len(acked) < (_DISK_KIB << 10) // _RECORD_BYTES
        try:
            acked.append(await client.append(bytes(_RECORD_BYTES)))
        except DiskFull as error:
            refusal = error.message
        if not alarmed_at and has_alarm(await stores.keeper.describe()):
            alarmed_at = len(acked)
    print(f"alarm after {alarmed_at} records, refused after {len(acked)}: {refusal}")
    assert 0 < alarmed_at < len(acked)
    assert f"above {_REFUSE_BYTES} only: truncate logs" in refusal
    return acked


def has_alarm(view: ClusterView) -> bool:
    return any("disk-short" in alarm.text for alarm in view.alarms)


async def the_leader_is_short_of_room(stores: LogProcesses, client: AsyncLogClient) -> None:
    """The log is written all the same: another one leads."""
    async with Load([client], [client]) as load:
        await load.goes_on()
        leader = await stores.leader()
        ballast = fill(seen_inside(stores.nodes[leader]), left_bytes=_REFUSE_BYTES // 2)
        told = await stores.alarm("disk-short")
        assert "bytes are free" in told
        await stores.seen(
            "another leader",
            lambda view: shard_of(view, 1).leader not in (0, leader),
        )
        await load.goes_on()
        ballast.unlink()
        await stores.no_alarm("disk-short")
        await load.goes_on()
    assert not load.unknown
    print(await load.check(client))


async def a_follower_has_no_room(stores: LogProcesses, client: AsyncLogClient) -> None:
    """It stops nobody, and catches up when there is room."""
    await client.truncate(await client.get_latest_lsn())
    async with (
        Load([client], [], record_bytes=_RECORD_BYTES) as load,
        kept_short(load, client),
    ):
        await load.goes_on()
        follower = stores.others(await stores.leader())[0]
        ballast = fill(seen_inside(stores.nodes[follower]))
        await stores.alarm("disk-short")
        await stores.nodes[follower].says("a write waits", group=1)
        await load.goes_on(records=2 * _LAG_MAX)
        await lags(stores, follower, is_so=True)
        ballast.unlink()
        await lags(stores, follower, is_so=False)
        await load.goes_on()
    assert not load.unknown


async def all_run_out_of_room(stores: LogProcesses) -> None:
    """Appends are refused before disks are full, and go on after a truncation."""
    await stores.no_alarm("disk-short")
    client = await stores.client(timeout_ms=30_000)
    acked = await append_until_refused(stores, client)
    # Reading and truncating is what helps, and both still work.
    records, _ = await client.read(acked[0])
    assert records[0].lsn == acked[0]
    kept = acked[-20]
    await client.truncate(kept - 1)
    patient = await stores.client()
    acked.append(await patient.append(bytes(_RECORD_BYTES)))
    await stores.no_alarm("disk-short")
    found = [record.lsn for record in await read_all(client, kept)]
    assert found == [lsn for lsn in acked if lsn >= kept]


def test_disks_that_fill_up_are_told_in_time_and_nothing_acked_is_lost(tmp_path: Path) -> None:
    for store in (1, 2, 3):
        (tmp_path / f"store-{store}").mkdir()
    wrappers = {store: in_small_disk(tmp_path / f"store-{store}", _DISK_KIB) for store in (1, 2, 3)}
    settings = {
        "logservice.disk_alarm_bytes": _ALARM_BYTES,
        "logservice.disk_refuse_bytes": _REFUSE_BYTES,
    }

    async def body() -> None:
        async with log_stores(tmp_path, wrappers=wrappers, settings=settings) as stores:
            await stores.start()
            await stores.runs()
            client = await stores.client()
            await the_leader_is_short_of_room(stores, client)
            await a_follower_has_no_room(stores, client)
            await all_run_out_of_room(stores)

    run(body())


@contextlib.asynccontextmanager
async def kept_short(load: Load, log: AsyncLogClient) -> AsyncIterator[None]:
    """A load that nobody truncates would fill all disks before what is waited for is seen."""

    is_over = asyncio.Event()

    async def truncate() -> None:
        while not is_over.is_set():
            latest = await log.get_latest_lsn()
            if latest > _KEPT:
                await load.truncate(log, latest - _KEPT)
            await asyncio.sleep(0.2)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(truncate())
        yield
        is_over.set()  # not cancelled: the last truncation is answered before anybody looks


async def lags(stores: LogProcesses, follower: int, *, is_so: bool) -> None:
    def is_behind(view: ClusterView) -> bool:
        # The lead may move at any time, and whoever can't write does not answer a new leader.
        return shard_of(view, 1).lagging.get(follower, _LAG_MAX + 1) > _LAG_MAX

    await stores.seen("a follower behind", lambda view: is_behind(view) == is_so)
