"""The metastore in ZooKeeper when servers hang, are killed, and come back."""

import asyncio
from contextlib import AsyncExitStack, suppress

import pytest

from raftwood.base.errors import ConnectionLost, Overloaded, Unavailable
from raftwood.base.seams import KeyChange, MetaStore, SetKey
from raftwood.metastore import zookeeper_store
from tests.kits.running import run
from tests.kits.servers.zookeeper import ZooKeeperServer, ensemble
from tests.kits.servers.zookeeper_clients import follow, opened, until

pytestmark = pytest.mark.needs("zookeeper")


def test_calls_to_a_server_that_hangs_end_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(server: ZooKeeperServer) -> None:
        async with opened(server.address) as store:
            await store.transact((), (SetKey("a", b""),))
            await asyncio.sleep(0.2)  # until it only waits for what comes next
            server.pause()
            store._timeout_s = 0.4
            with pytest.raises(ConnectionLost, match="may or may not"):
                await store.transact((), (SetKey("b", b""),))
            with pytest.raises(Unavailable, match="nothing was changed"):
                await store.transact((), (SetKey("c", b""),))
            with pytest.raises(Unavailable, match="try again"):
                await store.get("a")
            monkeypatch.setattr(zookeeper_store, "PENDING_MAX", 0)
            with pytest.raises(Overloaded, match="slow down"):
                await store.get("a")
            with pytest.raises(Overloaded, match="slow down"):
                await store.transact((), (SetKey("c", b""),))
            monkeypatch.undo()
            server.resume()
            store._timeout_s = 20.0
            assert [each.key for each in (await store.range()).entries] == ["a", "b"]

    with ZooKeeperServer() as server:
        run(main(server))


def test_a_lease_does_not_end_because_the_server_was_away() -> None:
    async def main(server: ZooKeeperServer) -> None:
        async with opened(server.address) as store:
            lease = await store.grant_lease(ttl_ms=8000)
            await store.transact((), (SetKey("a", b"", lease),))
            await asyncio.to_thread(server.kill)
            await asyncio.sleep(8.1)
            await asyncio.to_thread(server.restart)
            assert await store.get("a") is not None
            await store.keep_alive(lease)

    with ZooKeeperServer() as server:
        run(main(server))


def test_nothing_acked_is_lost_when_the_server_is_killed() -> None:
    """Three writers and a watch; the server is killed with -9 and comes back, and all is there."""

    acked: dict[str, int] = {}

    async def write(store: MetaStore, name: str, stop: asyncio.Event) -> None:
        number = 0
        while not stop.is_set():
            number += 1
            with suppress(ConnectionLost):
                key = f"{name}/{number}"
                acked[key] = (await store.transact((), (SetKey(key, b"x"),))).version

    async def main(server: ZooKeeperServer) -> None:
        seen: list[KeyChange] = []
        stop = asyncio.Event()
        async with (
            opened(server.address, snapshot_entries=50, timeout_ms=20_000) as one,
            opened(server.address, timeout_ms=20_000) as two,
        ):
            watch = asyncio.create_task(follow(two, "", seen))
            writers = [
                asyncio.create_task(write(store, name, stop))
                for store, name in ((one, "a"), (one, "b"), (two, "c"))
            ]
            await until(lambda: len(acked) >= 60)
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.restart)
            await until(lambda: len(acked) >= 120)
            stop.set()
            await asyncio.gather(*writers)
            end = (await one.transact((), (SetKey("end", b""),))).version
            await until(lambda: [each.version for each in seen[-1:]] == [end])
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)
            found = {each.key: each.version for each in (await two.range(limit=10**6)).entries}
        assert len(acked) >= 120
        assert acked.items() <= found.items()
        assert {change.key: change.version for change in seen} == found
        # A key each, a version each: nothing happened twice.
        assert sorted(found.values()) == list(range(1, end + 1))
        async with opened(server.address) as later:
            assert {
                each.key: each.version for each in (await later.range(limit=10**6)).entries
            } == found

    with ZooKeeperServer() as server:
        run(main(server))


def test_an_ensemble_that_loses_its_leader_goes_on() -> None:
    """Clients at different servers agree at every moment; then the leader is killed with -9."""

    async def main(servers: list[ZooKeeperServer]) -> None:
        acked: dict[str, int] = {}

        async def write(store: MetaStore, name: str) -> None:
            for number in range(60):
                with suppress(ConnectionLost):
                    key = f"{name}/{number}"
                    acked[key] = (await store.transact((), (SetKey(key, b""),))).version

        async with AsyncExitStack() as stack:
            near = [await stack.enter_async_context(opened(each.address)) for each in servers]
            following = [n for n in range(3) if "Mode: follower" in servers[n].report()]
            for count in range(20):
                late = following[count % 2]
                # This one hears of the change and is asked for it at the same moment.
                servers[late].pause()
                writer, reader = near[(late + 1) % 3], near[late]
                if count % 4 < 2:
                    writer = near[(late + 2) % 3]
                await writer.transact((), (SetKey("count", b"%d" % count),))
                read = asyncio.create_task(reader.get("count"))
                await asyncio.sleep(0.02)
                servers[late].resume()
                found = await read
                assert found is not None
                assert found.value == b"%d" % count
        everywhere = ",".join(server.address for server in servers)
        async with AsyncExitStack() as stack:
            stores = [
                await stack.enter_async_context(opened(everywhere, timeout_ms=30_000))
                for _ in range(3)
            ]
            writers = [
                asyncio.create_task(write(each, name))
                for each, name in zip(stores, "abc", strict=True)
            ]
            await until(lambda: len(acked) > 30)
            (leader,) = (each for each in servers if "Mode: leader" in each.report())
            await asyncio.to_thread(leader.kill)
            await asyncio.gather(*writers)
            one, two, three = [await store.range(limit=10**6) for store in stores]
            assert one == two == three
            versions = {each.key: each.version for each in one.entries}
            assert acked.items() <= versions.items()
            assert len(acked) > 120
            # A version each, and 20 for the first key: nothing happened twice.
            assert sorted(versions.values()) == list(range(20, one.version + 1))

    with ensemble() as servers:
        run(main(servers))
