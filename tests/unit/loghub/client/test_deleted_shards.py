"""Readers of shards that somebody deletes just when they come to them."""

import asyncio
from pathlib import Path

import pytest

from raftwood.loghub.client.hub_client import AsyncLogHubClient
from raftwood.loghub.client.reader import AsyncReader, ReaderSettings
from raftwood.loghub.errors import ShardNotFound
from raftwood.loghub.model import Shard
from tests.kits.loghub.hub import LOGSTORE, PROJECT, hub
from tests.kits.running import run
from tests.unit.loghub.client.test_reader import numbers, send


def delete_once_listed(client: AsyncLogHubClient, reader: AsyncReader, shard: int) -> asyncio.Event:
    """As if somebody deleted a shard between two steps of the reader, which waits for the event
    before it lists them.
    """
    pulling = reader._pulling
    ask = pulling._all_shards
    may_list = asyncio.Event()

    async def listed() -> list[Shard]:
        await may_list.wait()
        found = await ask()
        if any(each.id == shard for each in found):
            await client.delete_shard(PROJECT, LOGSTORE, shard=shard)
        return found

    pulling._all_shards = listed  # type: ignore[method-assign]
    return may_list


def test_a_shard_that_is_deleted_before_a_reader_begins_is_not_missed(tmp_path: Path) -> None:
    async def body() -> None:
        async with hub(tmp_path, shards=1) as made:
            client = made.clients[0]
            await send(client, 0, 5)
            await client.split_shard(PROJECT, LOGSTORE, shard=0)
            await send(client, 5, 10)
            reader = client.reader(PROJECT, LOGSTORE)
            delete_once_listed(client, reader, 0).set()
            assert await numbers(reader) == list(range(5, 10))

    run(body())


@pytest.mark.parametrize("is_skipping", [False, True])
def test_a_shard_that_is_deleted_before_a_reader_comes_to_it_counts_as_freed(
    tmp_path: Path, is_skipping: bool
) -> None:
    async def body() -> None:
        async with hub(tmp_path, shards=1) as made:
            client = made.clients[0]
            await send(client, 0, 3)
            settings = ReaderSettings(wait_ms=10, skips_freed=is_skipping)
            reader = client.reader(PROJECT, LOGSTORE, follow=True, settings=settings)
            records = aiter(reader)
            found = [int((await anext(records)).contents["n"]) for _ in range(3)]
            may_list = delete_once_listed(client, reader, 1)
            for shard in (0, 1, 2):
                await client.split_shard(PROJECT, LOGSTORE, shard=shard)
            await send(client, 3, 6)
            may_list.set()
            async with asyncio.timeout(60):
                if is_skipping:
                    found += [int((await anext(records)).contents["n"]) for _ in range(3)]
                    assert found == list(range(6))
                    assert reader.freed == 1
                else:
                    with pytest.raises(ShardNotFound):
                        await anext(records)
            await reader.close()

    run(body())
