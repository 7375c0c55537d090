"""Streams over a metastore and logs: put, pull, cursors, split, merge, delete; several gateways."""

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

from raftwood.base.errors import InvalidName
from raftwood.base.position import Position
from raftwood.loghub.batches import HEAD_BYTES
from raftwood.loghub.errors import (
    BatchTooLarge,
    InvalidCursor,
    InvalidParameter,
    LogstoreExists,
    LogstoreNotFound,
    ProjectExists,
    ProjectNotFound,
    ShardNotFound,
    ShardReadonly,
)
from raftwood.loghub.model import KEY_FIRST, Logstore, ShardStatus
from raftwood.loghub.server.gateway import Gateway
from raftwood.loghub.server.metadata import logstore_key
from raftwood.loghub.server.streams import PULL_BATCHES_MAX
from raftwood.loghub.shards import covers_all, hash_key
from raftwood.loghub.wire import (
    LogstoreOptions,
    TruncateShard,
    decode_pulled,
    encode_cursor,
    encode_pulled,
)
from tests.kits.loghub.streams import gateway_kit, log_group, values_of
from tests.kits.running import run


async def stream(gateway: Gateway, *, shards: int = 2) -> None:
    await gateway.catalog.create_project("p")
    await gateway.catalog.create_logstore("p", "s", shard_count=shards)


async def read_all(gateway: Gateway, shard: int) -> list[str]:
    position: int = await gateway.streams.cursor("p", "s", shard, "begin")
    end = await gateway.streams.cursor("p", "s", shard, "end")
    found: list[str] = []
    while position < end:
        pulled = await gateway.streams.pull("p", "s", shard, position, batches_max=2)
        for batch in pulled.batches:
            found += values_of(bytes(batch.data[HEAD_BYTES:]))
        assert pulled.next > position
        position = pulled.next
    return found


def test_what_is_put_is_pulled_as_it_came(tmp_path: Path) -> None:
    async def body() -> None:
        async with gateway_kit(tmp_path) as kit:
            gateway = await kit.gateway()
            await stream(gateway, shards=1)
            batch = log_group("a", "b")
            result = await gateway.streams.put("p", "s", batch)
            assert result.shard == 0
            pulled = await gateway.streams.pull("p", "s", 0, result.position)
            assert bytes(pulled.batches[0].data[HEAD_BYTES:]) == batch.body
            assert pulled.first == result.position
            assert not pulled.is_ended
            again = await gateway.streams.pull("p", "s", 0, pulled.next)
            assert (again.batches, again.next) == ([], pulled.next)

    run(body())


@pytest.mark.parametrize("key", [None, KEY_FIRST])
def test_a_gateway_that_saw_a_logstore_being_made_takes_batches(
    tmp_path: Path, key: str | None
) -> None:
    async def body() -> None:
        async with gateway_kit(tmp_path) as kit:
            gateway, late = await kit.gateway(), await kit.gateway()
            await stream(gateway)
            made = await late.metadata.fresh(logstore_key("p", "s"), Logstore)
            assert made is not None
            await late.metadata.close()  # it hears of nothing any more
            shards = tuple(replace(each, status=ShardStatus.CREATING) for each in made.shards)
            late.metadata._copies[logstore_key("p", "s")] = (replace(made, shards=shards), 1)
            await late.streams.put("p", "s", log_group("a"), key=key)

    run(body())


def test_a_key_goes_to_the_shard_of_its_range_and_others_in_turns(tmp_path: Path) -> None:
    async def body() -> None:
        async with gateway_kit(tmp_path) as kit:
            gateway = await kit.gateway()
            await stream(gateway, shards=4)
            shards = await gateway.streams.shards("p", "s")
            assert covers_all([(each.begin, each.end) for each in shards])
            for name in ("a", "b", "c", "d", "e"):
                key = hash_key(name.encode())
                (owner,) = [each.id for each in shards if each.begin <= key < each.end]
                for _ in range(3):
                    found = await gateway.streams.put("p", "s", log_group(name), key=key)
                    assert found.shard == owner
            last = await gateway.streams.put("p", "s", log_group("x"), key="F" * 32)
            assert last.shard == 3
            turns = {(await gateway.streams.put("p", "s", log_group("y"))).shard for _ in range(8)}
            assert turns == {0, 1, 2, 3}

    run(body())


