"""Configurations in a metastore: versions, roll-backs, and clients that follow."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import pairwise
from typing import Any

import pytest

from raftwood.base.errors import (
    Conflict,
    InvalidConfiguration,
    InvalidInput,
    InvalidName,
    NotFound,
    OutOfRange,
    Unavailable,
)
from raftwood.base.seams import KeyChange, MetaStore, SetKey
from raftwood.clogs.configuration import RingConfiguration, VersionedConfiguration
from raftwood.clogs.configuration_store import (
    HISTORY_MAX,
    ConfigurationStore,
    MetaConfigurationSource,
)
from raftwood.disk.segment_log import LogSettings
from raftwood.metastore.file_store import FileMetaStore
from raftwood.testing import Simulation, simulate
from tests.kits.clogs.rings import ring, versioned

A, B, C = ring("a"), ring("a", "b"), ring("a", "b", "c")
_SMALL = LogSettings(segment_bytes=1 << 20, cache_bytes_max=0)


def on_store(work: Callable[[FileMetaStore], Awaitable[None]], *, removals_kept: int = 100) -> None:
    async def scenario(simulation: Simulation) -> None:
        store = await FileMetaStore.open(
            simulation.environment, "/meta", settings=_SMALL, removals_kept=removals_kept
        )
        try:
            await work(store)
        finally:
            await store.close()

    simulate(1, scenario)


def numbered(number: int) -> RingConfiguration:
    return RingConfiguration(servers=A.servers, pins={f"/{number}": "a"})


def test_versions_go_up_and_a_roll_back_goes_down() -> None:
    async def work(store: FileMetaStore) -> None:
        rings = ConfigurationStore(store, "r")
        assert await rings.current() is None
        assert await rings.set(A, "first") == versioned(1, A)
        assert await rings.set(B) == versioned(2, B)
        assert await rings.rollback() == await rings.current() == versioned(1, A)
        # The number of the one that was rolled back is not used again.
        assert await rings.set(C) == versioned(3, C)
        # What it replaced is the first, and not the one that was taken back.
        assert await rings.rollback() == versioned(1, A)
        assert await rings.rollback(2) == await rings.current() == versioned(2, B)
        history = await rings.history()
        assert [(each.version, each.replaced, each.servers) for each in history] == [
            (3, 1, 3),
            (2, 1, 2),
            (1, 0, 1),
        ]
        assert history[2].comment == "first"
        assert [each.version for each in await rings.history(1)] == [3]

    on_store(work)


def test_rings_know_nothing_of_each_other() -> None:
    async def work(store: FileMetaStore) -> None:
        one, two = ConfigurationStore(store, "r"), ConfigurationStore(store, "r2")
        await one.set(A)
        assert await two.current() is None
        assert await two.set(B) == versioned(1, B)
        assert await one.current() == versioned(1, A)

    on_store(work)
    with pytest.raises(InvalidName):
        ConfigurationStore(None, "a/b")  # type: ignore[arg-type]


def test_the_same_again_is_no_new_version() -> None:
    async def work(store: FileMetaStore) -> None:
        rings = ConfigurationStore(store, "r")
        assert await rings.set(A) == await rings.set(A) == versioned(1, A)
        assert len(await rings.history()) == 1

    on_store(work)


def test_a_bad_configuration_is_not_written() -> None:
    async def work(store: FileMetaStore) -> None:
        rings = ConfigurationStore(store, "r")
        with pytest.raises(InvalidConfiguration, match="0 servers"):
            await rings.set(ring())
        with pytest.raises(InvalidInput, match="comment"):
            await rings.set(A, "x" * 501)
        assert await store.range() == (await store.range(prefix="clogs/"))
        assert not (await store.range()).entries

    on_store(work)


def test_who_expects_another_version_is_told() -> None:
    async def work(store: FileMetaStore) -> None:
        rings = ConfigurationStore(store, "r")
        await rings.set(A, expected_version=0)
        with pytest.raises(Conflict, match=r"version 1 .* counts, not 0"):
            await rings.set(B, expected_version=0)
        await rings.set(B, expected_version=1)
        with pytest.raises(Conflict, match="counts, not 1"):
            await rings.rollback(expected_version=1)
        assert await rings.rollback(expected_version=2) == versioned(1, A)

    on_store(work)


def test_of_many_who_set_at_once_each_gets_a_version_of_its_own() -> None:
    async def work(store: FileMetaStore) -> None:
        rings = ConfigurationStore(store, "r")
        done = await asyncio.gather(*(rings.set(numbered(number)) for number in range(8)))
        assert sorted(each.version for each in done) == [*range(1, 9)]
        with pytest.raises(Conflict):
            await asyncio.gather(*(rings.set(each, expected_version=8) for each in (A, B)))

    on_store(work)


def test_only_the_last_hundred_are_kept() -> None:
    async def work(store: FileMetaStore) -> None:
        rings = ConfigurationStore(store, "r")
        for number in range(HISTORY_MAX + 5):
            await rings.set(numbered(number))
        assert [each.version for each in await rings.history(3)] == [105, 104, 103]
        assert len(await rings.history()) == HISTORY_MAX
        assert len((await store.range(prefix="clogs/")).entries) == 2 * HISTORY_MAX + 1
        with pytest.raises(NotFound, match="no version 5, or forgot it"):
            await rings.rollback(5)
        assert await rings.rollback(6) == versioned(6, numbered(5))
        with pytest.raises(NotFound, match="no version 5"):
            await rings.rollback()
        # The one that counts is the oldest, and goes with the next one that is set.
        assert await rings.set(A) == versioned(106, A)
        assert await rings.current() == versioned(106, A)

    on_store(work)


def test_there_is_nothing_before_the_first() -> None:
    async def work(store: FileMetaStore) -> None:
        rings = ConfigurationStore(store, "r")
        with pytest.raises(NotFound, match="set one first"):
            await rings.rollback()
        await rings.set(A)
        with pytest.raises(NotFound, match="is the first"):
            await rings.rollback()
        with pytest.raises(InvalidInput, match="counts already"):
            await rings.rollback(1)

    on_store(work)


def test_what_others_damaged_is_told_and_can_be_mended() -> None:
    async def work(store: FileMetaStore) -> None:
        rings = ConfigurationStore(store, "r")
        await rings.set(A)
        await rings.set(B)
        await store.transact((), (SetKey("clogs/r/versions/000000000001", b"{}"),))
        with pytest.raises(InvalidConfiguration, match="another text than its digest"):
            await rings.rollback()
        assert await rings.current() == versioned(2, B)
        found = await store.get("clogs/r/current")
        assert found is not None
        await store.transact((), (SetKey("clogs/r/current", b"?"),))
        for call in (rings.current(), rings.set(C), rings.rollback()):
            with pytest.raises(InvalidConfiguration, match="raftwood meta delete"):
                await call
        found = await store.get("clogs/r/current")
        assert found is not None
        await store.compare_and_set("clogs/r/current", None, version=found.version)
        assert await rings.set(C) == versioned(3, C)

    on_store(work)


async def following(changes: AsyncIterator[VersionedConfiguration]) -> VersionedConfiguration:
    async with asyncio.timeout(60):
        return await anext(changes)


def test_a_client_follows_by_a_watch() -> None:
    async def work(store: FileMetaStore) -> None:
        rings = ConfigurationStore(store, "r")
        source = MetaConfigurationSource(store, "r")
        changes = source.changes()
        waiting = asyncio.create_task(following(changes))
        await asyncio.sleep(1)
        await ConfigurationStore(store, "r2").set(C)
        loop = asyncio.get_running_loop()
        began = loop.time()
        await rings.set(A)
        assert await waiting == versioned(1, A)
        await rings.set(B)
        assert await following(changes) == versioned(2, B)
        await rings.rollback()
        assert await following(changes) == versioned(1, A)
        assert loop.time() - began < 0.1
        late = source.changes()
        assert await following(late) == versioned(1, A)
        await source.close()
        assert [each async for each in changes] == []

    on_store(work)


def test_a_client_keeps_the_last_good_one(capsys: pytest.CaptureFixture[str]) -> None:
    async def work(store: FileMetaStore) -> None:
        rings = ConfigurationStore(store, "r")
        await rings.set(A)
        source = MetaConfigurationSource(store, "r")
        changes = source.changes()
        assert await following(changes) == versioned(1, A)
        # Another program wrote what this one refuses.
        await store.transact((), (SetKey("clogs/r/versions/000000000001", b"{}"),))
        pointer = await store.get("clogs/r/current")
        assert pointer is not None
        await store.transact((), (SetKey("clogs/r/current", pointer.value),))
        await asyncio.sleep(5)
        await store.transact((), (SetKey("clogs/r/current", b"?"),))
        await asyncio.sleep(5)
        await store.compare_and_set("clogs/r/current", None, version=(await store.status()).version)
        await asyncio.sleep(5)
        await rings.set(B)
        assert await following(changes) == versioned(2, B)
        await source.close()

    on_store(work)
    told = [line for line in capsys.readouterr().err.splitlines() if "kept=" in line]
    assert len(told) == 3
    assert "another text than its digest" in told[0]
    assert "raftwood meta delete" in told[1]
    assert "has no configuration" in told[2]


@pytest.mark.parametrize(("name", "call"), [("range", 1), ("get", 1), ("get", 2)])
def test_a_change_while_a_client_begins_to_follow_is_not_missed(
    name: str, call: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another version counts as soon as the client has read this or that."""

    async def work(store: FileMetaStore) -> None:
        rings = ConfigurationStore(store, "r")
        await rings.set(A)
        read, calls = getattr(store, name), 0

        async def overtaken(*arguments: Any, **options: Any) -> Any:
            nonlocal calls
            found = await read(*arguments, **options)
            calls += 1
            if calls == call:
                monkeypatch.setattr(store, name, read)
                await rings.set(B)
            return found

        monkeypatch.setattr(store, name, overtaken)
        source = MetaConfigurationSource(store, "r")
        changes = source.changes()
        while await following(changes) != versioned(2, B):
            pass
        await source.close()

    on_store(work)


