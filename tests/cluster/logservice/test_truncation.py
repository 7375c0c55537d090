"""What was truncated is freed, what was not stays readable, and nothing stalls in silence."""

import asyncio
import itertools
import time
from pathlib import Path

import pytest

from raftwood.logservice.client.log_client import AsyncLogClient
from raftwood.logservice.errors import LsnPastEnd, LsnTruncated
from tests.kits.logservice.load import read_all
from tests.kits.logservice.processes import (
    SNAPSHOT_ENTRIES,
    WAIT_S_MAX,
    LogNode,
    LogProcesses,
    log_stores,
)
from tests.kits.running import run

_RECORD_BYTES = 20 << 10


async def append_up_to(client: AsyncLogClient, last_lsn: int) -> list[int]:
    """Append until a record has this LSN, slowly enough for snapshots in between."""
    lsns = [0]
    while lsns[-1] < last_lsn:
        count = min(10, last_lsn - lsns[-1]) if lsns[-1] else 1
        lsns += await client.append_many([bytes(_RECORD_BYTES)] * count)
        await asyncio.sleep(0.05)
    return lsns[1:]


async def shrinks_below(node: LogNode, limit_bytes: int) -> None:
    deadline = time.monotonic() + WAIT_S_MAX
    while (size := node.disk_bytes()) >= limit_bytes:
        assert time.monotonic() < deadline, f"store {node.store} keeps {size} bytes"
        await asyncio.sleep(0.1)


async def frees_segments_before(node: LogNode, number: int) -> None:
    """The log of a store is cut by whole segments, the oldest first."""
    deadline = time.monotonic() + WAIT_S_MAX
    while (oldest := node.oldest_segment()) < number:
        assert time.monotonic() < deadline, f"store {node.store} keeps segment {oldest}"
        await asyncio.sleep(0.1)


def test_reading_goes_on_behind_the_truncated_lsn_after_all_were_killed(tmp_path: Path) -> None:
    """Truncated at 100 with 200 applied: a snapshot at 200 must not hide 101 to 199."""

    async def body() -> None:
        async with log_stores(tmp_path, settings={"logservice.truncation_ms": 20}) as stores:
            await stores.start()
            client = await stores.client()
            lsns = await append_up_to(client, 90)
            for node in stores.nodes.values():
                await has_cut_point(node, 65)
            lsns += await append_up_to(client, 200)
            assert {node.oldest_segment() for node in stores.nodes.values()} == {1}
            await client.truncate(100)
            await has_snapshot_from(client, 200 - SNAPSHOT_ENTRIES)
            for node in stores.nodes.values():
                await frees_segments_before(node, 2)

            await stores.kill(*stores.first)
            await stores.start()
            kept = [lsn for lsn in lsns if lsn > 100]
            assert [record.lsn for record in await read_all(client, 101)] == kept
            with pytest.raises(LsnTruncated) as told:
                await client.read(100)
            assert told.value.first == 101
            assert told.value.next > 200
            assert "101 to" in told.value.message
            assert await client.get_truncated_lsn() == 100

            await client.truncate(200)
            for node in stores.nodes.values():
                await frees_segments_before(node, 4)
            lsn = await client.append(b"it goes on")
            found = await read_all(client, 201)
            assert [(record.lsn, bytes(record.payload)) for record in found] == [
                (lsn, b"it goes on")
            ]

    run(body())


async def has_cut_point(node: LogNode, lsn: int) -> None:
    """A store that is slow may have no snapshot for long, and then frees less."""
    deadline = time.monotonic() + WAIT_S_MAX
    while node.newest_snapshot(1) < lsn:
        assert time.monotonic() < deadline, f"store {node.store} takes no snapshot"
        await asyncio.sleep(0.02)


async def has_snapshot_from(client: AsyncLogClient, lsn: int) -> None:
    """Where the newest one stands is chance, but never a whole distance behind."""
    deadline = time.monotonic() + WAIT_S_MAX
    while max((await client.info()).snapshots, default=0) < lsn:
        assert time.monotonic() < deadline, "no snapshot is taken"
        await asyncio.sleep(0.02)


