"""What every `MetaStore` must do: one suite, run by each implementation with its own factory."""

import asyncio
import random
from collections.abc import Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from raftwood.base.errors import InvalidInput, NotFound, OutOfRange, ShuttingDown, TooLarge
from raftwood.base.seams import Compare, KeyChange, KeyOperation, MetaStore, RemoveKey, SetKey

LEASE_MS = 4_000
"""Longer than a busy machine keeps a renewal waiting."""


async def _is_told(live: list[KeyChange]) -> None:
    async with asyncio.timeout(60):
        while not live:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def _follow(
    store: MetaStore, prefix: str, after: int, until: int, into: list[KeyChange] | None = None
) -> list[KeyChange]:
    """What a watch tells, up to the change with a version."""
    seen: list[KeyChange] = [] if into is None else into
    async for changes in store.watch(prefix, after_version=after):
        assert len({change.version for change in changes}) == 1
        seen += changes
        if seen[-1].version >= until:
            return seen
    raise AssertionError("a watch has no end")


class MetaSuite:
    def opened(self, folder: str) -> AbstractAsyncContextManager[MetaStore]:
        raise NotImplementedError

    def run(self, main: Coroutine[Any, Any, None]) -> None:
        asyncio.run(main)

    @pytest.fixture
    def folder(self, tmp_path: Any) -> str:
        return f"{tmp_path}/meta"

    def test_it_behaves_as_a_dictionary_with_versions(self, folder: str) -> None:
        async def main() -> None:
            rng, model = random.Random(3), dict[str, tuple[bytes, int]]()
            version = 0
            for _ in range(3):
                async with self.opened(folder) as store:
                    for _ in range(60):
                        version = await self._one_step(store, rng, model, version)
                    found = await store.range()
                    assert {each.key: (each.value, each.version) for each in found.entries} == model

        self.run(main())

    async def _one_step(
        self,
        store: MetaStore,
        rng: random.Random,
        model: dict[str, tuple[bytes, int]],
        version: int,
    ) -> int:
        keys = rng.sample(["a", "a/b", "a/c", "b", "ü", "z"], 2)
        compares = [Compare(key, rng.choice([0, model.get(key, (b"", 0))[1]])) for key in keys]
        operations: list[KeyOperation] = [
            SetKey(key, rng.randbytes(3)) if rng.random() < 0.6 else RemoveKey(key) for key in keys
        ]
        held = all(model.get(each.key, (b"", 0))[1] == each.version for each in compares)
        outcome = await store.transact(compares, operations, operations[:1])
        assert outcome.held is held
        for each in operations if held else operations[:1]:
            if isinstance(each, SetKey):
                assert outcome.version > version
                model[each.key] = (each.value, outcome.version)
            else:
                model.pop(each.key, None)
        for key in keys:
            found = await store.get(key)
            assert (found and (found.value, found.version)) == model.get(key)
        return outcome.version

    def test_a_range_is_read_by_pages(self, folder: str) -> None:
        async def main() -> None:
            async with self.opened(folder) as store:
                names = sorted(f"p/{number}{'é' * (number % 3)}" for number in range(25))
                for first in range(0, 25, 5):
                    keys = [*names[first : first + 5], f"o{first}", f"q{first}"]
                    await store.transact((), [SetKey(key, key.encode()) for key in keys])
                for limit in (1, 4, 25, 26):
                    found: list[str] = []
                    start: str | None = ""
                    while start is not None:
                        page = await store.range(prefix="p/", start=start, limit=limit)
                        assert page.version == 5
                        assert page.next_start is None or len(page.entries) == limit
                        assert all(each.value == each.key.encode() for each in page.entries)
                        found += [each.key for each in page.entries]
                        start = page.next_start
                    assert found == names
                inner = await store.range(start=names[3], end=names[7])
                assert [each.key for each in inner.entries] == names[3:7]
                with pytest.raises(InvalidInput, match="shows nothing"):
                    await store.range(limit=0)

        self.run(main())

    def test_of_two_only_one_is_first(self, folder: str) -> None:
        async def main() -> None:
            async with self.opened(folder) as store:
                attempts = (store.compare_and_set("k", bytes([n]), version=0) for n in range(8))
                results = await asyncio.gather(*attempts)
                assert sum(result is not None for result in results) == 1

        self.run(main())

    def test_a_watch_under_writers_never_goes_back_and_ends_with_the_last(
        self, folder: str
    ) -> None:
        async def write(store: MetaStore, seed: int) -> None:
            rng = random.Random(seed)
            for number in range(30):
                key = f"w/{rng.randrange(4)}"
                await store.transact(
                    (), (SetKey(key, b"%d" % number) if rng.random() < 0.7 else RemoveKey(key),)
                )

        async def main() -> None:
            async with self.opened(folder) as store:
                live: list[KeyChange] = []
                async with asyncio.TaskGroup() as group:
                    watch = group.create_task(_follow(store, "w/", 0, 10**30, live))
                    done = asyncio.gather(*(write(store, seed) for seed in range(3)))
                    await done
                    # Where stores are killed, a watch may come to know of it all but late.
                    await _is_told(live)
                    watch.cancel()
                told = [change.version for change in live]
                assert told
                assert told == sorted(told)
                end = (await store.transact((), (SetKey("w/end", b""),))).version
                seen = await _follow(store, "w/", 0, end)
                versions = [change.version for change in seen]
                assert versions == sorted(versions)
                latest = {change.key: change.value for change in seen}
                entries = (await store.range(prefix="w/")).entries
                assert {k: v for k, v in latest.items() if v is not None} == {
                    each.key: each.value for each in entries
                }
                middle = versions[len(versions) // 2]
                again = await _follow(store, "w/", middle, end)
                assert again == [change for change in seen if change.version > middle]

        self.run(main())

    def test_a_lease_takes_its_keys_along(self, folder: str) -> None:
        async def main() -> None:
            async with self.opened(folder) as store:
                lease = await store.grant_lease(ttl_ms=LEASE_MS)
                version = await store.compare_and_set("l/a", b"1", version=0, lease=lease)
                assert version is not None
                await store.transact((), (SetKey("l/b", b"2", lease),))
                for _ in range(4):
                    await asyncio.sleep(0.4 * LEASE_MS / 1000)
                    await store.keep_alive(lease)
                assert await store.get("l/a") is not None
                seen = await _follow(store, "l/", version + 1, version + 2)
                assert {(each.key, each.value) for each in seen} == {("l/a", None), ("l/b", None)}
                with pytest.raises(NotFound, match="grant a new one"):
                    await store.keep_alive(lease)
                await store.revoke_lease(lease)

        self.run(main())

    def test_what_cannot_be_done_is_refused(self, folder: str) -> None:
        async def main() -> None:
            async with self.opened(folder) as store:
                with pytest.raises(InvalidInput, match="printable"):
                    await store.transact((), (SetKey("a\n", b""),))
                with pytest.raises(TooLarge):
                    await store.transact((), (SetKey("a", bytes(600 << 10)),))
                with pytest.raises(InvalidInput, match="twice"):
                    await store.transact((), (SetKey("a", b""), RemoveKey("a")))
                with pytest.raises(NotFound):
                    await store.transact((), (SetKey("a", b"", 99),))
                with pytest.raises(OutOfRange, match="read the range again"):
                    await _follow(store, "", 1 << 60, 0)
                assert (await store.status()).keys == 0
            with pytest.raises(ShuttingDown):
                await store.get("a")

        self.run(main())
