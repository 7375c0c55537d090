"""Readers: from anywhere to the end or beyond it, parents before children, batches and tables."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow
import pytest

from raftwood.base.errors import InvalidConfiguration, InvalidInput, NotFound, Unavailable
from raftwood.base.position import Position
from raftwood.loghub.client.hub_client import AsyncLogHubClient
from raftwood.loghub.client.producer import ProducerSettings
from raftwood.loghub.client.pulled_batches import PulledBatch
from raftwood.loghub.client.reader import AsyncReader, ReaderSettings
from raftwood.loghub.errors import LogstoreNotFound, RecordsFreed, ShardNotFound
from raftwood.loghub.wire import encode_cursor
from tests.kits.loghub.hub import LOGSTORE, PROJECT, Hub, hub
from tests.kits.running import run, until


async def send(
    client: AsyncLogHubClient, first: int, last: int, *, key: str | None = "k", each: int = 1
) -> None:
    """Numbers from first to last, so many in a batch."""
    settings = ProducerSettings(batch_records_max=each)
    async with client.producer(PROJECT, LOGSTORE, settings=settings) as producer:
        await producer.send_many([{"n": str(number)} for number in range(first, last)], key=key)


async def numbers(reader: Any) -> list[int]:
    return [int(record.contents["n"]) async for record in reader]


async def writable(client: AsyncLogHubClient) -> list[int]:
    shards = await client.shards(PROJECT, LOGSTORE)
    return [shard.id for shard in shards if shard.status == "readwrite"]


def test_a_reader_begins_where_it_is_told_to(tmp_path: Path) -> None:
    async def body() -> None:
        async with hub(tmp_path, shards=1) as made:
            client = made.clients[0]
            await send(client, 0, 10)
            end = await client.cursor(PROJECT, LOGSTORE, shard=0, at="end")
            await send(client, 10, 15)
            everything = list(range(15))
            assert await numbers(client.reader(PROJECT, LOGSTORE)) == everything
            assert await numbers(client.reader(PROJECT, LOGSTORE, shard=0)) == everything
            assert await numbers(client.reader(PROJECT, LOGSTORE, start="end")) == []
            assert await numbers(client.reader(PROJECT, LOGSTORE, start=1000)) == everything
            later = client.reader(PROJECT, LOGSTORE, start={0: end})
            assert await numbers(later) == [10, 11, 12, 13, 14]
            with pytest.raises(ShardNotFound):
                await numbers(client.reader(PROJECT, LOGSTORE, shard=7))
            with pytest.raises(LogstoreNotFound):
                await numbers(client.reader(PROJECT, "missing"))

    run(body())


def test_a_reader_that_follows_hears_of_what_comes(tmp_path: Path) -> None:
    async def body() -> None:
        async with hub(tmp_path, shards=2) as made:
            client = made.clients[0]
            found: list[int] = []
            async with client.reader(PROJECT, LOGSTORE, follow=True) as reader:
                records = aiter(reader)
                for start in (0, 10, 20):
                    await send(client, start, start + 10, each=3)
                    async with asyncio.timeout(60):
                        found += [int((await anext(records)).contents["n"]) for _ in range(10)]
            assert found == list(range(30))

    run(body())


async def _resharded(client: AsyncLogHubClient) -> None:
    """A logstore whose one shard was split, then joined, then split again."""
    await send(client, 0, 20, each=3)
    await client.split_shard(PROJECT, LOGSTORE, shard=0)
    await send(client, 20, 40, each=3)
    await client.merge_shard(PROJECT, LOGSTORE, shard=1)
    await send(client, 40, 60, each=3)
    await client.split_shard(PROJECT, LOGSTORE, shard=3)
    await send(client, 60, 80, each=3)


@pytest.mark.parametrize("prefetch", [1, 8 << 20])
def test_children_are_read_after_their_parents(tmp_path: Path, prefetch: int) -> None:
    async def body() -> None:
        async with hub(tmp_path, shards=1) as made:
            client = made.clients[0]
            await _resharded(client)
            settings = ReaderSettings(prefetch_bytes_max=prefetch, pull_batches_max=2)
            reader = client.reader(PROJECT, LOGSTORE, settings=settings)
            assert await numbers(reader) == list(range(80))

    run(body())


def test_a_reader_that_follows_goes_on_with_the_children(tmp_path: Path) -> None:
    async def body() -> None:
        async with hub(tmp_path, shards=1) as made:
            client = made.clients[0]
            async with client.reader(PROJECT, LOGSTORE, follow=True, start="end") as reader:
                records = aiter(reader)
                first = asyncio.get_running_loop().create_task(_next_number(records))
                await until(lambda: bool(reader.positions))  # its end is before what is sent
                await _resharded(client)
                async with asyncio.timeout(60):
                    found = [await first] + [await _next_number(records) for _ in range(79)]
            assert found == list(range(80))

    run(body())


async def _next_number(records: AsyncIterator[Any]) -> int:
    return int((await anext(records)).contents["n"])


def test_the_children_of_a_deleted_shard_are_read_all_the_same(tmp_path: Path) -> None:
    async def body() -> None:
        async with hub(tmp_path, shards=1) as made:
            client = made.clients[0]
            await send(client, 0, 5)
            await client.split_shard(PROJECT, LOGSTORE, shard=0)
            await send(client, 5, 10)
            await client.delete_shard(PROJECT, LOGSTORE, shard=0)
            assert await numbers(client.reader(PROJECT, LOGSTORE)) == list(range(5, 10))

    run(body())


def test_grandchildren_wait_for_their_grandparent_also_where_the_parent_is_deleted(
    tmp_path: Path,
) -> None:
    async def body() -> None:
        async with hub(tmp_path, shards=1) as made:
            client = made.clients[0]
            await send(client, 0, 20)
            await client.split_shard(PROJECT, LOGSTORE, shard=0)
            await client.merge_shard(PROJECT, LOGSTORE, shard=1)
            await send(client, 20, 40)
            for shard in (1, 2):
                await client.delete_shard(PROJECT, LOGSTORE, shard=shard)
            settings = ReaderSettings(pull_batches_max=1)
            reader = client.reader(PROJECT, LOGSTORE, settings=settings)
            assert await numbers(reader) == list(range(40))

    run(body())


async def _impatient(reader: AsyncReader, steps: int) -> PulledBatch | None:
    """Give up after so many turns of the loop, and come again with one turn more."""
    for step in range(steps):
        asking = asyncio.ensure_future(reader.take_batch())
        for _ in range(step):
            await asyncio.sleep(0)
        if asking.done():
            return asking.result()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        if not asking.cancelled():
            return asking.result()
    return await reader.take_batch()


def test_who_gives_up_waiting_and_comes_again_misses_nothing(tmp_path: Path) -> None:
    async def body() -> None:
        async with hub(tmp_path, shards=1) as made:
            client = made.clients[0]
            await _resharded(client)
            found: list[int] = []
            async with client.reader(PROJECT, LOGSTORE, follow=True) as reader:
                while len(found) < 80:
                    async with asyncio.timeout(60):
                        batch = await _impatient(reader, 30)
                    assert batch is not None, f"it ended after {len(found)} records"
                    found += [int(each.contents["n"]) for each in batch.records()]
            assert found == list(range(80))

    run(body())


async def _truncate(made: Hub, number: int, before: Position) -> None:
    streams = made.gateway.streams
    (shard,) = [each for each in await streams.shards(PROJECT, LOGSTORE) if each.id == number]
    await streams.truncate(shard, before)


def test_a_reader_is_told_of_records_that_were_freed(tmp_path: Path) -> None:
    async def body() -> None:
        async with hub(tmp_path, shards=1) as made:
            client = made.clients[0]
            begin = await client.cursor(PROJECT, LOGSTORE, shard=0, at="begin")
            await send(client, 0, 5)
            middle = await client.cursor(PROJECT, LOGSTORE, shard=0, at="end")
            await send(client, 5, 10)
            await _truncate(made, 0, middle)
            with pytest.raises(RecordsFreed, match="truncated"):
                await numbers(client.reader(PROJECT, LOGSTORE, start={0: begin}))
            settings = ReaderSettings(skips_freed=True)
            reader = client.reader(PROJECT, LOGSTORE, start={0: begin}, settings=settings)
            assert await numbers(reader) == list(range(5, 10))
            assert reader.freed == 1
            assert await numbers(client.reader(PROJECT, LOGSTORE)) == list(range(5, 10))

    run(body())


def test_after_an_error_a_reader_says_it_again(tmp_path: Path) -> None:
    async def body() -> None:
        async with hub(tmp_path, shards=2) as made:
            client = made.clients[0]
            settings = ReaderSettings(timeout_ms=2_000)
            async with client.reader(PROJECT, LOGSTORE, follow=True, settings=settings) as reader:
                await send(client, 0, 1)
                records = aiter(reader)
                await anext(records)
                await made.kill(0)
                for _ in range(2):
                    with pytest.raises(Unavailable, match="gateway"):
                        async with asyncio.timeout(60):
                            await reader.next_batch()

    run(body())


def test_whoever_waits_for_a_record_may_give_up_and_come_again(tmp_path: Path) -> None:
    async def body() -> None:
        async with hub(tmp_path, shards=1) as made:
            client = made.clients[0]
            await _resharded(client)
            found: list[int] = []
            settings = ReaderSettings(prefetch_bytes_max=1, pull_batches_max=1)
            async with client.reader(PROJECT, LOGSTORE, follow=True, settings=settings) as reader:
                for attempt in range(10_000):
                    with suppress(TimeoutError):
                        async with asyncio.timeout(0.0005 * (attempt % 4)):
                            found.append(await _next_number(reader))
                    if len(found) == 80:
                        break
            assert found == list(range(80))

    run(body())


def test_a_reader_that_cannot_find_the_children_does_not_just_end(tmp_path: Path) -> None:
    async def body() -> None:
        async with hub(tmp_path, shards=1) as made:
            client = made.clients[0]
            settings = ReaderSettings(timeout_ms=2_000)
            async with client.reader(PROJECT, LOGSTORE, follow=True, settings=settings) as reader:
                await send(client, 0, 1)
                assert await _next_number(reader) == 0
                await client.delete_logstore(PROJECT, LOGSTORE)
                for _ in range(2):
                    with pytest.raises(NotFound):
                        await _next_number(reader)

    run(body())


def test_a_reader_goes_on_through_another_gateway(tmp_path: Path) -> None:
    async def body() -> None:
        async with hub(tmp_path, gateways=2, shards=2) as made:
            client = await made.client()
            await send(client, 0, 100, each=1)
            settings = ReaderSettings(pull_batches_max=1, prefetch_bytes_max=1)
            found = []
            async with client.reader(PROJECT, LOGSTORE, settings=settings) as reader:
                async for record in reader:
                    found.append(int(record.contents["n"]))
                    if len(found) % 30 == 0:
                        place = len(found) // 30 % 2
                        await made.kill(place)
                        await made.revive(place)
            assert found == list(range(100))

    run(body())


def test_what_is_read_becomes_tables(tmp_path: Path) -> None:
    async def body() -> None:
        async with hub(tmp_path, shards=1) as made:
            client = made.clients[0]
            async with client.producer(PROJECT, LOGSTORE) as producer:
                await (await producer.send({"a": "1", "b": "x"}, key="k", topic="t"))
                await (await producer.send({"a": b"\xff", "c": "y"}, key="k"))
                await asyncio.gather(
                    *await producer.send_arrow(pyarrow.table({"a": ["2"], "d": [5]}), key="k")
                )
            async with client.reader(PROJECT, LOGSTORE) as reader:
                table = await reader.to_arrow()
            assert table.drop_columns(["__time__", "__topic__", "__source__"]).to_pydict() == {
                "a": [b"1", b"\xff", b"2"],
                "b": ["x", None, None],
                "c": [None, "y", None],
                "d": [None, None, 5],
            }
            frame = await client.reader(PROJECT, LOGSTORE).to_pandas()
            assert list(frame["c"])[1] == "y"
            polars = await client.reader(PROJECT, LOGSTORE).to_polars()
            assert polars["d"].to_list() == [None, None, 5]
            assert (await client.reader(PROJECT, LOGSTORE, start="end").to_arrow()).num_rows == 0

    run(body())


def test_a_library_that_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> None:
        async with hub(tmp_path, shards=1) as made:
            monkeypatch.setitem(sys.modules, "polars", None)
            with pytest.raises(InvalidConfiguration, match="pip install polars"):
                await made.clients[0].reader(PROJECT, LOGSTORE).to_polars()

    run(body())


def test_a_table_is_bounded_and_the_next_one_goes_on(tmp_path: Path) -> None:
    async def body() -> None:
        async with hub(tmp_path, shards=1) as made:
            client = made.clients[0]
            await send(client, 0, 10, each=2)
            async with client.reader(PROJECT, LOGSTORE) as reader:
                sizes = [(await reader.to_arrow(records_max=3)).num_rows for _ in range(4)]
            assert sizes == [4, 4, 2, 0]
            with pytest.raises(InvalidInput, match="follow"):
                await client.reader(PROJECT, LOGSTORE, follow=True).to_arrow()

    run(body())


def test_positions_count_batches_that_were_dealt_with(tmp_path: Path) -> None:
    async def body() -> None:
        async with hub(tmp_path, shards=1) as made:
            client = made.clients[0]
            await send(client, 0, 10, each=5)
            async with client.reader(PROJECT, LOGSTORE) as reader:
                records = aiter(reader)
                found = [await _next_number(records) for _ in range(7)]
                positions = dict(reader.positions)
            assert found == list(range(7))
            again = client.reader(PROJECT, LOGSTORE, start=positions)
            assert await numbers(again) == list(range(5, 10))
            with pytest.raises(InvalidInput, match="group"):
                await again.commit()

    run(body())


def test_a_group_goes_on_where_it_has_committed(tmp_path: Path) -> None:
    async def body() -> None:
        async with hub(tmp_path, shards=1) as made:
            client = made.clients[0]
            await send(client, 0, 10, each=2)
            async with client.reader(PROJECT, LOGSTORE, group="g") as reader:
                records = aiter(reader)
                found = [await _next_number(records) for _ in range(5)]
                await reader.commit()
            assert found == list(range(5))
            assert [each.name for each in await client.groups(PROJECT, LOGSTORE)] == ["g"]
            # The third batch was begun only, so it comes again.
            async with client.reader(PROJECT, LOGSTORE, group="g") as reader:
                assert await numbers(reader) == list(range(4, 10))
                await reader.commit()
            await client.split_shard(PROJECT, LOGSTORE, shard=0)
            await send(client, 10, 15)
            # Where the group had never been, it misses nothing either.
            async with client.reader(PROJECT, LOGSTORE, group="g", start="end") as reader:
                assert await numbers(reader) == list(range(10, 15))
                await client.delete_shard(PROJECT, LOGSTORE, shard=0)
                await reader.commit()
            async with client.reader(PROJECT, LOGSTORE, group="g") as reader:
                assert await numbers(reader) == []

    run(body())


def test_a_group_is_registered_before_it_has_read_anything(tmp_path: Path) -> None:
    async def body() -> None:
        async with hub(tmp_path, shards=1) as made:
            client = made.clients[0]
            await send(client, 0, 5)
            end = await client.cursor(PROJECT, LOGSTORE, shard=0, at="end")
            async with client.reader(PROJECT, LOGSTORE, group="g", start="end") as reader:
                assert await numbers(reader) == []
            (detail,) = await client.describe(PROJECT, LOGSTORE)
            assert (detail.required, detail.required_by) == (str(end), "g")
            await client.set_checkpoint(PROJECT, LOGSTORE, "g", shard=0, position=4)
            (checkpoint,) = await client.checkpoints(PROJECT, LOGSTORE, "g")
            assert checkpoint.checkpoint == encode_cursor(4)
            await client.update_group(PROJECT, LOGSTORE, "g", timeout_s=20)
            (group,) = await client.groups(PROJECT, LOGSTORE)
            assert group.timeout_s == 20
            await client.delete_group(PROJECT, LOGSTORE, "g")
            await client.create_group(PROJECT, LOGSTORE, "h", is_ordered=False)
            assert [each.name for each in await client.groups(PROJECT, LOGSTORE)] == ["h"]

    run(body())