def test_a_truncation_that_stalls_is_alarmed_and_goes_on(tmp_path: Path) -> None:
    """Once no snapshot is low enough to cut at, once a user still requires what he truncates."""
    settings = {
        "logservice.truncation_ms": 300,
        "logservice.stall_alarm_ms": 600,
        "logservice.retained_alarm_bytes": 1 << 20,
        # None is thinned out, so that a gap is one from the beginning.
        "logservice.snapshots_kept": 1000,
    }

    async def body() -> None:
        async with log_stores(tmp_path, settings=settings) as stores:
            await stores.start()
            client = await stores.client()
            await client.append_many([bytes(1000)] * 300)
            await has_snapshot_from(client, 300 - SNAPSHOT_ENTRIES)
            await client.truncate(await below_a_snapshot(client))
            told = await stores.alarm("truncation-stalled: shard 1")
            assert "bytes" in told
            await client.truncate(await client.get_latest_lsn())
            await append_until(stores, client, "truncation-stalled", is_there=False)

            await client.set_required_lsn(await client.get_latest_lsn())
            told = await append_until(stores, client, "log-retained: shard 1", is_there=True)
            assert "let go of its required LSN" in told
            await client.set_required_lsn(0)
            await append_until(stores, client, "log-retained", is_there=False)

    run(body())


async def below_a_snapshot(client: AsyncLogClient) -> int:
    """The last entry of the widest gap between two snapshots: most of it can't be freed.

    Where snapshots stand is chance, but records that come all at once are many between two.
    """
    snapshots = (await client.info()).snapshots
    gaps = [(after - before, after) for before, after in itertools.pairwise((0, *snapshots))]
    width, after = max(gaps)
    assert width > 2 * SNAPSHOT_ENTRIES
    return after - 1


async def append_until(
    stores: LogProcesses, client: AsyncLogClient, alarm: str, *, is_there: bool
) -> str:
    """Append and truncate until an alarm is there, or gone."""
    deadline = time.monotonic() + WAIT_S_MAX
    while True:
        lsns = await client.append_many([bytes(10_000)] * 20)
        await client.truncate(lsns[0])
        await asyncio.sleep(0.1)
        found = [each.text for each in (await stores.keeper.describe()).alarms]
        told = [text for text in found if alarm in text]
        if bool(told) == is_there:
            return told[0] if told else ""
        assert time.monotonic() < deadline, f"{alarm}: {found}"


def test_memory_and_disk_stay_bounded_while_a_log_is_appended_and_truncated(
    tmp_path: Path,
) -> None:
    """Many times what stores keep in memory and on disk goes through them."""
    settings = {"raft.entry_cache_bytes_max": 1 << 20, "logservice.snapshot_entries": 50}

    async def body() -> None:
        async with log_stores(tmp_path, settings=settings) as stores:
            await stores.start()
            client = await stores.client()
            await append_and_truncate(client, 10 << 20)
            before = {store: node.rss_bytes() for store, node in stores.nodes.items()}
            await append_and_truncate(client, 48 << 20)
            for store, node in stores.nodes.items():
                grown = node.rss_bytes() - before[store]
                print(f"store {store}: {before[store] >> 20} MiB, grown by {grown >> 10} KiB")
                assert grown < 24 << 20
                await shrinks_below(node, 12 << 20)
            assert not (await stores.keeper.describe()).alarms

    run(body())


async def append_and_truncate(client: AsyncLogClient, count_bytes: int) -> None:
    record = bytes(32 << 10)
    for _ in range(count_bytes // (len(record) * 40)):
        lsns = await client.append_many([record] * 40)
        await client.truncate(lsns[-1])


def test_the_range_that_can_be_read_is_right_after_each_restart(tmp_path: Path) -> None:
    async def body() -> None:
        settings = {"logservice.truncation_ms": 20, "hakeeper.log_replicas": 1}
        async with log_stores(tmp_path, first=1, settings=settings) as stores:
            await stores.start()
            client = await stores.client()
            lsns: list[int] = []
            truncated = 0
            for cut in (0, 15, 40):
                lsns += await client.append_many([b"%d" % cut] * 20)
                if cut:
                    truncated = lsns[cut]
                    await client.truncate(truncated)
                await asyncio.sleep(0.1)
                await stores.kill(1)
                await stores.start(1)
                await check_range(client, truncated, lsns)
            with pytest.raises(LsnPastEnd):
                await client.truncate(lsns[-1] + 1000)

    run(body())


async def check_range(client: AsyncLogClient, truncated: int, lsns: list[int]) -> None:
    log = (await client.info()).log
    assert (log.first_lsn, log.truncated_lsn) == (truncated + 1, truncated)
    kept = [lsn for lsn in lsns if lsn > truncated]
    for lsn in range(log.first_lsn, log.next_lsn + 1):
        records, _ = await client.read(lsn)
        assert [record.lsn for record in records] == [each for each in kept if each >= lsn]
    for lsn in (0, log.first_lsn - 1, log.next_lsn + 1, log.next_lsn + 1000):
        with pytest.raises(LsnTruncated if lsn < log.first_lsn else LsnPastEnd) as told:
            await client.read(lsn)
        assert (told.value.first, told.value.next) == (log.first_lsn, log.next_lsn)
