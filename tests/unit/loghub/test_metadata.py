"""The copy of the metadata: never behind what was heard, and honest about being watched."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from raftwood.base.errors import Unavailable
from raftwood.base.seams import KeyChange, MetaStore
from raftwood.loghub.model import Project
from raftwood.loghub.server import metadata as metadata_module
from raftwood.loghub.server.metadata import PROJECTS, Metadata, project_key
from tests.kits.loghub.streams import gateway_kit
from tests.kits.running import run, until


class SlowAnswers:
    """A metastore whose answers to changes come late."""

    def __init__(self, store: MetaStore) -> None:
        self._store = store
        self.late = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def compare_and_set(self, *arguments: Any, **options: Any) -> int | None:
        answer = await self._store.compare_and_set(*arguments, **options)
        await self.late.wait()
        return answer


class SlowReads:
    """A metastore whose answers to reads come late."""

    def __init__(self, store: MetaStore) -> None:
        self._store = store
        self.is_slow = False
        self.has_read = asyncio.Event()
        self.late = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def get(self, key: str) -> Any:
        return await self._slowly(await self._store.get(key))

    async def range(self, **options: Any) -> Any:
        return await self._slowly(await self._store.range(**options))

    async def _slowly(self, answer: Any) -> Any:
        if self.is_slow:
            self.has_read.set()
            await self.late.wait()
        return answer


class Away:
    """A metastore that cannot be watched for a while."""

    def __init__(self, store: MetaStore) -> None:
        self._store = store
        self.is_away = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def range(self, **options: Any) -> Any:
        if self.is_away:
            raise Unavailable("away")
        return await self._store.range(**options)

    async def watch(
        self, prefix: str, *, after_version: int
    ) -> AsyncIterator[tuple[KeyChange, ...]]:
        watching = self._store.watch(prefix, after_version=after_version)
        while True:
            following = asyncio.ensure_future(anext(watching))
            try:
                while not following.done():
                    if self.is_away:
                        raise Unavailable("away")
                    await asyncio.wait([following], timeout=0.01)
            finally:
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)
            yield following.result()


def described(metadata: Metadata) -> str:
    found = metadata.copy(project_key("p"), Project)
    return "" if found is None else found.description


def test_a_late_answer_to_a_change_does_not_bring_back_what_others_have_changed_since(
    tmp_path: Path,
) -> None:
    async def body() -> None:
        async with gateway_kit(tmp_path) as kit:
            slow = SlowAnswers(kit.store)
            one, two = Metadata(slow), Metadata(kit.store)
            await one.start()
            await two.start()
            key = project_key("p")
            changing = asyncio.create_task(
                one.change(key, Project, lambda _: Project(name="p", description="first"))
            )
            await until(lambda: described(two) == "first")
            await two.change(key, Project, lambda _: Project(name="p", description="second"))
            await until(lambda: described(one) == "second")
            slow.late.set()
            await changing
            assert described(one) == "second"
            await one.close()
            await two.close()

    run(body())


@pytest.mark.parametrize("how", ["get", "list"])
def test_a_late_answer_to_a_read_does_not_bring_back_what_was_removed_since(
    tmp_path: Path, how: str
) -> None:
    async def body() -> None:
        async with gateway_kit(tmp_path) as kit:
            slow = SlowReads(kit.store)
            one, two = Metadata(slow), Metadata(kit.store)
            await one.start()
            await two.start()
            key = project_key("p")
            await two.change(key, Project, lambda _: Project(name="p", description="there"))
            await until(lambda: described(one) == "there")
            slow.is_slow = True
            reading = asyncio.create_task(
                one.fresh(key, Project) if how == "get" else one.list(PROJECTS, Project)
            )
            await slow.has_read.wait()
            await two.change(key, Project, lambda _: None)
            await until(lambda: not described(one))
            slow.late.set()
            await reading
            assert not described(one)
            await one.close()
            await two.close()

    run(body())


def test_a_late_answer_that_there_is_nothing_does_not_remove_what_was_made_since(
    tmp_path: Path,
) -> None:
    async def body() -> None:
        async with gateway_kit(tmp_path) as kit:
            slow = SlowReads(kit.store)
            one, two = Metadata(slow), Metadata(kit.store)
            await one.start()
            await two.start()
            key = project_key("p")
            slow.is_slow = True
            reading = asyncio.create_task(one.fresh(key, Project))
            await slow.has_read.wait()
            await two.change(key, Project, lambda _: Project(name="p", description="there"))
            await until(lambda: described(one) == "there")
            slow.late.set()
            await reading
            assert described(one) == "there"
            await one.close()
            await two.close()

    run(body())


def test_a_value_that_cannot_be_read_is_told_and_does_not_end_the_watch(
    tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(metadata_module, "_PAUSE_S", 0.01)

    async def body() -> None:
        async with gateway_kit(tmp_path) as kit:
            metadata = Metadata(kit.store)
            await metadata.start()
            version = await kit.store.compare_and_set(project_key("q"), b'{"no": 1}', version=0)
            assert version is not None
            await until(lambda: not metadata.is_fresh)
            await kit.store.compare_and_set(project_key("q"), None, version=version)
            other = Project(name="p", description="there")
            await kit.store.compare_and_set(project_key("p"), msgspec.json.encode(other), version=0)
            await until(lambda: metadata.is_fresh and described(metadata) == "there")
            await metadata.close()

    run(body())


def test_a_gateway_is_well_again_once_the_metastore_is(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(metadata_module, "_PAUSE_S", 0.01)

    async def body() -> None:
        async with gateway_kit(tmp_path) as kit:
            away = Away(kit.store)
            metadata = Metadata(away)
            await metadata.start()
            assert metadata.is_fresh
            away.is_away = True
            await until(lambda: not metadata.is_fresh)
            away.is_away = False
            # Nothing is changed: that it answers must be enough.
            await until(lambda: metadata.is_fresh)
            await metadata.close()

    run(body())
