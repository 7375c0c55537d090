"""Programs without an event loop: a client, producers and readers from plain threads."""

import asyncio
import logging
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from unittest import mock

import pyarrow
import pytest

from raftwood.base.errors import DeadlineExceeded, Overloaded, Unauthenticated, Unavailable
from raftwood.loghub.client import (
    LogHubClient,
    LogHubHandler,
    NotDelivered,
    ProducerSettings,
    ReaderSettings,
)
from raftwood.loghub.errors import ProjectNotFound
from raftwood.loghub.model import AccessKey
from raftwood.loghub.server.access import AccessControl
from raftwood.loghub.wire import LogstoreOptions
from tests.kits.loghub.hub import LOGSTORE, PROJECT, Hub, hub
from tests.kits.running import run


def in_a_thread(
    folder: Path, work: Callable[[LogHubClient, Hub], None], *, shards: int = 2
) -> None:
    """Run some work with a client in a thread, beside a hub on a loop."""

    async def body() -> None:
        async with hub(folder, shards=shards) as made:

            def connected() -> None:
                with LogHubClient.connect(
                    ",".join(made.addresses), access_key=made.key.id, access_secret=made.key.secret
                ) as client:
                    work(client, made)

            await asyncio.to_thread(connected)

    run(body())


def test_records_are_sent_and_read_from_plain_threads(tmp_path: Path) -> None:
    def work(client: LogHubClient, _: Hub) -> None:
        with client.producer(PROJECT, LOGSTORE) as producer:

            def send(key: str) -> None:
                for number in range(200):
                    producer.send({"key": key, "n": str(number)}, key=key)

            threads = [threading.Thread(target=send, args=(key,)) for key in "abc"]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            delivered = producer.send({"key": "d", "n": "0"}, key="d").wait()
            assert delivered.shard in (0, 1)
            producer.flush()
            assert (producer.stored, producer.failed) == (601, 0)
        with client.reader(PROJECT, LOGSTORE) as reader:
            found: dict[str, list[int]] = {}
            for record in reader:
                key = str(record.contents["key"])
                found.setdefault(key, []).append(int(record.contents["n"]))
        assert found == {"a": [*range(200)], "b": [*range(200)], "c": [*range(200)], "d": [0]}

    in_a_thread(tmp_path, work)


def test_a_record_that_was_taken_is_settled_also_where_the_room_is_gone_by_then(
    tmp_path: Path,
) -> None:
    """Tables that are sent at the same time take room as well."""

    def work(client: LogHubClient, _: Hub) -> None:
        with client.producer(PROJECT, LOGSTORE) as producer:
            sending, may_go_on = producer._producer, threading.Event()
            producer._thread.soon(partial(may_go_on.wait, 10))  # type: ignore[arg-type]
            deliveries = [producer.send({"n": str(number)}) for number in range(3)]
            sending.held_bytes += sending.memory_max
            may_go_on.set()
            for delivery in deliveries:
                delivery.wait(5_000)
            sending.held_bytes -= sending.memory_max

    in_a_thread(tmp_path, work)


def test_tables_and_batches_go_in_and_out(tmp_path: Path) -> None:
    def work(client: LogHubClient, _: Hub) -> None:
        table = pyarrow.table({"n": range(100)})
        with client.producer(PROJECT, LOGSTORE) as producer:
            (delivered,) = producer.send_arrow(table, key="k")
        with client.reader(PROJECT, LOGSTORE) as reader:
            assert reader.to_arrow().equals(table)
            assert reader.freed == 0
        start = reader.positions
        assert client.reader(PROJECT, LOGSTORE).to_pandas()["n"].sum() == 4950
        assert client.reader(PROJECT, LOGSTORE).to_polars()["n"].sum() == 4950
        (batch,) = client.reader(PROJECT, LOGSTORE).batches()
        assert (batch.shard, batch.position) == (delivered.shard, delivered.position)
        assert list(client.reader(PROJECT, LOGSTORE, start=start)) == []

    in_a_thread(tmp_path, work)


def test_a_full_producer_blocks_up_to_its_time(tmp_path: Path) -> None:
    def work(client: LogHubClient, made: Hub) -> None:
        settings = ProducerSettings(memory_bytes_max=10_000)
        with client.producer(PROJECT, LOGSTORE, settings=settings) as producer:
            for _ in range(100):
                producer.send({"a": "x" * 500})
            producer.flush()
            assert producer.stored == 100
        made.call(made.kill(0))
        settings = ProducerSettings(memory_bytes_max=10_000, delivery_timeout_ms=1_000)
        producer = client.producer(PROJECT, LOGSTORE, settings=settings)
        with pytest.raises(Overloaded, match="memory_bytes_max"):
            for _ in range(100):
                producer.send({"a": "x" * 500}, is_waiting=False)
        with pytest.raises(NotDelivered):
            producer.flush()
        producer.close()
        with pytest.raises(Unavailable, match="closed"):
            producer.send({"a": "x"})

    in_a_thread(tmp_path, work)


