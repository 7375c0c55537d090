"""The copy of the metadata: never behind what was heard, and honest about being watched."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from raftwood.base.errors import Unavailable
from raftwood.base.seams import Change, MetaStore
from raftwood.loghub.model import Project
from raftwood.loghub.server import metadata as metadata_module
from raftwood.loghub.server.metadata import Metadata, project_key
from tests.running import run
from tests.unit.loghub.kit import gateway_kit


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

    async def watch(self, prefix: str, *, after_version: int) -> AsyncIterator[tuple[Change, ...]]:
        watching = self._store.watch(prefix, after_version=after_version)
        while True:
            async with asyncio.timeout(None) as limit:
                following = asyncio.ensure_future(anext(watching))
                while not following.done():
                    if self.is_away:
                        following.cancel()
                        await asyncio.gather(following, return_exceptions=True)
                        raise Unavailable("away")
                    await asyncio.wait([following], timeout=0.01)
                assert limit is not None
            yield following.result()


async def until(is_true: Any) -> None:
    async with asyncio.timeout(10):
        while not is_true():
            await asyncio.sleep(0.01)


def described(metadata: Metadata) -> str:
    found = metadata.copy(project_key("p"), Project)
    return "" if found is None else found.description


def test_a_late_answer_to_a_change_does_not_bring_back_what_others_have_changed_since(
    tmp_path: Path,
) -> None:
    async def body() -> None:
        async with gateway_kit(tmp_path) as kit:
            slow = SlowAnswers(kit.store)
            one, two = Metadata(slow), Metadata(kit.store)  # type: ignore[arg-type]
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


def test_a_gateway_is_well_again_once_the_metastore_is(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(metadata_module, "_PAUSE_S", 0.01)

    async def body() -> None:
        async with gateway_kit(tmp_path) as kit:
            away = Away(kit.store)
            metadata = Metadata(away)  # type: ignore[arg-type]
            await metadata.start()
            assert metadata.is_fresh
            away.is_away = True
            await until(lambda: not metadata.is_fresh)
            away.is_away = False
            # Nothing is changed: that it answers must be enough.
            await until(lambda: metadata.is_fresh)
            await metadata.close()

    run(body())
