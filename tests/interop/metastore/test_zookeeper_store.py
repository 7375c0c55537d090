"""The metastore on a real ZooKeeper server: the suite, many clients, lost answers."""

import asyncio
import random
import re
import time
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec
import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss

from raftwood.base.backoff import Backoff
from raftwood.base.errors import (
    ConnectionLost,
    NotFound,
    StoreDamaged,
    TooLarge,
    UnsupportedVersion,
)
from raftwood.base.seams import Compare, KeyChange, MetaStore, SetKey
from raftwood.metastore import zookeeper_store
from raftwood.metastore.zookeeper_store import ZooKeeperMetaStore
from tests.kits.metastore.meta_suite import MetaSuite
from tests.kits.running import run
from tests.kits.servers.zookeeper import ZooKeeperServer
from tests.kits.servers.zookeeper_clients import follow, opened, until

pytestmark = pytest.mark.needs("zookeeper")


@pytest.fixture
def address(zookeeper: ZooKeeperServer, request: pytest.FixtureRequest) -> str:
    return f"{zookeeper.address}/{re.sub('[^a-zA-Z_]', '', request.node.name)}"


class TestOnZooKeeper(MetaSuite):
    @pytest.fixture
    def folder(self, address: str) -> str:
        return address

    def opened(self, folder: str) -> AbstractAsyncContextManager[MetaStore]:
        return opened(folder, snapshot_entries=20)


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

    monkeypatch.setattr(zookeeper_store, "_PAUSE", Backoff(first_ms=1, longest_ms=5))
    run(main())


def test_a_client_that_fell_far_behind_goes_on_from_the_snapshot(address: str) -> None:
    async def main() -> None:
        async with opened(address) as slow, opened(address, snapshot_entries=10) as quick:
            seen: list[KeyChange] = []
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
                lease = await owner.grant_lease(ttl_ms=5_000)
                await owner.transact((), (SetKey("held", b"", lease),))
                await asyncio.sleep(1)
                await owner.keep_alive(lease)
                renewed = time.monotonic()
            async for changes in one.watch("held", after_version=1):
                assert changes == (KeyChange("held", None, 2),)
                break
            assert time.monotonic() - renewed >= 4.9
            assert await two.get("held") is None
            assert (await two.status()).version == 2
            with pytest.raises(NotFound):
                await two.transact((), (SetKey("held", b"", lease),))

    run(main())


def test_a_renewal_that_waits_comes_before_the_end_of_its_lease(address: str) -> None:
    async def main() -> None:
        async with opened(address) as store:
            lease = await store.grant_lease(ttl_ms=100)
            time.sleep(0.12)  # noqa: ASYNC251  the loop is busy with something else
            await store.keep_alive(lease)
            # Others that come all the time do not keep a lease alive for ever.
            with pytest.raises(NotFound):
                for _ in range(1000):
                    await store.transact((), (SetKey("a", b""),))
                    await asyncio.sleep(0)
                    if (await store.status()).leases == 0:
                        await store.keep_alive(lease)

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
            with pytest.raises(UnsupportedVersion, match="or a newer one"):
                await ZooKeeperMetaStore.open(store._environment, address)
            await store._connection.call(set_mark(mark, msgspec.msgpack.encode("?")))
            with pytest.raises(StoreDamaged, match="cannot be read"):
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


def test_a_session_that_has_expired_is_followed_by_another(address: str) -> None:
    async def main() -> None:
        async with opened(address) as store, opened(address) as other:
            seen: list[KeyChange] = []
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