def test_a_split_is_met_by_a_gateway_that_has_not_heard_of_it(tmp_path: Path) -> None:
    async def body() -> None:
        async with gateway_kit(tmp_path) as kit:
            one, two = await kit.gateway(), await kit.gateway()
            await stream(one, shards=1)
            await two.streams.put("p", "s", log_group("before"), key=hash_key(b"k"))
            stale = two.metadata.copy(
                "loghub/catalog/logstore/p/s", type(await one.streams.logstore("p", "s"))
            )
            affected = await one.streams.split("p", "s", 0)
            assert [each.status.value for each in affected] == [
                "readonly",
                "readwrite",
                "readwrite",
            ]
            assert stale is not None
            two.metadata._copies["loghub/catalog/logstore/p/s"] = (stale, 1)
            found = await two.streams.put("p", "s", log_group("after"), key=hash_key(b"k"))
            assert found.shard in (1, 2)
            assert await read_all(two, 0) == ["before"]
            assert await read_all(two, found.shard) == ["after"]
            ended = await one.streams.pull(
                "p", "s", 0, await one.streams.cursor("p", "s", 0, "end")
            )
            assert ended.is_ended

    run(body())


async def _read_to_end(gateway: Gateway) -> None:
    start = await gateway.streams.cursor("p", "s", 0, "end")
    while not (pulled := await gateway.streams.pull("p", "s", 0, start, wait_ms=60_000)).is_ended:
        start = pulled.next


def test_who_waits_for_more_of_a_shard_hears_at_once_that_it_was_split(tmp_path: Path) -> None:
    async def body() -> None:
        async with gateway_kit(tmp_path) as kit:
            one, two = await kit.gateway(), await kit.gateway()
            await stream(one, shards=1)
            waiting = [asyncio.ensure_future(_read_to_end(each)) for each in (one, two)]
            await asyncio.sleep(0.05)
            await one.streams.split("p", "s", 0)
            async with asyncio.timeout(60):
                await asyncio.gather(*waiting)

    run(body())


def test_a_named_shard_takes_a_sequence_once_also_after_its_end(tmp_path: Path) -> None:
    async def body() -> None:
        async with gateway_kit(tmp_path) as kit:
            gateway = await kit.gateway()
            await stream(gateway, shards=1)
            put = gateway.streams.put
            first = await put("p", "s", log_group("a"), shard=0, producer="x", sequence=1)
            await gateway.streams.split("p", "s", 0)
            again = await put("p", "s", log_group("a"), shard=0, producer="x", sequence=1)
            assert again == first
            for _ in range(2):
                with pytest.raises(ShardReadonly):
                    await put("p", "s", log_group("b"), shard=0, producer="x", sequence=2)
            assert await read_all(gateway, 0) == ["a"]

    run(body())


def test_shards_are_split_merged_and_deleted(tmp_path: Path) -> None:
    async def body() -> None:
        async with gateway_kit(tmp_path) as kit:
            gateway = await kit.gateway()
            await stream(gateway, shards=1)
            streams = gateway.streams
            with pytest.raises(InvalidParameter):
                await streams.split("p", "s", 0, "f" * 32)
            with pytest.raises(InvalidParameter):
                await streams.merge("p", "s", 0)
            with pytest.raises(InvalidParameter):
                await streams.delete_shard("p", "s", 0)
            await streams.split("p", "s", 0, "3" + "0" * 31)
            with pytest.raises(ShardReadonly):
                await streams.split("p", "s", 0)
            merged = await streams.merge("p", "s", 1)
            assert [each.id for each in merged] == [1, 2, 3]
            assert merged[-1].parents == (1, 2)
            assert merged[-1].begin == "0" * 32
            assert merged[-1].end == "f" * 32
            await streams.delete_shard("p", "s", 0)
            with pytest.raises(ShardNotFound):
                await streams.pull("p", "s", 0, 0)
            assert [each.id for each in await streams.shards("p", "s")] == [1, 2, 3]
            assert len(await kit.logs.names("loghub-")) == 3

    run(body())


