"""The metastore on a real ZooKeeper server: the suite, many clients, lost answers and servers."""

import asyncio
import random
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import msgspec
import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss
from tests.running import run
from tests.unit.metastore.meta_suite import MetaSuite
from tests.zookeeper_server import ZooKeeperServer, ensemble

from raftwood.base.errors import (
    ConnectionLost,
    NotFound,
    Overloaded,
    StoreDamaged,
    TooLarge,
    Unavailable,
    UnsupportedVersion,
)
from raftwood.base.seams import Change, Compare, MetaStore, SetKey
from raftwood.disk.real_environment import real_environment
from raftwood.metastore import zookeeper_store
from raftwood.metastore.zookeeper_store import ZooKeeperMetaStore

pytestmark = pytest.mark.needs("zookeeper")


@asynccontextmanager
async def opened(
    address: str, *, snapshot_entries: int = 10_000, timeout_ms: int = 10_000
) -> AsyncIterator[ZooKeeperMetaStore]:
    with real_environment() as environment:
        store = await ZooKeeperMetaStore.open(
            environment, address, snapshot_entries=snapshot_entries, timeout_ms=timeout_ms
        )
        try:
            yield store
        finally:
            await store.close()


@pytest.fixture
def address(zookeeper: ZooKeeperServer, request: pytest.FixtureRequest) -> str:
    return f"{zookeeper.address}/{re.sub('[^a-zA-Z_]', '', request.node.name)}"


class TestOnZooKeeper(MetaSuite):
    @pytest.fixture
    def folder(self, address: str) -> str:
        return address

    def opened(self, folder: str) -> AbstractAsyncContextManager[MetaStore]:
        return opened(folder, snapshot_entries=20)


async def follow(store: MetaStore, prefix: str, into: list[Change]) -> None:
    async for changes in store.watch(prefix, after_version=0):
        into += changes


async def until(true: Callable[[], bool]) -> None:
    while not true():  # noqa: ASYNC110  it is looked at from outside
        await asyncio.sleep(0.01)


async def add_one(store: MetaStore, times: int) -> None:
    """Count a key up, by compare-and-set."""
    while times:
        found = await store.get("count")
        value, version = (int(found.value), found.version) if found else (0, 0)
        if await store.compare_and_set("count", b"%d" % (value + 1), version=version) is not None:
            times -= 1


def test_clients_that_count_a_key_up_together_lose_nothing(address: str) -> None:
    async def main() -> None:
        async with opened(address, snapshot_entries=25) as one, opened(address) as two:
            async with opened(address, snapshot_entries=40) as three:
                await asyncio.gather(*(add_one(store, 30) for store in (one, two, three)))
                found = [await store.range() for store in (one, two, three)]
            assert found[0] == found[1] == found[2]
            assert (found[0].entries[0].value, found[0].version) == (b"90", 90)
            async with opened(address) as later:
                assert await later.range() == found[0]

    run(main())


def test_an_answer_includes_what_another_client_was_answered(address: str) -> None:
    async def main() -> None:
        async with opened(address) as one, opened(address) as two:
            for number in range(30):
                await one.transact((), (SetKey("k", b"%d" % number),))
                found = await two.get("k")
                assert found is not None
                assert found.value == b"%d" % number

    run(main())


class Unsteady:
    """Stands before a store's log, and loses requests and answers as a bad connection does."""

    def __init__(self, log: Any, rng: random.Random) -> None:
        self._log = log
        self._rng = rng
        self.lost = 0

    async def append(self, index: int, data: bytes) -> bool:
        draw = self._rng.random()
        if draw < 0.2:
            self.lost += 1
            raise ConnectionLoss
        made: bool = await self._log.append(index, data)
        if draw < 0.5:
            self.lost += 1
            raise ConnectionLoss
        return made

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)


