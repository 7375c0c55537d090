"""Consumer groups of a gateway: what each call does, over a metastore in a folder."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from raftwood.base.environment import SystemClock
from raftwood.base.errors import InvalidName
from raftwood.loghub.errors import (
    ConsumerGroupExists,
    ConsumerGroupNotFound,
    ConsumerMismatch,
    InvalidCursor,
    InvalidParameter,
    LogstoreNotFound,
    ShardNotFound,
)
from raftwood.loghub.server import consumer_groups
from raftwood.loghub.server import consumer_groups as consumer_groups_module
from raftwood.loghub.server.consumer_groups import ConsumerGroups
from raftwood.loghub.server.gateway import Gateway
from raftwood.loghub.server.retention import RequiredPosition
from raftwood.loghub.wire import ConsumerGroupView, GroupCheckpoint, encode_cursor
from tests.kits.loghub.streams import GatewayKit, gateway_kit, log_group

Scenario = Callable[["Kit"], Awaitable[None]]


class Kit:
    """Two gateways, a logstore `p/s` and its groups."""

    def __init__(self, kit: GatewayKit, first: Gateway, second: Gateway) -> None:
        self.kit = kit
        self.first, self.second = first, second
        self.groups = first.groups

    async def create(self, group: str = "g", **given: Any) -> None:
        settings = {"timeout_s": 60, "is_ordered": False, **given}
        await self.groups.create("p", "s", group, **settings)

    async def beat(
        self, consumer: str, *held: int, by: Gateway | None = None, group: str = "g"
    ) -> list[int]:
        gateway = by or self.first
        return await gateway.groups.heartbeat("p", "s", group, consumer=consumer, held=held)

    async def check(
        self, shard: int, position: int | None, consumer: str = "a", *, is_forced: bool = True
    ) -> None:
        await self.groups.set_checkpoint(
            "p",
            "s",
            "g",
            shard=shard,
            checkpoint="" if position is None else encode_cursor(position),
            consumer=consumer,
            is_forced=is_forced,
        )

    async def keys(self) -> list[str]:
        found = await self.kit.store.range(prefix="loghub/")
        return [each.key for each in found.entries if "/catalog/" not in each.key]

    async def end(self, shard: int) -> int:
        found = await self.first.streams.shards("p", "s")
        return int(next(each.ends_at or 0 for each in found if each.id == shard))


def run(folder: Path, scenario: Scenario, *, shards: int = 4) -> None:
    async def main() -> None:
        async with gateway_kit(folder) as kit:
            first, second = await kit.gateway(), await kit.gateway()
            await first.catalog.create_project("p")
            await first.catalog.create_logstore("p", "s", shard_count=shards)
            await scenario(Kit(kit, first, second))

    asyncio.run(main())


def test_a_group_is_made_listed_changed_and_deleted(tmp_path: Path) -> None:
    async def scenario(kit: Kit) -> None:
        await kit.create("h", is_ordered=True)
        await kit.create("g", timeout_s=5)
        found = await kit.second.groups.groups("p", "s")
        assert found == [
            ConsumerGroupView(name="g", timeout_s=5, is_ordered=False),
            ConsumerGroupView(name="h", timeout_s=60, is_ordered=True),
        ]
        with pytest.raises(ConsumerGroupExists):
            await kit.create("g")
        await kit.groups.update("p", "s", "g", timeout_s=9, is_ordered=None)
        await kit.groups.update("p", "s", "g", timeout_s=None, is_ordered=True)
        await kit.groups.delete("p", "s", "h")
        found = await kit.groups.groups("p", "s")
        assert found == [ConsumerGroupView(name="g", timeout_s=9, is_ordered=True)]

    run(tmp_path, scenario)


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    async def scenario(kit: Kit) -> None:
        with pytest.raises(ConsumerGroupNotFound, match="no consumer group g in logstore s"):
            await kit.beat("a")
        with pytest.raises(ConsumerGroupNotFound):
            await kit.groups.checkpoints("p", "s", "g", shard=None)
        with pytest.raises(ConsumerGroupNotFound):
            await kit.groups.delete("p", "s", "g")
        with pytest.raises(LogstoreNotFound):
            await kit.groups.heartbeat("p", "other", "g", consumer="a", held=[])
        with pytest.raises(LogstoreNotFound):
            await kit.groups.create("p", "other", "g", timeout_s=60, is_ordered=False)
        await kit.create()
        with pytest.raises(ShardNotFound):
            await kit.groups.checkpoints("p", "s", "g", shard=9)
        with pytest.raises(ShardNotFound):
            await kit.check(9, 3)

    run(tmp_path, scenario)


def test_names_and_limits_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_groups, "GROUPS_MAX", 2)
    monkeypatch.setattr(consumer_groups_module, "MEMBERS_MAX", 2)

    async def scenario(kit: Kit) -> None:
        with pytest.raises(InvalidName):
            await kit.create("a/b")
        for timeout_s in (0, 6 * 3600 + 1):
            with pytest.raises(InvalidParameter):
                await kit.create(timeout_s=timeout_s)
        await kit.create("g")
        await kit.create("h")
        with pytest.raises(InvalidParameter, match="2 consumer groups already"):
            await kit.create("i")
        for consumer in ("", "x" * 101, "ü" * 20):
            with pytest.raises(InvalidParameter):
                await kit.beat(consumer)
        await kit.beat("host:1/2 ü")
        await kit.beat("b")
        with pytest.raises(InvalidParameter, match="2 consumers already"):
            await kit.beat("c")

    run(tmp_path, scenario)


def test_a_shard_moves_only_once_its_holder_has_stopped(tmp_path: Path) -> None:
    async def scenario(kit: Kit) -> None:
        await kit.create()
        assert await kit.beat("a") == [0, 1, 2, 3]
        assert await kit.beat("b", by=kit.second) == []
        assert await kit.beat("a", 0, 1, 2, 3) == [0, 1]
        assert await kit.beat("b", by=kit.second) == []
        assert await kit.beat("a", 0, 1, 2) == [0, 1]
        assert await kit.beat("b", by=kit.second) == [3]
        assert await kit.beat("a", 0, 1) == [0, 1]
        assert await kit.beat("b", 3) == [2, 3]
        assert await kit.beat("a", by=kit.second) == [0, 1], "it restarted"

    run(tmp_path, scenario)


def test_a_consumer_that_is_silent_loses_its_shards(tmp_path: Path) -> None:
    async def scenario(kit: Kit) -> None:
        await kit.create(timeout_s=1)
        assert await kit.beat("a") == [0, 1, 2, 3]
        seen: list[int] = []
        while not seen:
            seen = await kit.beat("b", by=kit.second)
            await asyncio.sleep(0.1)
        assert seen == [0, 1, 2, 3]
        assert await kit.beat("a", 0, 1, 2, 3) == []

    run(tmp_path, scenario)


def test_heartbeats_keep_a_consumer_alive_through_any_gateway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    skipped_ns = 0
    monotonic_ns = SystemClock.monotonic_ns
    monkeypatch.setattr(SystemClock, "monotonic_ns", lambda own: monotonic_ns(own) + skipped_ns)

    async def scenario(kit: Kit) -> None:
        nonlocal skipped_ns
        await kit.create(timeout_s=600)
        assert await kit.beat("a") == [0, 1, 2, 3]
        for turn in range(15):
            gateway = (kit.first, kit.second)[turn % 2]
            assert await kit.beat("a", 0, 1, 2, 3, by=gateway) == [0, 1, 2, 3]
            skipped_ns += 60 * 10**9
            await asyncio.sleep(0.01)
        skipped_ns += 700 * 10**9
        while (await kit.kit.store.status()).leases:  # noqa: ASYNC110  nobody tells
            await asyncio.sleep(0.01)

    run(tmp_path, scenario)


def test_a_new_timeout_holds_for_those_who_are_there(tmp_path: Path) -> None:
    async def scenario(kit: Kit) -> None:
        await kit.create(timeout_s=3600)
        await kit.beat("a")
        await kit.beat("b")
        await kit.groups.update("p", "s", "g", timeout_s=1, is_ordered=None)
        await kit.beat("a", 0, 1, 2, 3)
        await kit.beat("b", by=kit.second)
        assert (await kit.kit.store.status()).leases == 2
        while (await kit.kit.store.status()).leases:  # noqa: ASYNC110  nobody tells
            await asyncio.sleep(0.1)

    run(tmp_path, scenario)


def test_a_heartbeat_that_changes_nothing_writes_nothing(tmp_path: Path) -> None:
    async def scenario(kit: Kit) -> None:
        await kit.create()
        held = await kit.beat("a")
        version = (await kit.kit.store.status()).version
        for _ in range(5):
            assert await kit.beat("a", *held) == held
        assert (await kit.kit.store.status()).version == version

    run(tmp_path, scenario)


def test_many_that_join_at_once_share_the_shards(tmp_path: Path) -> None:
    async def scenario(kit: Kit) -> None:
        await kit.create()
        names = [f"c{number:02}" for number in range(20)]
        held = {name: list[int]() for name in names}
        for _ in range(4):
            answers = await asyncio.gather(
                *(
                    kit.beat(name, *held[name], by=(kit.first, kit.second)[place % 2])
                    for place, name in enumerate(names)
                )
            )
            held = dict(zip(names, answers, strict=True))
        assert sorted(shard for each in held.values() for shard in each) == list(range(8))
        assert max(len(each) for each in held.values()) == 1

    run(tmp_path, scenario, shards=8)


def test_a_checkpoint_is_taken_of_the_holder_alone(tmp_path: Path) -> None:
    async def scenario(kit: Kit) -> None:
        await kit.create()
        await kit.beat("a")
        await kit.beat("b")
        await kit.check(3, 5, "a", is_forced=False)
        with pytest.raises(ConsumerMismatch, match="does not have shard 3"):
            await kit.check(3, 7, "b", is_forced=False)
        await kit.beat("a", 0, 1)
        with pytest.raises(ConsumerMismatch):
            await kit.check(3, 7, "a", is_forced=False)
        await kit.check(3, 9, "b", is_forced=False)
        (found,) = await kit.groups.checkpoints("p", "s", "g", shard=3)
        assert (found.checkpoint, found.consumer) == (encode_cursor(9), "b")
        await kit.check(3, 4, "other", is_forced=True)
        (found,) = await kit.second.groups.checkpoints("p", "s", "g", shard=3)
        assert (found.checkpoint, found.consumer) == (encode_cursor(4), "other")
        assert found.updated_us > 1_600_000_000_000_000

    run(tmp_path, scenario)


def test_a_shard_that_was_never_read_has_an_empty_checkpoint(tmp_path: Path) -> None:
    async def scenario(kit: Kit) -> None:
        await kit.create()
        fresh = [
            GroupCheckpoint(shard=number, checkpoint="", updated_us=0, consumer="")
            for number in range(4)
        ]
        assert await kit.groups.checkpoints("p", "s", "g", shard=None) == fresh
        assert await kit.groups.checkpoints("p", "s", "g", shard=2) == fresh[2:3]
        await kit.check(1, 5)
        found = await kit.groups.checkpoints("p", "s", "g", shard=None)
        assert [each.checkpoint for each in found] == ["", encode_cursor(5), "", ""]
        await kit.check(1, None)
        (found_one,) = await kit.groups.checkpoints("p", "s", "g", shard=1)
        assert found_one.checkpoint == ""

    run(tmp_path, scenario)


def test_a_checkpoint_is_a_cursor_of_its_shard(tmp_path: Path) -> None:
    async def scenario(kit: Kit) -> None:
        await kit.create()
        with pytest.raises(InvalidCursor):
            await kit.groups.set_checkpoint(
                *("p", "s", "g"), shard=0, checkpoint="no cursor", consumer="a", is_forced=True
            )
        await kit.first.streams.split("p", "s", 0, None)
        end = await kit.end(0)
        await kit.check(0, end)
        with pytest.raises(InvalidCursor, match="ends at"):
            await kit.check(0, end + 1)

    run(tmp_path, scenario)


def test_children_wait_until_their_parent_was_read(tmp_path: Path) -> None:
    async def scenario(kit: Kit) -> None:
        await kit.create(is_ordered=True)
        await kit.first.streams.put("p", "s", log_group("one"), shard=0)
        assert await kit.beat("a") == [0]
        await kit.first.streams.split("p", "s", 0, None)
        assert await kit.beat("a", 0) == [0]
        await kit.check(0, await kit.end(0))
        assert await kit.beat("a", 0, by=kit.second) == [1, 2]
        await kit.check(0, 3)
        assert await kit.beat("a", 1, 2) == [0, 1, 2], "somebody wants to read it again"
        await kit.first.streams.delete_shard("p", "s", 0)
        assert "loghub/checkpoint/p/s/g/0" in await kit.keys()
        assert await kit.beat("a", 0, 1, 2) == [1, 2]
        assert await kit.beat("a", 1, 2) == [1, 2]
        assert "loghub/checkpoint/p/s/g/0" not in await kit.keys()

    run(tmp_path, scenario, shards=1)


def test_nobody_waits_for_a_shard_with_nothing_left_to_read(tmp_path: Path) -> None:
    async def scenario(kit: Kit) -> None:
        await kit.create(is_ordered=True)
        await kit.first.streams.split("p", "s", 0, None)
        assert await kit.beat("a") == [1, 2, 3], "0 is empty; 1 is the other one of the first two"
        await kit.first.streams.put("p", "s", log_group("one"), shard=1)
        await kit.first.streams.split("p", "s", 1, None)
        assert await kit.beat("a", 1, 2, 3) == [1, 2, 3]
        shards = await kit.first.streams.shards("p", "s")
        await kit.first.streams.truncate(shards[1], shards[1].ends_at or 0)  # type: ignore[arg-type]
        assert await kit.beat("a", 1, 2, 3, by=kit.second) == [2, 3, 4, 5]

    run(tmp_path, scenario, shards=2)


def test_retention_learns_what_the_slowest_group_needs(tmp_path: Path) -> None:
    async def scenario(kit: Kit) -> None:
        required = kit.groups.required_positions
        assert await required("p", "s") == {}
        await kit.create("g")
        await kit.check(0, 7)
        assert await required("p", "s") == {
            0: RequiredPosition(7, "g"),
            1: RequiredPosition(0, "g"),
        }
        await kit.create("h")
        assert await required("p", "s") == {
            0: RequiredPosition(0, "h"),
            1: RequiredPosition(0, "g"),
        }
        await kit.groups.set_checkpoint(
            *("p", "s", "h"),
            shard=0,
            checkpoint=encode_cursor(5),
            consumer="",
            is_forced=True,
        )
        assert (await required("p", "s"))[0] == RequiredPosition(5, "h")
        await kit.groups.delete("p", "s", "h")
        assert (await required("p", "s"))[0] == RequiredPosition(7, "g")

    run(tmp_path, scenario, shards=2)


def test_nothing_is_left_of_a_deleted_group(tmp_path: Path) -> None:
    async def scenario(kit: Kit) -> None:
        await kit.create("g")
        await kit.create("g-2")
        await kit.beat("a")
        await kit.beat("a", group="g-2")
        await kit.check(1, 5)
        await kit.groups.delete("p", "s", "g")
        assert all("/g-2/" in key for key in await kit.keys())
        with pytest.raises(ConsumerGroupNotFound):
            await kit.beat("a", 1)
        await kit.create("g")
        assert await kit.beat("a", 1) == [0, 1, 2, 3]
        (found,) = await kit.groups.checkpoints("p", "s", "g", shard=1)
        assert found.checkpoint == ""

    run(tmp_path, scenario)


def test_a_deletion_that_was_cut_short_is_finished_by_who_makes_the_group_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(*_: object) -> None:
        """The gateway ends here."""

    async def scenario(kit: Kit) -> None:
        await kit.create("g")
        await kit.beat("a")
        await kit.check(1, 5)
        with monkeypatch.context() as patched:
            patched.setattr(ConsumerGroups, "_remove", nothing)
            await kit.groups.delete("p", "s", "g")
        assert await kit.groups.groups("p", "s") == []
        with pytest.raises(ConsumerGroupNotFound):
            await kit.check(1, 6)
        await kit.create("g")
        (found,) = await kit.groups.checkpoints("p", "s", "g", shard=1)
        assert found.checkpoint == ""

    run(tmp_path, scenario)


def test_nothing_is_left_of_the_groups_of_a_deleted_logstore(tmp_path: Path) -> None:
    async def scenario(kit: Kit) -> None:
        for number in range(3):
            await kit.create(f"g{number}")
        await kit.create("g")
        await kit.beat("a")
        for shard in range(60):
            await kit.check(shard, 5)
        await kit.first.catalog.delete_logstore("p", "s")
        assert await kit.keys() == []
        with pytest.raises(LogstoreNotFound):
            await kit.create("g")

    run(tmp_path, scenario, shards=60)


def test_who_comes_back_is_not_robbed_of_what_it_is_told(tmp_path: Path) -> None:
    """Another gateway found it dead, and takes its shards away as it is told of them again."""

    async def scenario(kit: Kit) -> None:
        await kit.create(timeout_s=1)
        assert await kit.beat("a") == [0]
        for _ in range(200):
            if not (await kit.kit.store.range(prefix="loghub/group/p/s/g/member/")).entries:
                break  # its lease has ended
            await asyncio.sleep(0.05)
        has_read, may_go_on = asyncio.Event(), asyncio.Event()
        changed = ConsumerGroups._changed

        async def slow(groups: ConsumerGroups, *given: Any) -> Any:
            if groups is kit.second.groups and not has_read.is_set():
                has_read.set()
                await may_go_on.wait()
            return await changed(groups, *given)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(ConsumerGroups, "_changed", slow)
            robbing = asyncio.create_task(kit.beat("b", by=kit.second))
            await has_read.wait()
            assert await kit.beat("a", 0) == [0]
            may_go_on.set()
            assert await robbing == []

    run(tmp_path, scenario, shards=1)


def test_a_late_deletion_leaves_a_group_alone_that_was_made_anew(tmp_path: Path) -> None:
    async def scenario(kit: Kit) -> None:
        await kit.create()
        await kit.check(0, 3)
        store, remove_keys = kit.kit.store, kit.groups._remove_keys

        async def late(*arguments: Any) -> None:
            kit.groups._remove_keys = remove_keys  # type: ignore[method-assign]
            await kit.second.groups.create("p", "s", "g", timeout_s=60, is_ordered=False)
            await kit.check(0, 5)
            await remove_keys(*arguments)

        kit.groups._remove_keys = late  # type: ignore[assignment,method-assign]
        await kit.groups.delete("p", "s", "g")
        (found,) = await kit.groups.checkpoints("p", "s", "g", shard=0)
        assert found.checkpoint == encode_cursor(5)
        assert await store.get("loghub/group/p/s/g/record") is not None

    run(tmp_path, scenario)


def test_a_shard_that_is_over_is_needed_by_nobody(tmp_path: Path) -> None:
    async def scenario(kit: Kit) -> None:
        await kit.create()
        await kit.first.streams.split("p", "s", 0)
        assert 0 not in await kit.beat("a")
        required = await kit.groups.required_positions("p", "s")
        assert required[0] == RequiredPosition(await kit.end(0), "g")
        assert required[1] == RequiredPosition(0, "g")

    run(tmp_path, scenario)