async def half_done(gateway: Gateway) -> None:
    """A split whose gateway died after it had said what is to happen."""

    class Died(Exception):
        pass

    async def die(*_: object) -> None:
        raise Died

    settling = gateway.streams._settling
    settle, settling.settle = settling.settle, die  # type: ignore[method-assign,assignment]
    with pytest.raises(Died):
        await gateway.streams.split("p", "s", 0)
    settling.settle = settle  # type: ignore[method-assign]


def test_what_a_gateway_left_half_done_another_finishes(tmp_path: Path) -> None:
    async def body() -> None:
        async with gateway_kit(tmp_path) as kit:
            one, two = await kit.gateway(), await kit.gateway()
            await stream(one, shards=1)
            await half_done(one)
            assert [each.id for each in await two.streams.shards("p", "s")] == [0]
            put = await two.streams.put("p", "s", log_group("still goes"))
            assert put.shard == 0
            await two.retention.work()
            shards = await two.streams.shards("p", "s")
            assert [each.status for each in shards] == [
                ShardStatus.READONLY,
                ShardStatus.READWRITE,
                ShardStatus.READWRITE,
            ]
            assert await read_all(two, 0) == ["still goes"]

    run(body())


def test_a_batch_that_waits_for_long_is_stored_however_many_overtake_it(tmp_path: Path) -> None:
    """A log knows the last sequences of a producer alone, and refuses what is far behind."""

    async def body() -> None:
        async with gateway_kit(tmp_path) as kit:
            gateway = await kit.gateway()
            await stream(gateway, shards=1)
            (shard,) = await gateway.streams.shards("p", "s")
            log = kit.logs.logs[shard.log]  # type: ignore[attr-defined]
            append, may_go_on = log.append, asyncio.Event()
            tops: dict[bytes, int] = {}

            async def late(batch: Sequence[bytes], *, producer: bytes, sequence: int) -> int:
                if b"first" in b"".join(batch):
                    await may_go_on.wait()
                tops[producer] = max(sequence, tops.get(producer, 0))
                assert sequence > tops[producer] - 1024
                return int(await append(batch, producer=producer, sequence=sequence))

            log.append = late
            waiting = asyncio.create_task(gateway.streams.put("p", "s", log_group("first")))
            for _ in range(1200):
                await gateway.streams.put("p", "s", log_group("x"), shard=0)
            may_go_on.set()
            await waiting
            assert len(tops) == 2

    run(body())


def test_a_pull_is_bounded_whatever_is_asked_for(tmp_path: Path) -> None:
    """The answer's head lists all batches, and is bounded itself."""

    async def body() -> None:
        async with gateway_kit(tmp_path) as kit:
            gateway = await kit.gateway()
            await stream(gateway, shards=1)
            (shard,) = await gateway.streams.shards("p", "s")
            log = kit.logs.logs[shard.log]  # type: ignore[attr-defined]
            for number in range(PULL_BATCHES_MAX + 5):
                await log.append([b"x" * HEAD_BYTES], producer=b"a", sequence=number)
            begin = await gateway.streams.cursor("p", "s", 0, "begin")
            pulled = await gateway.streams.pull("p", "s", 0, begin, batches_max=1 << 60)
            assert len(pulled.batches) == PULL_BATCHES_MAX
            assert decode_pulled(b"".join(encode_pulled(pulled))) == pulled
            rest = await gateway.streams.pull("p", "s", 0, pulled.next)
            assert len(rest.batches) == 5

    run(body())