def test_a_lost_answer_makes_no_command_happen_twice(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with opened(address) as one, opened(address) as two:
            logs = [Unsteady(store._log, random.Random(1)) for store in (one, two)]
            one._log, two._log = logs  # type: ignore[assignment]
            for _ in range(15):
                await asyncio.gather(
                    *(store.transact((), (SetKey("k", b""),)) for store in (one, two, one))
                )
            assert logs[0].lost > 5
            # Each transaction is one version: none is missing, none was there twice.
            assert (await one.status()).version == (await two.status()).version == 45

    monkeypatch.setattr(zookeeper_store, "_RETRY_PAUSE_MAX_S", 0.005)
    run(main())


def test_a_client_that_fell_far_behind_goes_on_from_the_snapshot(address: str) -> None:
    async def main() -> None:
        async with opened(address) as slow, opened(address, snapshot_entries=10) as quick:
            seen: list[Change] = []
            await slow.transact((), (SetKey("gone", b""), SetKey("w/0", b"")))
            watch = asyncio.create_task(follow(slow, "", seen))
            await until(lambda: bool(seen))
            log, held = slow._log, asyncio.Event()

            class Held:
                async def read(self, *arguments: Any, **options: Any) -> None:
                    await held.wait()
                    await log.read(*arguments, **options)

                async def append(self, index: int, data: bytes) -> bool:
                    await held.wait()
                    return await log.append(index, data)

                async def load(self) -> tuple[int, bytes | None]:
                    return await log.load()

            slow._log = Held()  # type: ignore[assignment]
            lost = asyncio.create_task(slow.transact((), (SetKey("lost", b""),)))
            await quick.compare_and_set("gone", None, version=1)
            for number in range(60):
                await quick.transact((), (SetKey(f"w/{number}", b"x"),))
            held.set()
            with pytest.raises(ConnectionLost, match="may or may not"):
                await lost
            assert await slow.range() == await quick.range()
            await until(lambda: seen[-1].version == 62)
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)
            latest = {change.key: change.value for change in seen}
            assert latest == {"gone": None} | {f"w/{number}": b"x" for number in range(60)}
            assert [change.version for change in seen] == sorted(c.version for c in seen)

    run(main())


def test_entries_and_snapshots_that_are_no_longer_needed_go_away(address: str) -> None:
    async def main() -> None:
        async with opened(address, snapshot_entries=20) as store:
            for number in range(101):
                await store.transact((), (SetKey(f"k{number % 7}", bytes(9000)),))
            if store._snapshotting is not None:
                await store._snapshotting
            client, root = store._connection.client, f"{store._address.chroot}/metastore"
            ask = store._connection.call
            assert len(await ask(client.get_children_async(f"{root}/log"))) <= 52
            assert len(await ask(client.get_children_async(f"{root}/snapshots"))) == 1

    run(main())


def test_a_lease_of_a_client_that_is_gone_is_ended_by_another(address: str) -> None:
    async def main() -> None:
        async with opened(address) as one, opened(address) as two:
            async with opened(address) as owner:
                lease = await owner.grant_lease(ttl_ms=600)
                await owner.transact((), (SetKey("held", b"", lease),))
                await asyncio.sleep(0.4)
                await owner.keep_alive(lease)
                renewed = time.monotonic()
            async for changes in one.watch("held", after_version=1):
                assert changes == (Change("held", None, 2),)
                break
            assert time.monotonic() - renewed >= 0.59
            assert await two.get("held") is None
            assert (await two.status()).version == 2
            with pytest.raises(NotFound):
                await two.transact((), (SetKey("held", b"", lease),))

    run(main())


def test_the_largest_transaction_fits_into_a_request(address: str) -> None:
    async def main() -> None:
        async with opened(address) as store:
            keys = [f"{number:03d}{'ü' * 254}" for number in range(64)]
            compares = [Compare(key, 0) for key in keys]
            sets = [SetKey(key, bytes(10 << 10)) for key in keys]
            outcome = await store.transact(compares, sets, [SetKey(key, b"") for key in keys])
            assert outcome.held
            with pytest.raises(TooLarge, match="split it"):
                await store.transact(compares, sets, sets)
            many = (store.transact((), sets) for _ in range(4))
            assert {each.held for each in await asyncio.gather(*many)} == {True}

    run(main())


def test_a_newer_format_is_refused(address: str) -> None:
    async def main() -> None:
        async with opened(address) as store:
            mark = f"{store._address.chroot}/metastore/mark"
            set_mark = store._connection.client.set_async
            await store._connection.call(set_mark(mark, msgspec.msgpack.encode([2, "?"])))
            with pytest.raises(UnsupportedVersion, match="upgrade"):
                await ZooKeeperMetaStore.open(store._environment, address)
            await store._connection.call(set_mark(mark, msgspec.msgpack.encode("?")))
            with pytest.raises(StoreDamaged, match="not a metastore's"):
                await ZooKeeperMetaStore.open(store._environment, address)

    run(main())


def test_nodes_of_somebody_else_are_told(address: str) -> None:
    async def main() -> None:
        async with opened(address) as store:
            ensure = store._connection.client.ensure_path_async
            await store._connection.call(ensure(f"{store._address.chroot}/other/metastore"))
            with pytest.raises(StoreDamaged, match="check what stands at that chroot"):
                await ZooKeeperMetaStore.open(store._environment, f"{address}/other")

    run(main())


