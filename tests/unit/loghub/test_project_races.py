"""A project is deleted while somebody makes a logstore in it: one of the two is refused."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from raftwood.base.errors import Conflict
from raftwood.loghub.errors import ProjectNotFound
from raftwood.loghub.server.catalog import Catalog
from raftwood.loghub.server.gateway import Gateway
from tests.kits.loghub.streams import gateway_kit
from tests.kits.running import run


def before_writing(gateway: Gateway, others: Callable[[], Any]) -> None:
    """Let others do something just before the gateway's next change of the metastore."""
    metadata = gateway.metadata
    real = metadata.store

    class Interrupted:
        is_done = False

        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

        async def _others(self) -> None:
            if not self.is_done:
                self.is_done = True
                await others()

        async def compare_and_set(self, *arguments: Any, **options: Any) -> Any:
            await self._others()
            return await real.compare_and_set(*arguments, **options)

        async def transact(self, *arguments: Any, **options: Any) -> Any:
            await self._others()
            return await real.transact(*arguments, **options)

    metadata.store = Interrupted()


def test_a_logstore_is_not_made_in_a_project_that_has_just_gone(tmp_path: Path) -> None:
    async def body() -> None:
        async with gateway_kit(tmp_path) as kit:
            one, two = await kit.gateway(), await kit.gateway()
            await one.catalog.create_project("p")
            before_writing(one, lambda: two.catalog.delete_project("p"))
            with pytest.raises(ProjectNotFound):
                await one.catalog.create_logstore("p", "s", shard_count=1)
            await two.catalog.create_project("p")
            assert await two.catalog.logstores("p") == (0, [])
            assert await kit.logs.names("loghub-") == []

    run(body())


def test_a_project_stays_that_has_just_got_a_logstore(tmp_path: Path) -> None:
    async def body() -> None:
        async with gateway_kit(tmp_path) as kit:
            one, two = await kit.gateway(), await kit.gateway()
            await one.catalog.create_project("p")
            before_writing(one, lambda: two.catalog.create_logstore("p", "s", shard_count=1))
            with pytest.raises(Conflict, match="1 logstores"):
                await one.catalog.delete_project("p")
            assert await two.catalog.logstores("p") == (1, ["s"])

    run(body())


def test_many_logstores_are_made_at_once(tmp_path: Path) -> None:
    async def body() -> None:
        async with gateway_kit(tmp_path) as kit:
            one, two = await kit.gateway(), await kit.gateway()
            await one.catalog.create_project("p")
            catalogs: list[Catalog] = [one.catalog, two.catalog]
            await asyncio.gather(
                *(
                    catalogs[number % 2].create_logstore("p", f"s{number}", shard_count=1)
                    for number in range(20)
                )
            )
            assert (await one.catalog.logstores("p"))[0] == 20

    run(body())
