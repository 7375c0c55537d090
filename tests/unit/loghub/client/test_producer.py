"""A producer against gateways: records arrive once and in order, through splits and failures."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pyarrow
import pytest

from raftwood.base.compression import Codec
from raftwood.base.errors import InvalidInput, Overloaded, Unavailable
from raftwood.loghub.client.hub_client import AsyncLogHubClient
from raftwood.loghub.client.producer import ProducerSettings
from raftwood.loghub.client.pulled_batches import LogRecord
from raftwood.loghub.errors import BatchTooLarge, DeliveryUnknown, LogstoreNotFound, NotDelivered
from tests.kits.loghub.hub import LOGSTORE, PROJECT, Hub, hub
from tests.kits.running import run


async def all_records(client: AsyncLogHubClient) -> list[LogRecord]:
    async with client.reader(PROJECT, LOGSTORE) as reader:
        return [record async for record in reader]


async def check_once_in_order(client: AsyncLogHubClient, sent: dict[str, int]) -> None:
    """Each key has all its numbers, in order."""
    found: dict[str, list[int]] = {key: [] for key in sent}
    for record in await all_records(client):
        found[str(record.contents["key"])].append(int(record.contents["n"]))
    assert found == {key: list(range(count)) for key, count in sent.items()}


def test_a_record_arrives_as_it_was_sent(tmp_path: Path) -> None:
    async def body() -> None:
        async with hub(tmp_path) as made:
            client = made.clients[0]
            async with client.producer(PROJECT, LOGSTORE) as producer:
                delivery = await producer.send(
                    {"message": "grüß", "raw": b"\xff\x00", "long": "x" * 5000, "": ""},
                    key="user",
                    time_ns=1_700_000_000_000_000_007,
                    topic="nginx",
                    source="h1",
                    tags={"zone": "a"},
                )
                delivered = await delivery
                assert delivery.result() is delivered
            (record,) = await all_records(client)
            assert record == LogRecord(
                1_700_000_000_000_000_007,
                {"message": "grüß", "raw": b"\xff\x00", "long": "x" * 5000, "": ""},
                "nginx",
                "h1",
                {"zone": "a"},
                delivered.shard,
                delivered.position,
            )

    run(body())


@pytest.mark.parametrize("codec", Codec)
def test_records_of_one_key_stay_in_order(tmp_path: Path, codec: Codec) -> None:
    async def body() -> None:
        async with hub(tmp_path, shards=3) as made:
            client = made.clients[0]
            settings = ProducerSettings(codec=codec, batch_bytes_max=2_000)
            async with client.producer(PROJECT, LOGSTORE, settings=settings) as producer:
                for number in range(200):
                    for key in ("a", "b", "c", "d"):
                        await producer.send({"key": key, "n": str(number)}, key=key)
            await check_once_in_order(client, dict.fromkeys("abcd", 200))
            assert producer.stored == 800

    run(body())


def test_records_without_a_key_reach_all_shards(tmp_path: Path) -> None:
    async def body() -> None:
        async with hub(tmp_path, shards=3) as made:
            client = made.clients[0]
            async with client.producer(PROJECT, LOGSTORE) as producer:
                for _ in range(6):
                    await asyncio.gather(*await producer.send_many([{"a": "b"}] * 5))
            records = await all_records(client)
            assert len(records) == 30
            assert {record.shard for record in records} == {0, 1, 2}

    run(body())


def test_arrow_goes_in_whole_and_comes_out_as_records_and_as_arrow(tmp_path: Path) -> None:
    async def body() -> None:
        async with hub(tmp_path) as made:
            client = made.clients[0]
            table = pyarrow.table({"n": range(1000), "text": ["x" * 100] * 1000})
            settings = ProducerSettings(batch_bytes_max=50_000)
            async with client.producer(PROJECT, LOGSTORE, settings=settings) as producer:
                deliveries = await producer.send_arrow(table, key="k")
                assert len(deliveries) == 3
                await asyncio.gather(*deliveries)
                assert producer.stored == 1000
            async with client.reader(PROJECT, LOGSTORE) as reader:
                assert (await reader.to_arrow()).equals(table)
            records = await all_records(client)
            assert [record.contents["n"] for record in records] == list(map(str, range(1000)))

    run(body())


def test_order_per_key_holds_while_shards_are_split_and_merged(tmp_path: Path) -> None:
    async def body() -> None:
        async with hub(tmp_path, gateways=2) as made:
            client = await made.client()
            sent = await _send_through(client, _reshard(client))
            await check_once_in_order(client, sent)

    run(body())


async def _reshard(client: AsyncLogHubClient) -> AsyncIterator[None]:
    for _ in range(4):
        shards = await client.shards(PROJECT, LOGSTORE)
        writable = [each for each in shards if each.status == "readwrite"]
        await client.split_shard(PROJECT, LOGSTORE, shard=writable[-1].id)
        yield
        shards = await client.shards(PROJECT, LOGSTORE)
        writable = [each for each in shards if each.status == "readwrite"]
        await client.merge_shard(
            PROJECT, LOGSTORE, shard=min(writable, key=lambda each: each.begin).id
        )
        yield


async def _send_through(client: AsyncLogHubClient, faults: AsyncIterator[None]) -> dict[str, int]:
    """Send while the faults happen; how many records each key was given."""
    settings = ProducerSettings(batch_records_max=20)
    sent = {f"key-{number}": 0 for number in range(20)}
    async with client.producer(PROJECT, LOGSTORE, settings=settings) as producer:

        async def send() -> None:
            while True:
                for key, number in sent.items():
                    await producer.send({"key": key, "n": str(number)}, key=key)
                    sent[key] = number + 1
                await asyncio.sleep(0.001)

        sending = asyncio.get_running_loop().create_task(send())
        try:
            async for _ in faults:
                await asyncio.sleep(0.02)
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
        await producer.flush()
        assert producer.failed == 0
    return sent


def test_order_per_key_holds_while_gateways_die_and_shards_are_split(tmp_path: Path) -> None:
    async def faults(made: Hub, client: AsyncLogHubClient) -> AsyncIterator[None]:
        for step in range(4):
            await made.kill(step % 2)
            yield
            shards = await client.shards(PROJECT, LOGSTORE)
            writable = [each for each in shards if each.status == "readwrite"]
            await client.split_shard(PROJECT, LOGSTORE, shard=writable[0].id)
            yield
            await made.revive(step % 2)
            yield
            await asyncio.sleep(0.1)

    async def body() -> None:
        async with hub(tmp_path, gateways=2) as made:
            client = await made.client()
            sent = await _send_through(client, faults(made, client))
            await check_once_in_order(client, sent)

    run(body())


def test_while_no_gateway_is_there_records_wait_and_then_arrive(tmp_path: Path) -> None:
    async def body() -> None:
        async with hub(tmp_path) as made:
            client = made.clients[0]
            async with client.producer(PROJECT, LOGSTORE) as producer:
                await (await producer.send({"key": "a", "n": "0"}, key="a"))
                await made.kill(0)
                deliveries = await producer.send_many(
                    [{"key": "a", "n": str(number)} for number in range(1, 50)], key="a"
                )
                await asyncio.sleep(0.1)
                assert not any(delivery.is_done for delivery in deliveries)
                await made.revive(0)
                await producer.flush()
                assert producer.retries > 0
            await check_once_in_order(client, {"a": 50})

    run(body())


def test_a_record_that_cannot_be_sent_in_its_time_is_not_stored(tmp_path: Path) -> None:
    async def body() -> None:
        async with hub(tmp_path) as made:
            client = made.clients[0]
            async with client.producer(PROJECT, LOGSTORE) as producer:
                await (await producer.send({"a": "b"}))
            await made.kill(0)
            settings = ProducerSettings(delivery_timeout_ms=100)
            producer = client.producer(PROJECT, LOGSTORE, settings=settings)
            delivery = await producer.send({"a": "b"})
            with pytest.raises(NotDelivered, match="delivery_timeout_ms"):
                await delivery
            with pytest.raises(NotDelivered):
                await producer.flush()
            await producer.close()
            assert (producer.stored, producer.failed) == (0, 1)

    run(body())


def test_a_record_without_an_answer_is_in_doubt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> None:
        async with hub(tmp_path) as made:
            client = made.clients[0]
            settings = ProducerSettings(delivery_timeout_ms=3_000, attempt_timeout_ms=1_000)
            producer = client.producer(PROJECT, LOGSTORE, settings=settings)
            put = made.gateway.streams.put
            gate = asyncio.Event()

            async def slow(*given: Any, **named: Any) -> Any:
                await gate.wait()
                return await put(*given, **named)

            monkeypatch.setattr(made.gateway.streams, "put", slow)
            delivery = await producer.send({"a": "b"}, key="k")
            with pytest.raises(DeliveryUnknown, match="may be stored"):
                await delivery
            # What follows waits until the one before is answered.
            later = await producer.send({"a": "c"}, key="k")
            gate.set()
            await later
            with pytest.raises(DeliveryUnknown):
                await producer.close()
            records = await all_records(client)
            assert [record.contents["a"] for record in records] == ["b", "c"]

    run(body())


def test_a_full_producer_waits_or_says_what_to_do(tmp_path: Path) -> None:
    async def body() -> None:
        async with hub(tmp_path) as made:
            client = made.clients[0]
            settings = ProducerSettings(memory_bytes_max=10_000)
            async with client.producer(PROJECT, LOGSTORE, settings=settings) as producer:
                with pytest.raises(Overloaded, match="memory_bytes_max"):
                    for _ in range(100):
                        producer.send_soon({"a": "x" * 500})
                for _ in range(100):
                    await producer.send({"a": "x" * 500})
            assert 100 < producer.stored < 200

    run(body())


def test_a_flush_does_not_wait_for_what_comes_after_it(tmp_path: Path) -> None:
    async def body() -> None:
        async with hub(tmp_path) as made:
            producer = made.clients[0].producer(PROJECT, LOGSTORE)

            async def keep_sending() -> None:
                while True:
                    await producer.send_many([{"a": "b"}] * 100, key="k")
                    await asyncio.sleep(0)

            sending = asyncio.get_running_loop().create_task(keep_sending())
            try:
                async with asyncio.timeout(60):
                    for _ in range(3):
                        delivery = await producer.send({"a": "c"}, key="k")
                        await producer.flush()
                        assert delivery.is_done
            finally:
                sending.cancel()
            await producer.close()

    run(body())


def test_a_logstore_that_is_not_there_fails_records_at_once(tmp_path: Path) -> None:
    async def body() -> None:
        async with hub(tmp_path) as made:
            producer = made.clients[0].producer(PROJECT, "missing")
            delivery = await producer.send({"a": "b"})
            with pytest.raises(LogstoreNotFound):
                await delivery
            with pytest.raises(LogstoreNotFound):
                await producer.close()

    run(body())


def test_what_a_gateway_refuses_fails_by_itself(tmp_path: Path) -> None:
    async def body() -> None:
        async with hub(tmp_path) as made:
            settings = ProducerSettings(codec=Codec.NONE)
            producer = made.clients[0].producer(PROJECT, LOGSTORE, settings=settings)
            large = await producer.send({"a": "x" * (5 << 20)}, key="a")
            small = await producer.send({"a": "x"}, key="a")
            with pytest.raises(BatchTooLarge):
                await large
            await small
            with pytest.raises(BatchTooLarge):
                await producer.flush()
            await producer.close()

    run(body())


def test_what_is_no_text_is_refused_by_name(tmp_path: Path) -> None:
    async def body() -> None:
        async with hub(tmp_path) as made:
            producer = made.clients[0].producer(PROJECT, LOGSTORE)
            async with producer:
                odd: Any
                for odd in ({"a": 5}, {"a": None}, {"a": ["x"]}, {"b": "x", "a": [b"x", b"y"]}):
                    with pytest.raises(InvalidInput, match="'a'"):
                        producer.send_soon(odd)
                with pytest.raises(InvalidInput, match="give text"):
                    producer.send_soon({5: "x"})  # type: ignore[dict-item]
                with pytest.raises(InvalidInput, match="key"):
                    producer.send_soon({"a": "x"}, key=5)  # type: ignore[arg-type]
                with pytest.raises(InvalidInput, match="1970"):
                    producer.send_soon({"a": "x"}, time_ns=-1)

    run(body())


def test_a_closed_producer_takes_nothing(tmp_path: Path) -> None:
    async def body() -> None:
        async with hub(tmp_path) as made:
            client = made.clients[0]
            producer = client.producer(PROJECT, LOGSTORE)
            delivery = producer.send_soon({"a": "b"})
            await producer.close(is_waiting=False)
            with pytest.raises(NotDelivered):
                await delivery
            with pytest.raises(Unavailable, match="closed"):
                producer.send_soon({"a": "b"})

    run(body())