class Unsteady:
    """A metastore whose calls fail, and whose watches end, as a seed has it."""

    def __init__(self, store: MetaStore, seed: int) -> None:
        self._store = store
        self._source = random.Random(seed)
        self.failures = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def get(self, key: str) -> Any:
        self._fail()
        found = await self._store.get(key)
        self._fail()
        return found

    async def range(self, **options: Any) -> Any:
        self._fail()
        return await self._store.range(**options)

    async def watch(
        self, prefix: str, *, after_version: int
    ) -> AsyncIterator[tuple[KeyChange, ...]]:
        async for changes in self._store.watch(prefix, after_version=after_version):
            self._fail(OutOfRange("watch again"))
            yield changes
            self._fail()

    def _fail(self, error: Exception | None = None) -> None:
        if self._source.random() < 0.2:
            self.failures += 1
            raise error or Unavailable("try again")


@pytest.mark.parametrize("seed", range(20))
def test_a_client_misses_no_last_change_though_calls_fail(seed: int) -> None:
    async def work(store: FileMetaStore) -> None:
        rings = ConfigurationStore(store, "r")
        unsteady = Unsteady(store, seed)
        source = MetaConfigurationSource(unsteady, "r")
        chance = random.Random(seed)
        seen: list[VersionedConfiguration] = []

        async def listen() -> None:
            seen.extend([each async for each in source.changes()])

        listening = asyncio.create_task(listen())
        for number in range(30):
            if number % 7 == 6:
                await rings.rollback()
            else:
                await rings.set(numbered(number))
            await asyncio.sleep(chance.choice([0.0, 0.0, 0.3, 2.0]))
        await asyncio.sleep(30)
        await source.close()
        await listening
        assert unsteady.failures > 3
        assert seen[-1] == await rings.current()
        assert all(one != other for one, other in pairwise(seen))

    # So few removals are remembered that watches of an older version fail.
    on_store(work, removals_kept=1)