@pytest.mark.parametrize(
    ("entry", "error"),
    [
        (msgspec.msgpack.encode([2, 1, []]), UnsupportedVersion),
        (b"?", StoreDamaged),
    ],
)
def test_an_entry_that_cannot_be_read_ends_the_store_for_everybody(
    address: str, entry: bytes, error: type[Exception]
) -> None:
    async def main() -> None:
        async with opened(address) as store:
            watch = asyncio.create_task(follow(store, "", []))
            await store.get("a")
            await store._log.append(1, entry)
            with pytest.raises(error):
                await watch
            with pytest.raises(error):
                await store.transact((), (SetKey("a", b""),))

    run(main())


def test_calls_to_a_server_that_hangs_end_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(server: ZooKeeperServer) -> None:
        async with opened(server.address, timeout_ms=400) as store:
            await store.transact((), (SetKey("a", b""),))
            await asyncio.sleep(0.2)  # until it only waits for what comes next
            server.pause()
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
            assert [each.key for each in (await store.range()).entries] == ["a", "b"]

    with ZooKeeperServer() as server:
        run(main(server))


def test_a_lease_does_not_end_because_the_server_was_away() -> None:
    async def main(server: ZooKeeperServer) -> None:
        async with opened(server.address) as store:
            lease = await store.grant_lease(ttl_ms=1000)
            await store.transact((), (SetKey("a", b"", lease),))
            await asyncio.to_thread(server.kill)
            await asyncio.sleep(1.1)
            await asyncio.to_thread(server.restart)
            assert await store.get("a") is not None
            await store.keep_alive(lease)

    with ZooKeeperServer() as server:
        run(main(server))


def test_nothing_acked_is_lost_when_the_server_is_killed() -> None:
    """Three writers and a watch; the server is killed with -9 and comes back, three times."""

    acked: dict[str, int] = {}

    async def write(store: MetaStore, name: str, stop: asyncio.Event) -> None:
        number = 0
        while not stop.is_set():
            number += 1
            with suppress(ConnectionLost):
                key = f"{name}/{number}"
                acked[key] = (await store.transact((), (SetKey(key, b"x"),))).version

    async def main(server: ZooKeeperServer) -> None:
        seen: list[Change] = []
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
            for _ in range(3):
                before = len(acked)
                await until(lambda: len(acked) >= before + 60)  # noqa: B023  awaited here
                await asyncio.to_thread(server.kill)
                await asyncio.sleep(0.5)
                await asyncio.to_thread(server.restart)
            stop.set()
            await asyncio.gather(*writers)
            end = (await one.transact((), (SetKey("end", b""),))).version
            await until(lambda: seen[-1].version == end)
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)
            found = {each.key: each.version for each in (await two.range(limit=10**6)).entries}
        assert len(acked) >= 180
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


def test_a_session_that_has_expired_is_followed_by_another(address: str) -> None:
    async def main() -> None:
        async with opened(address) as store, opened(address) as other:
            seen: list[Change] = []
            watch = asyncio.create_task(follow(store, "", seen))
            await store.transact((), (SetKey("a", b""),))
            client = store._connection.client
            before = client.client_id
            double = KazooClient(hosts=address.partition("/")[0], client_id=before)
            await asyncio.to_thread(double.start)
            await asyncio.to_thread(double.stop)
            await asyncio.to_thread(double.close)
            await other.transact((), (SetKey("b", b""),))
            await store.transact((), (SetKey("c", b""),))
            await until(lambda: len(seen) == 3)
            assert client.client_id[0] != before[0]
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)

    run(main())


@pytest.mark.slow
def test_an_ensemble_that_loses_its_leader_goes_on() -> None:
    """Clients at different servers agree at every moment; then the leader is killed with -9."""

    async def main(servers: list[ZooKeeperServer]) -> None:
        acked: dict[str, int] = {}

        async def write(store: MetaStore, name: str) -> None:
            for number in range(150):
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
            await until(lambda: len(acked) > 60)
            (leader,) = (each for each in servers if "Mode: leader" in each.report())
            await asyncio.to_thread(leader.kill)
            await asyncio.gather(*writers)
            one, two, three = [await store.range(limit=10**6) for store in stores]
            assert one == two == three
            versions = {each.key: each.version for each in one.entries}
            assert acked.items() <= versions.items()
            assert len(acked) > 300
            # A version each, and 20 for the first key: nothing happened twice.
            assert sorted(versions.values()) == list(range(20, one.version + 1))

    with ensemble() as servers:
        run(main(servers))
