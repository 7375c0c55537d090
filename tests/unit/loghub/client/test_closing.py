"""A producer that is closed while a batch is under way."""

import asyncio
import gc
from typing import Any

import pytest

from raftwood.base.errors import ConnectionLost
from raftwood.disk.real_environment import real_environment
from raftwood.loghub.client.producer import AsyncProducer
from raftwood.loghub.errors import DeliveryUnknown
from raftwood.loghub.model import KEY_END, KEY_FIRST, Shard, ShardStatus
from tests.kits.running import run, until

SHARD = Shard(
    id=0, log="l", status=ShardStatus.READWRITE, begin=KEY_FIRST, end=KEY_END, created_s=0
)


class Silent:
    """Gateways that take what they get, and say nothing."""

    def __init__(self) -> None:
        self.calls: list[asyncio.Future[bytes]] = []

    def pick(self, _: int) -> "Silent":
        return self

    def call(self, *_: object) -> "asyncio.Future[bytes]":
        self.calls.append(asyncio.get_running_loop().create_future())
        return self.calls[-1]

    async def ask(self, *_: object, **__: object) -> list[Shard]:
        return [SHARD]


def test_a_connection_that_ends_after_the_producer_is_no_news_to_anybody() -> None:
    said: list[dict[str, Any]] = []

    async def body() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, what: said.append(what))
        gateways = Silent()
        with real_environment() as environment:
            producer = AsyncProducer(environment, gateways, project="p", logstore="s")  # type: ignore[arg-type]
            delivery = await producer.send({"message": "x"})
            await until(lambda: bool(gateways.calls))
            await producer.close(is_waiting=False)
            with pytest.raises(DeliveryUnknown):
                await delivery
            gateways.calls.pop().set_exception(ConnectionLost("the connection ended"))
            await asyncio.sleep(0)
            gc.collect()

    run(body())
    assert not said