def test_cursors_are_found_by_time(tmp_path: Path) -> None:
    async def body() -> None:
        async with gateway_kit(tmp_path) as kit:
            gateway = await kit.gateway()
            await stream(gateway, shards=1)
            streams = gateway.streams
            now, positions = streams.now_ms(), []
            for number in range(20):
                streams.now_ms = lambda number=number: now + number * 1000  # type: ignore[method-assign,misc]
                positions.append((await streams.put("p", "s", log_group(str(number)))).position)
            streams.now_ms = lambda: now + 60_000  # type: ignore[method-assign]
            for number in range(1, 20):
                at = (now + number * 1000) // 1000
                found = await streams.cursor("p", "s", 0, at)
                pulled = await streams.pull("p", "s", 0, found, batches_max=1)
                assert positions.index(pulled.batches[0].position) in (number - 1, number)
                assert await streams.cursor_time("p", "s", 0, found) == at
            assert await streams.cursor("p", "s", 0, 0) == await streams.cursor(
                "p", "s", 0, "begin"
            )
            end = await streams.cursor("p", "s", 0, "end")
            assert await streams.cursor("p", "s", 0, now // 1000 + 1000) == end

    run(body())


def test_a_pull_waits_for_what_comes(tmp_path: Path) -> None:
    async def body() -> None:
        async with gateway_kit(tmp_path) as kit:
            gateway = await kit.gateway()
            await stream(gateway, shards=1)
            end = await gateway.streams.cursor("p", "s", 0, "end")
            pull = asyncio.create_task(gateway.streams.pull("p", "s", 0, end, wait_ms=10_000))
            await asyncio.sleep(0.02)
            await gateway.streams.put("p", "s", log_group("late"))
            assert len((await pull).batches) == 1
            assert (await gateway.streams.pull("p", "s", 0, end, end=end)).batches == []

    run(body())


def test_bad_requests_are_told_what_is_wrong(tmp_path: Path) -> None:
    async def body() -> None:
        async with gateway_kit(tmp_path) as kit:
            gateway = await kit.gateway()
            await stream(gateway)
            catalog, streams = gateway.catalog, gateway.streams
            with pytest.raises(ProjectExists):
                await catalog.create_project("p")
            with pytest.raises(LogstoreExists):
                await catalog.create_logstore("p", "s")
            with pytest.raises(InvalidName):
                await catalog.create_logstore("p", "../s")
            with pytest.raises(ProjectNotFound):
                await catalog.create_logstore("q", "s")
            with pytest.raises(LogstoreNotFound):
                await streams.put("p", "t", log_group("x"))
            with pytest.raises(ShardNotFound):
                await streams.pull("p", "s", 9, 0)
            with pytest.raises(InvalidCursor):
                await streams.pull("p", "s", 0, 1 << 100)
            with pytest.raises(InvalidParameter):
                await catalog.update_logstore("p", "s", LogstoreOptions(ttl_days=-1))
            huge = log_group("x" * (5 << 20))
            with pytest.raises(BatchTooLarge):
                await streams.put("p", "s", huge)

    run(body())


def test_a_deleted_logstore_takes_its_logs_with_it_and_may_be_made_anew(tmp_path: Path) -> None:
    async def body() -> None:
        async with gateway_kit(tmp_path) as kit:
            one, two = await kit.gateway(), await kit.gateway()
            await stream(one)
            await two.streams.put("p", "s", log_group("old"))
            await one.catalog.delete_logstore("p", "s")
            assert await kit.logs.names("loghub-") == []
            await one.catalog.create_logstore("p", "s", shard_count=1)
            await two.streams.put("p", "s", log_group("new"), key="0" * 32)
            assert await read_all(two, 0) == ["new"]
            await one.catalog.delete_logstore("p", "s")
            with pytest.raises(LogstoreNotFound):
                await two.streams.put("p", "s", log_group("x"))
            await one.catalog.delete_project("p")
            with pytest.raises(ProjectNotFound):
                await two.catalog.project("p")

    run(body())


def test_a_shard_is_truncated_up_to_what_a_registered_reader_needs(tmp_path: Path) -> None:
    async def body() -> None:
        async with gateway_kit(tmp_path) as kit:
            gateway = await kit.gateway()
            admin = await kit.admin()
            await stream(gateway, shards=1)
            places = [
                (await gateway.streams.put("p", "s", log_group(str(number)))).position
                for number in range(5)
            ]
            ask = partial(TruncateShard, project="p", logstore="s", shard=0)
            assert await gateway.control(admin, ask(before=str(places[2]))) == str(places[2])
            assert await read_all(gateway, 0) == ["2", "3", "4"]
            assert await gateway.control(admin, ask(before=str(places[1]))) == str(places[2])
            await gateway.groups.create("p", "s", "slow", timeout_s=60, is_ordered=True)
            await gateway.groups.set_checkpoint(
                "p",
                "s",
                "slow",
                shard=0,
                checkpoint=encode_cursor(places[3]),
                consumer="c",
                is_forced=True,
            )
            assert await gateway.control(admin, ask(before=str(places[4]))) == str(places[3])
            with pytest.raises(InvalidCursor):
                await gateway.streams.truncate_shard("p", "s", 0, Position(1 << 90))

    run(body())
