"""Gateways that are late: what they do to a logstore after others have done it does no harm."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from raftwood.base.errors import Conflict, Unavailable
from raftwood.base.seams import Compare
from raftwood.loghub.errors import LogstoreNotFound
from raftwood.loghub.model import Logstore, ShardStatus
from raftwood.loghub.server.gateway import Gateway
from raftwood.loghub.server.metadata import logstore_key
from raftwood.loghub.settings import LogHubSettings
from tests.kits.loghub.streams import GatewayKit, gateway_kit, log_group, values_of
from tests.kits.running import run
from tests.unit.loghub.test_streams import read_all, stream

KEY = logstore_key("p", "s")


async def half_done(gateway: Gateway, begin: Callable[[], Any]) -> Logstore:
    """What is begun, and by a gateway that dies then; the logstore as it left it."""

    async def die(*_: object) -> None:
        raise asyncio.CancelledError

    settling = gateway.streams._settling
    settle, settling.settle = settling.settle, die  # type: ignore[method-assign,assignment]
    with pytest.raises(asyncio.CancelledError):
        await begin()
    settling.settle = settle  # type: ignore[method-assign]
    found = await gateway.metadata.fresh(KEY, Logstore)
    assert found is not None
    return found


def stale(gateway: Gateway, logstore: Logstore) -> None:
    """Let a gateway know no more than this."""
    gateway.metadata._copies[KEY] = (logstore, 1)


async def both(kit: GatewayKit) -> tuple[Gateway, Gateway]:
    one, two = await kit.gateway(), await kit.gateway()
    await stream(one, shards=1)
    return one, two


def test_a_gateway_that_knows_new_shards_as_being_made_looks_again(tmp_path: Path) -> None:
    async def body() -> None:
        async with gateway_kit(tmp_path) as kit:
            one, two = await both(kit)
            begun = await half_done(one, lambda: one.streams.split("p", "s", 0))
            await one.streams._settling.settle("p", "s")
            stale(two, begun)
            put = await two.streams.put("p", "s", log_group("x"), shard=1, producer="a", sequence=1)
            assert put.shard == 1
            stale(two, begun)
            pulled = await two.streams.pull("p", "s", 1, put.position)
            assert len(pulled.batches) == 1

    run(body())


def test_a_late_split_leaves_a_logstore_alone_that_was_made_anew(tmp_path: Path) -> None:
    async def body() -> None:
        async with gateway_kit(tmp_path) as kit:
            one, two = await both(kit)
            await one.streams.put("p", "s", log_group("old"), shard=0)
            begun = await half_done(one, lambda: one.streams.split("p", "s", 0))
            # One carries the split out, and is late: meanwhile the logstore is deleted, made anew
            # and split as well.
            await two.catalog.delete_logstore("p", "s")
            await two.catalog.create_logstore("p", "s", shard_count=1)
            again = await half_done(two, lambda: two.streams.split("p", "s", 0))
            for shard in begun.shards:
                await kit.logs.create(shard.log)
            await one.streams._settling._finish(KEY, begun)
            found = await two.metadata.fresh(KEY, Logstore)
            assert found == again
            shards = await two.streams._settling.settle("p", "s")
            assert shards is not None
            assert [each.status for each in shards.shards] == [
                ShardStatus.READONLY,
                ShardStatus.READWRITE,
                ShardStatus.READWRITE,
            ]

    run(body())


def test_a_late_creation_leaves_a_logstore_alone_that_was_made_anew(tmp_path: Path) -> None:
    async def body() -> None:
        async with gateway_kit(tmp_path) as kit:
            one, two = await both(kit)
            await one.catalog.delete_logstore("p", "s")
            begun = await half_done(
                one, lambda: one.catalog.create_logstore("p", "s", shard_count=2)
            )
            await two.catalog.delete_logstore("p", "s")
            again = await half_done(
                two, lambda: two.catalog.create_logstore("p", "s", shard_count=2)
            )
            await one.streams._settling._finish(KEY, begun)
            assert await two.metadata.fresh(KEY, Logstore) == again

    run(body())


def test_nothing_is_taken_for_a_logstore_that_was_deleted_and_made_anew(tmp_path: Path) -> None:
    """A removed log answers for a moment still, and a gateway may not have heard of its removal."""

    async def body() -> None:
        async with gateway_kit(tmp_path) as kit:
            one, two = await both(kit)
            known = await two.catalog.logstore("p", "s")
            lingering = await kit.logs.open(known.shards[0].log)
            await one.catalog.delete_logstore("p", "s")
            await one.catalog.create_logstore("p", "s", shard_count=1)
            kit.logs.logs[known.shards[0].log] = lingering  # type: ignore[attr-defined]
            lingering.is_removed = False  # type: ignore[attr-defined]
            stale(two, known)
            await two.streams.put("p", "s", log_group("x"), shard=0, producer="a", sequence=1)
            assert await read_all(one, 0) == ["x"]
            stale(two, known)
            await two.streams.put("p", "s", log_group("y"))
            assert await read_all(one, 0) == ["x", "y"]

    run(body())


def test_a_gateway_that_has_not_heard_of_a_new_logstore_of_the_same_name_reads_it(
    tmp_path: Path,
) -> None:
    async def body() -> None:
        async with gateway_kit(tmp_path) as kit:
            one, two = await both(kit)
            known = await two.catalog.logstore("p", "s")
            await one.catalog.delete_logstore("p", "s")
            await one.catalog.create_logstore("p", "s", shard_count=1)
            put = await one.streams.put("p", "s", log_group("new"), shard=0)
            stale(two, known)
            assert await two.streams.cursor("p", "s", 0, "begin") <= put.position
            stale(two, known)
            pulled = await two.streams.pull("p", "s", 0, put.position)
            assert values_of(bytes(pulled.batches[0].data[20:])) == ["new"]
            stale(two, known)
            result = await two.streams.put(
                "p", "s", log_group("newer"), shard=0, producer="a", sequence=1
            )
            assert result.position > put.position

    run(body())


def test_logs_that_a_late_gateway_made_for_nobody_are_removed(tmp_path: Path) -> None:
    async def body() -> None:
        async with gateway_kit(tmp_path, loghub=LogHubSettings(stray_log_ms=0)) as kit:
            one, two = await both(kit)
            begun = await half_done(one, lambda: one.streams.split("p", "s", 0))
            await two.catalog.delete_logstore("p", "s")
            assert await kit.logs.names("loghub-") == []
            for shard in begun.shards:
                await kit.logs.create(shard.log)
            await kit.logs.create("loghub-of-somebody-else")
            await two.catalog.create_logstore("p", "s", shard_count=2)
            again = await half_done(two, lambda: two.streams.split("p", "s", 1))
            await two.retention.work()
            names = await kit.logs.names("loghub-")
            left = {*names, "loghub-of-somebody-else"} - {each.log for each in again.shards}
            assert left == {"loghub-of-somebody-else"}
            assert len(names) == 1 + len(again.shards)

    run(body())


def test_logs_with_records_are_kept_also_where_no_logstore_is_known_that_has_them(
    tmp_path: Path,
) -> None:
    """Whatever happened to the metastore, it may be mended; records that are removed may not."""

    async def body() -> None:
        async with gateway_kit(tmp_path, loghub=LogHubSettings(stray_log_ms=0)) as kit:
            one, two = await both(kit)
            await one.streams.put("p", "s", log_group("x"))
            found = await kit.store.get(KEY)
            assert found is not None
            await kit.store.compare_and_set(KEY, None, version=found.version)
            await one.retention.work()
            await one.retention.work()
            version = await kit.store.compare_and_set(KEY, found.value, version=0)
            assert version
            assert await read_all(two, 0) == ["x"]

    run(body())


def test_a_late_delete_leaves_the_groups_of_a_new_logstore_alone(tmp_path: Path) -> None:
    async def body() -> None:
        async with gateway_kit(tmp_path) as kit:
            one, two = await both(kit)
            begun = await half_done(one, lambda: one.catalog.delete_logstore("p", "s"))
            found = await kit.store.get(KEY)
            assert begun.is_deleting
            assert found is not None
            version = found.version
            await two.streams._settling.settle("p", "s")
            await two.catalog.create_logstore("p", "s", shard_count=1)
            key = "loghub/retention/marks/p/s/0"
            await kit.store.compare_and_set(key, b"{}", version=0)
            await one.streams._settling._delete(Compare(KEY, version), begun)
            assert await kit.store.get(key) is not None
            assert await two.metadata.fresh(KEY, Logstore) is not None

    run(body())


def test_settling_ends_where_it_comes_to_nothing(tmp_path: Path) -> None:
    async def body() -> None:
        async with gateway_kit(tmp_path) as kit:
            one, two = await both(kit)
            await half_done(one, lambda: one.streams.split("p", "s", 0))

            async def nothing(*_: object) -> None:
                await asyncio.sleep(0)

            two.streams._settling._finish = nothing  # type: ignore[method-assign,assignment]
            with pytest.raises(Unavailable, match="try again"):
                async with asyncio.timeout(60):
                    await two.streams._settling.settle("p", "s")

    run(body())


def test_a_gateway_that_knows_a_logstore_as_being_made_takes_batches_for_it(tmp_path: Path) -> None:
    async def body() -> None:
        async with gateway_kit(tmp_path) as kit:
            one, two = await both(kit)
            await one.catalog.delete_logstore("p", "s")
            begun = await half_done(
                one, lambda: one.catalog.create_logstore("p", "s", shard_count=1)
            )
            await one.streams._settling.settle("p", "s")
            stale(two, begun)
            await two.streams.put("p", "s", log_group("x"))
            stale(two, begun)
            await two.streams.put("p", "s", log_group("y"), key="0" * 32)
            assert await read_all(one, 0) == ["x", "y"]

    run(body())


def test_a_project_is_not_deleted_while_a_logstore_is_made_in_it(tmp_path: Path) -> None:
    async def body() -> None:
        async with gateway_kit(tmp_path) as kit:
            one, two = await kit.gateway(), await kit.gateway()
            await one.catalog.create_project("p")
            logstores = one.catalog.logstores

            async def late(*arguments: Any, **options: Any) -> Any:
                answer = await logstores(*arguments, **options)
                one.catalog.logstores = logstores  # type: ignore[method-assign]
                await two.catalog.create_logstore("p", "s", shard_count=1)
                return answer

            one.catalog.logstores = late  # type: ignore[method-assign]
            with pytest.raises(Conflict, match="delete these first"):
                await one.catalog.delete_project("p")
            assert (await two.catalog.project("p")).name == "p"
            await two.catalog.delete_logstore("p", "s")
            await one.catalog.delete_project("p")

    run(body())


def test_a_split_of_a_logstore_that_is_deleted_meanwhile_says_so(tmp_path: Path) -> None:
    async def body() -> None:
        async with gateway_kit(tmp_path) as kit:
            one, two = await both(kit)
            create = kit.logs.create

            async def late(name: str) -> None:
                kit.logs.create = create  # type: ignore[method-assign]
                await two.catalog.delete_logstore("p", "s")
                await create(name)

            kit.logs.create = late  # type: ignore[method-assign]
            with pytest.raises(LogstoreNotFound):
                await one.streams.split("p", "s", 0)

    run(body())


def test_many_logstores_are_made_in_one_project_at_once(tmp_path: Path) -> None:
    async def body() -> None:
        async with gateway_kit(tmp_path) as kit:
            one, two = await both(kit)
            await asyncio.gather(
                *(
                    gateway.catalog.create_logstore("p", f"s-{number}", shard_count=1)
                    for number, gateway in enumerate([one, two] * 35)
                )
            )
            assert (await one.catalog.logstores("p"))[0] == 71

    run(body())
