"""One import reaches all systems of a `raftwood standalone`: with an event loop, and without."""

import asyncio
import logging
import os
import pty
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import raftwood
from raftwood import aio
from raftwood.errors import Fenced, NotFound, ProtocolError
from tests.kits.dlog.command_kit import Commands
from tests.kits.processes import RAFTWOOD
from tests.kits.server.running import ask, standalone


@pytest.fixture(scope="module")
def parts(module_folder: Path) -> Iterator[dict[str, Any]]:
    """A standalone that writes the context by which all programs here find it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(module_folder / "config"))
        patch.delenv("RAFTWOOD_CONTEXT")
        with standalone(module_folder) as served:
            yield served


@pytest.fixture(autouse=True)
def _folder(parts: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert parts
    monkeypatch.chdir(tmp_path)


def test_all_systems_without_an_event_loop() -> None:
    Commands().run("log", "create", "orders", "--replicas=1")
    with raftwood.connect() as cluster:
        orders = cluster.stream("shop/orders")
        orders.create(shards=1)
        orders.create(shards=1, if_absent=True)
        with orders.producer() as producer:
            for number in range(3):
                producer.send({"number": str(number)}, key="anna")
        assert [each.contents["number"] for each in orders.read(start="-15m")] == ["0", "1", "2"]
        assert orders.read().to_arrow().num_rows == 3
        assert list(orders.read("end")) == []
        assert raftwood.read("shop/orders", columns=["number int"])["number"].to_pylist() == [
            0,
            1,
            2,
        ]
        assert orders.table(engine="pandas").shape[0] == 3

        with cluster.log("orders") as log:
            lsn = log.append(b"a record")
        log = cluster.log("orders")
        records, _ = log.read(lsn)
        assert bytes(records[0].payload) == b"a record"

        audit = cluster.dlog("audit")
        audit.create()
        with audit.writer() as writer:
            first, second = writer.append_all([b"one", b"two"])
            with audit.writer() as other:
                with pytest.raises(Fenced):
                    writer.append(b"late")
                other.append(b"three")
        read = [bytes(each.message.payload) for each in audit.read()]
        assert read == [b"one", b"two", b"three"]
        assert audit.shrink(second) > first

        with cluster.kv() as kv:
            kv.set("greeting", "hello", ex=60)
            assert kv.get("greeting") == b"hello"
            assert b"greeting" in list(kv.scan())
        with pytest.raises(NotFound):
            cluster.log("nowhere")


def test_a_consumer_runs_until_a_signal_and_keeps_its_leases_in_the_metastore() -> None:
    with raftwood.connect() as cluster:
        stream = cluster.stream("shop/billing")
        stream.create(shards=2)
        seen: list[Any] = []

        @stream.consumer(group="billing", timeout_s=2)
        def process(batch: Any, _: raftwood.CheckpointTracker) -> None:
            seen.extend(record.contents["n"] for record in batch.records())
            if len(seen) == 10:
                os.kill(os.getpid(), signal.SIGTERM)

        with stream.producer() as producer:
            for number in range(10):
                producer.send({"n": str(number)}, key=str(number))
        process.run()
        assert sorted(seen) == sorted(map(str, range(10)))
        assert not Path("raftwood-leases.sqlite").exists()
        # A second worker goes on behind what the first one has handed over.
        with stream.producer() as producer:
            producer.send({"n": "10"}).wait()
        more: list[Any] = []

        @stream.consumer(group="billing", timeout_s=2)
        def follow(batch: Any, _: raftwood.CheckpointTracker) -> None:
            more.extend(record.contents["n"] for record in batch.records())
            follow.stop()

        thread = threading.Thread(target=follow.run)
        thread.start()
        thread.join(60)
        assert more == ["10"]


def test_all_systems_with_an_event_loop() -> None:
    Commands().run("log", "create", "returns", "--replicas=1")

    async def main() -> None:
        async with aio.connect() as cluster:
            returns = cluster.stream("shop/returns")
            await returns.create(shards=1)
            async with returns.producer() as producer:
                await producer.send({"user": "anna"}, key="anna")
            assert [each.contents async for each in returns.read()] == [{"user": "anna"}]
            assert (await (await cluster.keeper()).find_shard("returns")).name == "returns"

            async with cluster.log("returns") as log:
                lsn = await log.append(b"a record")
                assert (await log.read(lsn))[0]

            audit = cluster.dlog("returns")
            await audit.create()
            async with audit.writer() as writer:
                await writer.append(b"one")
            assert [bytes(each.message.payload) async for each in audit.read()] == [b"one"]

            kv = await cluster.kv()
            await kv.set("returned", "yes")
            assert await kv.get("returned") == b"yes"

            @returns.consumer(group="refunds", timeout_s=2)
            async def process(batch: Any, checkpoint: aio.AsyncCheckpointTracker) -> None:
                assert [record.contents["user"] for record in batch.records()] == ["anna"]
                await checkpoint.save_checkpoint(persistent=True)
                process.stop()

            await process.run()

    asyncio.run(main())


def test_addresses_and_a_key_reach_loghub_and_nothing_else(parts: dict[str, Any]) -> None:
    loghub = parts["loghub"]
    with raftwood.connect(
        loghub["native"],
        access_key=loghub["access_key_id"],
        access_secret=loghub["access_key_secret"],
    ) as cluster:
        stream = cluster.stream("shop/alone")
        stream.create(shards=1, if_absent=True)
        assert list(stream.read()) == []
        # The end of the cluster puts what a producer holds that nobody has closed.
        stream.producer().send({"n": "1"})
        with pytest.raises(
            raftwood.errors.InvalidConfiguration, match=r"zeppelin_client\.password"
        ):
            cluster.kv()
        with pytest.raises(raftwood.errors.InvalidInput, match=r"secrets\.clients"):
            cluster.log("orders")

    with raftwood.connect() as cluster:
        assert [each.contents for each in cluster.stream("shop/alone").read()] == [{"n": "1"}]


def test_a_client_at_the_wrong_port_learns_which_port_it_is(parts: dict[str, Any]) -> None:
    loghub = parts["loghub"]
    over_http = loghub["url"].removeprefix("http://")
    for settings in (
        {"loghub_client.gateways": [over_http]},
        {"cluster.members": [f"1={over_http}"]},
    ):
        with (
            raftwood.connect(settings=settings) as cluster,
            pytest.raises(ProtocolError, match=r"serves HTTP: .* gateway\.listen"),
        ):
            if "cluster.members" in settings:
                cluster.log("orders")
            else:
                list(cluster.stream("shop/orders").read())
    status, text = ask(loghub["native"], "/")
    assert status == 400
    assert "gateway.http_listen" in text


def test_log_lines_are_shipped_with_the_clusters_settings() -> None:
    with raftwood.connect() as cluster, cluster.shipper() as shipper:
        handler = raftwood.ClogsHandler("shop/app.log", shipper)
        logger = logging.getLogger("tests.front_door")
        logger.addHandler(handler)
        logger.error("shipped %s", "at once")
        logger.removeHandler(handler)
        shipper.send("shop/app.log", ["behind it"]).wait(60_000)
        shipped = [each.contents for each in cluster.stream("default/shipped").read()]
    assert [each for each in shipped if "shipped at once" in each.values()]


def test_benchmarks_measure_it_and_leave_nothing_behind() -> None:
    commands = Commands()
    found = [
        row
        for name in ("produce", "consume", "kv", "log")
        for row in commands.json("bench", name, "--seconds=0.3")
    ]
    assert [row["operation"] for row in found] == ["produce", "consume", "set", "get", "append"]
    for row in found:
        assert row["errors"] == 0
        assert row["records"] > 0
        assert 0 < row["p50_ms"] <= row["p99_ms"]
    for kind in ("project", "log"):
        assert "bench-" not in commands.run(kind, "list")
    with raftwood.connect() as cluster:
        with cluster.kv() as kv:
            assert not [key for key in kv.scan() if key.startswith(b"bench-")]
        stream = cluster.stream("shop/measured")
        stream.create(shards=1)
        commands.run("bench", "consume", "--target=shop/measured", status=1, expect="no records")
        commands.run("bench", "produce", "--target=shop/measured", "--seconds=0.1")
        assert next(iter(stream.read())).contents["message"]
    commands.run("bench", "produce", "--target=shop/nowhere", status=1, expect="no logstore")


def test_produce_says_on_a_terminal_how_its_input_ends() -> None:
    with raftwood.connect() as cluster:
        stream = cluster.stream("shop/typed")
        stream.create(shards=1)
        parent, child = pty.openpty()
        with (
            open(parent, "wb", buffering=0) as terminal,
            subprocess.Popen(
                (*RAFTWOOD, "produce", "shop/typed"),
                stdin=child,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            ) as process,
        ):
            os.close(child)
            assert process.stderr is not None
            assert "Ctrl-D" in process.stderr.readline()
            terminal.write(b"hello\n\x04")
            assert process.wait(60) == 0
        assert [each.contents["message"] for each in stream.read()] == ["hello"]