def test_waiting_for_a_record_has_a_bound(tmp_path: Path) -> None:
    def work(client: LogHubClient, _: Hub) -> None:
        settings = ProducerSettings(linger_ms=5_000)
        with client.producer(PROJECT, LOGSTORE, settings=settings) as producer:
            delivery = producer.send({"a": "b"})
            with pytest.raises(DeadlineExceeded, match="50 ms"):
                delivery.wait(timeout_ms=50)
            producer.flush()
            assert delivery.is_done

    in_a_thread(tmp_path, work)


def test_projects_logstores_and_shards_are_managed(tmp_path: Path) -> None:
    def work(client: LogHubClient, _: Hub) -> None:
        client.create_project("shop", description="a shop")
        client.update_project("shop", description="a better shop")
        assert client.project("shop").description == "a better shop"
        assert [each.name for each in client.projects().projects] == ["shop", PROJECT]
        client.create_logstore("shop", "orders", shard_count=1)
        client.update_logstore("shop", "orders", LogstoreOptions(ttl_days=3))
        assert client.logstore("shop", "orders").ttl_days == 3
        assert client.logstores("shop").logstores == ["orders"]
        assert len(client.split_shard("shop", "orders", shard=0)) == 3
        assert len(client.merge_shard("shop", "orders", shard=1)) == 3
        client.delete_shard("shop", "orders", shard=0)
        assert [each.id for each in client.shards("shop", "orders")] == [1, 2, 3]
        assert [each.shard.id for each in client.describe("shop", "orders")] == [1, 2, 3]
        assert client.cursor("shop", "orders", shard=3, at="end") >= 0
        client.delete_logstore("shop", "orders")
        client.delete_project("shop")
        with pytest.raises(ProjectNotFound):
            client.project("shop")

    in_a_thread(tmp_path, work)


def test_a_key_that_a_gateway_has_not_heard_of_yet_is_let_in_when_it_has(tmp_path: Path) -> None:
    def work(_: LogHubClient, made: Hub) -> None:
        refused: list[str] = []

        def late(access: AccessControl, number: str) -> AccessKey | None:
            if len(refused) == 3:
                return known(access, number)
            refused.append(number)
            return None

        known = AccessControl.key
        with (
            mock.patch.object(AccessControl, "key", late),
            LogHubClient.connect(
                made.addresses, access_key=made.key.id, access_secret=made.key.secret
            ) as client,
        ):
            assert client.project(PROJECT)
        assert len(refused) == 3

    in_a_thread(tmp_path, work)


def test_a_wrong_secret_is_refused(tmp_path: Path) -> None:
    def work(_: LogHubClient, made: Hub) -> None:
        with pytest.raises(Unauthenticated):
            LogHubClient.connect(made.addresses, access_key=made.key.id, access_secret="x" * 30)

    in_a_thread(tmp_path, work)


def test_without_a_gateway_connecting_says_why() -> None:
    with pytest.raises(Unavailable, match="gateway"):
        LogHubClient.connect("127.0.0.1:1", access_key="k", access_secret="x" * 30, timeout_ms=100)


def test_log_lines_become_records_without_blocking(tmp_path: Path) -> None:
    def work(client: LogHubClient, _: Hub) -> None:
        logger = logging.getLogger("tests.loghub")
        settings = ProducerSettings(memory_bytes_max=5_000, linger_ms=1_000)
        producer = client.producer(PROJECT, LOGSTORE, settings=settings)
        handler = LogHubHandler(producer, topic="app", tags={"zone": "a"}, key="me")
        logger.addHandler(handler)
        logger.propagate = False
        try:
            logger.warning("hello %s", "world")
            logger.warning("wrong %d", "arguments")
            try:
                raise ValueError("broken")
            except ValueError:
                logger.exception("it failed")
            producer.flush()
            for number in range(100):
                logger.warning("line %d", number)
            assert handler.dropped > 0
            producer.close()
            logger.warning("too late")
        finally:
            logger.removeHandler(handler)
        first, wrong, failed, *rest = client.reader(PROJECT, LOGSTORE)
        assert first.contents["message"] == "hello world"
        assert first.contents["level"] == "WARNING"
        assert (first.topic, first.tags) == ("app", {"zone": "a"})
        assert str(wrong.contents["message"]).startswith("wrong %d (")
        assert "ValueError: broken" in str(failed.contents["exception"])
        assert len(rest) + handler.dropped == 101

    in_a_thread(tmp_path, work)


def test_a_reader_of_a_thread_can_skip_and_stop(tmp_path: Path) -> None:
    def work(client: LogHubClient, _: Hub) -> None:
        with client.producer(PROJECT, LOGSTORE) as producer:
            producer.send_many([{"n": str(number)} for number in range(5)], key="k")
        settings = ReaderSettings(skips_freed=True)
        with client.reader(PROJECT, LOGSTORE, follow=True, settings=settings) as reader:
            records = iter(reader)
            assert [next(records).contents["n"] for _ in range(5)] == list("01234")

    in_a_thread(tmp_path, work)
