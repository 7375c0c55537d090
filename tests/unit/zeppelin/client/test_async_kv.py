"""The client on several nodes: each command, batches, moves, failovers, replicas."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pyarrow
import pytest
import trustme

from raftwood.base.errors import (
    InvalidInput,
    PermissionDenied,
    Unauthenticated,
    Unavailable,
)
from raftwood.net.tls import ClientTls, ServerTls, TlsFiles
from raftwood.zeppelin.client import AsyncKv, CommandRefused
from raftwood.zeppelin.client.connection import IN_FLIGHT_MAX
from raftwood.zeppelin.node.data_server import DataServer
from raftwood.zeppelin.slots import slot_of
from tests.kits.running import in_virtual_time, run
from tests.kits.zeppelin.static_cluster import StaticCluster, listening
from tests.kits.zeppelin.static_view import PASSWORD, READER, WRITER

Scenario = Callable[[AsyncKv, StaticCluster, dict[str, DataServer]], Awaitable[None]]
KEYS = [f"key{number}" for number in range(3_000)]


@asynccontextmanager
async def connected(
    cluster: StaticCluster | None = None, **options: Any
) -> AsyncIterator[tuple[AsyncKv, StaticCluster, dict[str, DataServer]]]:
    cluster = cluster or StaticCluster()
    async with listening(cluster) as servers:
        given = {"user": WRITER, "password": PASSWORD, "timeout_ms": 20_000, **options}
        async with await AsyncKv.connect(cluster.addresses, **given) as kv:
            yield kv, cluster, servers


def on_cluster(scenario: Scenario, **options: Any) -> None:
    async def main() -> None:
        async with connected(**options) as given:
            await scenario(*given)

    in_virtual_time(main())


def test_values_are_set_and_read() -> None:
    async def scenario(kv: AsyncKv, *_: Any) -> None:
        assert await kv.get("a") is None
        assert await kv.set("a", "1", nx=True) is True
        assert await kv.set("a", "2", nx=True) is False
        assert await kv.set("b", "2", xx=True) is False
        assert await kv.set("a", "2", get=True) == b"1"
        assert await kv.set("fresh", "2", get=True) is None
        assert await kv.get("a") == b"2"
        assert await kv.cas("a", "2", "3")
        assert not await kv.cas("a", "2", "4")
        assert await kv.getset("a", "30") == b"3"
        assert await kv.incr("a") == 31
        assert await kv.incr("a", -1) == 30
        assert await kv.append("a", "x") == 3
        assert await kv.strlen("a") == 3
        assert await kv.exists("a")
        assert await kv.getdel("a") == b"30x"
        assert not await kv.exists("a")
        assert await kv.delete("a") == 0
        assert await kv.delete("b", "fresh") == 1
        assert await kv.command("SETRANGE", "r", 2, "z") == 3
        assert await kv.command("GETRANGE", "r", 2, 2, reads=True) == b"z"

    on_cluster(scenario)


def test_keys_end() -> None:
    async def scenario(kv: AsyncKv, *_: Any) -> None:
        assert await kv.ttl_ms("a") is None
        await kv.set("a", 1, ex=100)
        assert 99_000 < (await kv.ttl_ms("a") or 0) <= 100_000
        await kv.set("a", 1, keepttl=True)
        assert await kv.persist("a")
        assert not await kv.persist("a")
        assert await kv.ttl_ms("a") == -1
        assert await kv.expire("a", px=50_000)
        assert not await kv.expire("nothing", ex=5)
        assert await kv.cas("a", 1, 2, ex=10)
        await kv.set_many({"b": 1, "c": 2}, px=20_000)
        assert 19_000 < (await kv.ttl_ms("c") or 0) <= 20_000
        with pytest.raises(InvalidInput):
            await kv.expire("a")
        with pytest.raises(InvalidInput):
            await kv.set("a", 1, ex=1, px=1)
        with pytest.raises(InvalidInput):
            await kv.set_many({"a": 1}, px=0)

    on_cluster(scenario)


def test_batches_go_to_all_nodes_and_come_back_in_order() -> None:
    async def scenario(kv: AsyncKv, cluster: StaticCluster, _: Any) -> None:
        await kv.set_many((key, key.upper()) for key in KEYS)
        assert cluster.values() == {key.encode(): key.upper().encode() for key in KEYS}
        # A chunk of 2,000 rows is one record in each partition.
        assert [store.last_sequence for store in cluster.stores] == [2] * 6
        values = await kv.get_many([*KEYS, "nothing"])
        assert values == [*(key.upper().encode() for key in KEYS), None]
        assert await kv.delete_many([*KEYS[:1000], "nothing"]) == 1000
        assert await kv.size() == 2000
        await kv.incr_many({"n": 5, "m": -1})
        await kv.incr_many([("n", 5)], px=10_000)
        assert await kv.get_many(["n", "m"]) == [b"10", b"-1"]
        assert await kv.get_many([]) == []
        await kv.set_many({})

    on_cluster(scenario)


def test_large_values_are_cut_into_several_requests() -> None:
    async def scenario(kv: AsyncKv, *_: Any) -> None:
        large = {f"large{number}": bytes(3 << 20) for number in range(16)}
        await kv.set_many(large)
        assert await kv.get_many(large) == list(large.values())

    on_cluster(scenario)


def test_all_keys_of_a_tag_are_listed_and_deleted_at_once() -> None:
    async def scenario(kv: AsyncKv, *_: Any) -> None:
        await kv.set_many({"{t}a": 1, "{t}b": 2, "t": 3})
        assert await kv.tag_list("t") == {b"{t}a": b"1", b"{t}b": b"2"}
        assert await kv.tag_list("t", match="*a", count=5) == {b"{t}a": b"1"}
        assert await kv.tag_delete("t") == 2
        assert await kv.get("t") == b"3"
        for wrong in ("", "a}b"):
            with pytest.raises(InvalidInput):
                await kv.tag_delete(wrong)

    on_cluster(scenario)


def test_a_transaction_is_done_together() -> None:
    async def scenario(kv: AsyncKv, *_: Any) -> None:
        answers = await kv.transaction(
            [("SET", "{t}a", "x"), ("INCR", "{t}a"), ("INCR", "{t}n"), ("TAG", "LIST", "t")]
        )
        assert [answers[0], *answers[2:]] == ["OK", 1, {b"{t}a": b"x", b"{t}n": b"1"}]
        assert isinstance(answers[1], CommandRefused)
        with pytest.raises(CommandRefused, match="CROSSSLOT"):
            await kv.transaction([("SET", "{t}a", "y"), ("SET", "b", "y")])
        assert await kv.get("{t}a") == b"x"
        assert await kv.transaction([]) == []
        with pytest.raises(InvalidInput):
            await kv.transaction([("SET",)])

    on_cluster(scenario)


def test_all_keys_are_told_once() -> None:
    async def scenario(kv: AsyncKv, *_: Any) -> None:
        await kv.set_many(dict.fromkeys(KEYS, 1))
        assert sorted([key async for key in kv.scan(count=100)]) == sorted(map(str.encode, KEYS))
        assert sorted([key async for key in kv.scan("key1")]) == [b"key1"]
        await kv.flush()
        assert [key async for key in kv.scan()] == []

    on_cluster(scenario)


def test_keys_of_a_partition_that_moves_during_a_scan_are_told() -> None:
    async def scenario(kv: AsyncKv, cluster: StaticCluster, _: Any) -> None:
        await kv.set_many(dict.fromkeys(KEYS, 1))
        found, moved = [], False
        async for key in kv.scan(count=100):
            found.append(key)
            if not moved:
                moved = True
                first = cluster.masters[0]
                cluster.promote(0, "b" if first != "b" else "c")
                cluster.promote(5, "a")
        assert set(found) == set(map(str.encode, KEYS))

    on_cluster(scenario)


def test_arrow_goes_in_and_comes_out() -> None:
    async def scenario(kv: AsyncKv, *_: Any) -> None:
        table = pyarrow.table(
            {"key": KEYS, "value": list(range(len(KEYS))), "ttl": [60_000, None, 0] * 1000}
        )
        assert await kv.put_arrow(table, ttl_ms="ttl") == 3000
        assert [await kv.ttl_ms(key) for key in KEYS[1:3]] == [-1, -1]
        assert (await kv.ttl_ms(KEYS[0]) or 0) > 59_000
        got = await kv.get_arrow(table["key"])
        assert got["value"].to_pylist() == [b"%d" % number for number in range(3000)]
        assert (await kv.get_arrow(["nothing"])).to_pylist() == [{"key": b"nothing", "value": None}]
        rows = [row async for part in kv.scan_arrow("key1?") for row in part.to_pylist()]
        assert sorted(row["value"] for row in rows) == [b"%d" % each for each in range(10, 20)]
        batch = table.to_batches()[0].slice(0, 5)
        assert await kv.put_arrow(batch, ttl_ms=9_000) == 5
        assert 0 < (await kv.ttl_ms(KEYS[1]) or 0) <= 9_000
        for options in ({"key": "no"}, {"ttl_ms": 0}, {"value": "ttl"}):
            with pytest.raises(InvalidInput):
                await kv.put_arrow(table, **options)

    on_cluster(scenario)


def test_a_partition_that_moved_is_followed() -> None:
    async def scenario(kv: AsyncKv, cluster: StaticCluster, _: Any) -> None:
        await kv.set_many(dict.fromkeys(KEYS, 1))
        for number in range(6):
            cluster.promote(number, "c")
        assert await kv.incr(KEYS[0]) == 2
        await kv.incr_many(dict.fromkeys(KEYS, 1))
        assert await kv.get_many(KEYS) == [b"3", *[b"2"] * 2999]
        assert await kv.transaction([("INCR", KEYS[1])]) == [3]
        await kv.flush()
        assert await kv.size() == 0

    on_cluster(scenario)


def test_a_node_that_has_not_heard_yet_does_not_lead_astray() -> None:
    async def scenario(kv: AsyncKv, cluster: StaticCluster, _: Any) -> None:
        cluster.views["b"].hears_no_more()
        for number in range(6):
            cluster.promote(number, "c")
        for number in range(50):
            assert await kv.incr(f"n{number}") == 1
        await kv.incr_many({f"n{number}": 1 for number in range(50)})

    on_cluster(scenario)


def test_a_node_that_dies_is_done_without() -> None:
    async def scenario(kv: AsyncKv, cluster: StaticCluster, servers: dict[str, DataServer]) -> None:
        await kv.incr_many(dict.fromkeys(KEYS, 1))

        async def die() -> None:
            await asyncio.sleep(0.05)
            await servers["a"].close()
            await asyncio.sleep(0.1)
            cluster.fail_over("a")

        async with asyncio.TaskGroup() as group:
            group.create_task(die())
            for number in range(200):
                group.create_task(kv.incr(KEYS[number]))
                if number % 20 == 0:
                    await asyncio.sleep(0.01)
            await asyncio.sleep(0.05)
            await kv.incr_many(dict.fromkeys(KEYS, 1))
        assert await kv.get_many(KEYS[:201]) == [b"3"] * 200 + [b"2"]
        assert await kv.size() == 3000

    on_cluster(scenario)


def test_a_frozen_partition_is_waited_for() -> None:
    async def scenario(kv: AsyncKv, cluster: StaticCluster, _: Any) -> None:
        cluster.frozen.update(range(6))
        asyncio.get_running_loop().call_later(0.2, cluster.frozen.clear)
        assert await kv.incr("n") == 1

    on_cluster(scenario)


def test_a_slot_that_nobody_has_is_waited_for_and_then_an_error() -> None:
    async def scenario(kv: AsyncKv, cluster: StaticCluster, _: Any) -> None:
        for number in range(6):
            cluster.promote(number, None)
        patient_s, kv._calls._timeout_s = kv._calls._timeout_s, 0.3
        with pytest.raises(Unavailable, match="nothing was done"):
            await kv.set("a", 1)
        kv._calls._timeout_s = patient_s
        asyncio.get_running_loop().call_later(0.1, cluster.promote, slot_of(b"a") * 6 >> 14, "b")
        assert await kv.set("a", 1)

    on_cluster(scenario)


def test_replicas_answer_reads_and_masters_writes() -> None:
    async def scenario(kv: AsyncKv, cluster: StaticCluster, servers: dict[str, DataServer]) -> None:
        await kv.set_many(dict.fromkeys(KEYS, 1))
        alone = [key for key in KEYS if cluster.masters[slot_of(key.encode()) * 6 >> 14] == "a"]
        before = servers["a"].command_count
        for key in alone[:50]:
            assert await kv.get(key) == b"1"
        assert await kv.get_many(alone) == [b"1"] * len(alone)
        assert servers["a"].command_count == before
        assert await kv.incr(alone[0]) == 2
        assert sorted([key async for key in kv.scan()]) == sorted(map(str.encode, KEYS))
        assert await kv.size() == 3000
        # Both replicas of what a has are gone: the master answers.
        await servers["b"].close()
        await servers["c"].close()
        assert await kv.get(alone[1]) == b"1"
        assert await kv.get_many(alone[:9]) == [b"2", *[b"1"] * 8]

    on_cluster(scenario, read_from="replicas")


def test_many_requests_at_once_wait_for_room() -> None:
    async def scenario(kv: AsyncKv, *_: Any) -> None:
        count = 3 * IN_FLIGHT_MAX
        answers = await asyncio.gather(*(kv.incr("n") for _ in range(count)))
        assert sorted(answers) == list(range(1, count + 1))

    on_cluster(scenario)


def test_who_is_cancelled_leaves_the_others_alone() -> None:
    async def scenario(kv: AsyncKv, *_: Any) -> None:
        tasks = [asyncio.create_task(kv.incr("n")) for _ in range(2 * IN_FLIGHT_MAX)]
        await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        assert len([each for each in done if isinstance(each, int)]) >= IN_FLIGHT_MAX

    on_cluster(scenario)


def test_who_may_not_write_is_told() -> None:
    async def scenario(kv: AsyncKv, *_: Any) -> None:
        assert await kv.get("a") is None
        with pytest.raises(PermissionDenied):
            await kv.set("a", 1)
        with pytest.raises(PermissionDenied):
            await kv.set_many({"a": 1})

    on_cluster(scenario, user=READER)


def test_connections_are_encrypted_where_authorities_are_given(tmp_path: Path) -> None:
    authority, stranger = trustme.CA(), trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    files = {name: str(tmp_path / name) for name in ("chain", "key", "authority", "stranger")}
    certificate.private_key_pem.write_to_path(files["key"])
    certificate.cert_chain_pems[0].write_to_path(files["chain"])
    authority.cert_pem.write_to_path(files["authority"])
    stranger.cert_pem.write_to_path(files["stranger"])

    async def main() -> None:
        cluster = StaticCluster(("a",))
        tls = ServerTls(TlsFiles(certificate=files["chain"], key=files["key"]))
        async with listening(cluster) as servers:
            cluster.ports["a"] = await servers["a"].listen(tls=tls)
            cluster.epoch += 1
            login: dict[str, Any] = {"user": WRITER, "password": PASSWORD, "timeout_ms": 20_000}
            trusting = ClientTls(TlsFiles(authorities=files["authority"]))
            async with await AsyncKv.connect(cluster.addresses, **login, tls=trusting) as kv:
                assert await kv.incr("n") == 1
            doubting = ClientTls(TlsFiles(authorities=files["stranger"]))
            with pytest.raises(Unauthenticated, match="TLS with"):
                await AsyncKv.connect(cluster.addresses, **login, tls=doubting)

    run(main())


def test_a_wrong_password_is_refused() -> None:
    async def scenario() -> None:
        with pytest.raises(Unauthenticated, match="refuses 'writer'"):
            async with connected(password="guessed"):
                pass

    in_virtual_time(scenario())


def test_nobody_there_is_said() -> None:
    async def scenario() -> None:
        with pytest.raises(Unavailable, match=r"cannot connect to 127\.0\.0\.1:1: "):
            await AsyncKv.connect("127.0.0.1:1", user="a", password="b", timeout_ms=100)

    in_virtual_time(scenario())


def test_a_closed_client_says_so() -> None:
    async def scenario() -> None:
        async with connected() as (kv, _, _):
            await kv.set("a", 1)
        with pytest.raises(Unavailable, match="closed"):
            await kv.get("a")

    in_virtual_time(scenario())
