"""Connections: answers in order, held until writes are done, refused and bounded as they should."""

import asyncio
import ssl
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest
import trustme
import uvloop

from raftwood.net.listeners import BOUND_MIN
from raftwood.net.tls import ServerTls, TlsFiles
from raftwood.zeppelin.commands import dispatch
from raftwood.zeppelin.model import NodeId, Reads, TableConfig
from raftwood.zeppelin.node import data_connection
from raftwood.zeppelin.node import data_connection as data_connection_module
from raftwood.zeppelin.slots import slot_of
from tests.kits.running import in_virtual_time, run, until
from tests.kits.turns import counting
from tests.kits.zeppelin.acks import StaticAcks
from tests.kits.zeppelin.data_client import Client, connected, connected_to, key_of, two_nodes
from tests.kits.zeppelin.static_view import PASSWORD, WRITER, single_node

_READS = [
    "GET a",
    "MGET a a",
    "MGET a a a a a a a a a a",
    "BULK GET a b",
    "EXISTS a",
    "TTL a",
    "STRLEN a",
    "GETRANGE a 0 0",
    "GETEX a",
    "SET a 3 NX",
    "SETNX a 3",
    "MSETNX a 3",
    "CAS a 9 3",
    "INCR a",
    "BULK INCR a 1 0",
    "DEL z",
    "BULK DEL z",
    "TAG LIST t",
    "TAG DEL t",
    "SCAN 0",
    "KEYS *",
    "DBSIZE",
    "RANDOMKEY",
    "CLUSTER COUNTKEYSINSLOT 15495",
    "CLUSTER GETKEYSINSLOT 15495 1",
]
"""Each answers something that depends on key a, which has a word as its value, and on z, which was
deleted."""


@pytest.mark.parametrize("is_cold", [False, True], ids=["in memory", "to be fetched"])
@pytest.mark.parametrize("read", _READS)
def test_a_read_is_answered_once_what_it_tells_is_on_enough_replicas(
    read: str, is_cold: bool
) -> None:
    view = single_node(config=synced(min_replicas=2, replicas=2))
    acks, store = view.copy(0).acks, view.stores[0]
    assert isinstance(acks, StaticAcks)
    assert store is not None
    store.is_cold = is_cold

    async def main() -> None:
        async with connected(view) as client:
            acks.replica_has(NodeId("slave"), 1)
            assert await client("SET z 1") == ["OK"]
            client.send("DEL z", "SET a word", "SET {t}a 1")
            assert await client.is_silent()
            reader = await client.another()
            reader.send(read)
            assert await reader.is_silent()
            acks.replica_has(NodeId("slave"), 4)
            await reader.answers(1)

    in_virtual_time(main())


def test_a_transaction_and_what_follows_it_wait_for_what_it_read() -> None:
    view = single_node(config=synced(min_replicas=2, replicas=2))
    acks = view.copy(0).acks
    assert isinstance(acks, StaticAcks)

    async def main() -> None:
        async with connected(view) as client:
            client.send("SET a 1")
            reader = await client.another()
            assert await reader("MULTI", "GET a") == ["OK", "QUEUED"]
            reader.send("EXEC", "GET b")
            assert await reader.is_silent()
            acks.replica_has(NodeId("slave"), 1)
            assert await reader.answers(2) == [[b"1"], None]

    in_virtual_time(main())


def test_keys_that_were_written_before_are_read_while_others_wait() -> None:
    view = single_node(config=synced(min_replicas=2, replicas=2))
    acks = view.copy(0).acks
    assert isinstance(acks, StaticAcks)

    async def main() -> None:
        async with connected(view) as client:
            acks.replica_has(NodeId("slave"), 1)
            assert await client("SET a 1") == ["OK"]
            client.send("SET b 1")
            reader = await client.another()
            assert await reader("GET a", "EXISTS a", "MGET a a") == [b"1", 1, [b"1", b"1"]]

    in_virtual_time(main())


def test_who_reads_from_a_master_that_is_none_any_more_is_told_to_read_again() -> None:
    view = single_node(config=synced(min_replicas=2, replicas=2))

    async def main() -> None:
        async with connected(view) as client:
            client.send("SET a 1")
            reader = await client.another()
            reader.send("GET a")
            assert await reader.is_silent()
            view.copy(0).acks.end()
            assert (await reader.answers(1))[0].startswith("TRYAGAIN")
            assert (await client.answers(1))[0].startswith("NOREPLICAS")

    in_virtual_time(main())


@pytest.mark.parametrize(
    ("reads", "least", "waits"),
    [(None, 1, False), (None, 2, True), ("latest", 2, False), ("durable", 1, True)],
)
def test_a_table_says_whether_its_reads_wait(reads: Reads | None, least: int, waits: bool) -> None:
    config = synced(min_replicas=least, replicas=2)
    view = single_node(config=config, is_written_at_once=False, reads=reads)

    async def main() -> None:
        async with connected(view) as client:
            client.send("SET a 1")
            reader = await client.another()
            reader.send("GET a", "DBSIZE")
            if waits:
                assert await reader.is_silent()
            else:
                assert await reader.answers(2) == [b"1", 1]

    in_virtual_time(main())


def synced(min_replicas: int = 1, replicas: int = 1) -> TableConfig:
    return TableConfig(partitions=1, replicas=replicas, ack="synced", min_replicas=min_replicas)


def test_pipelined_requests_are_answered_in_order() -> None:
    async def main() -> None:
        async with connected(single_node()) as client:
            commands = [f"SET k{number} {number}" for number in range(100)]
            commands += [f"GET k{number}" for number in range(100)]
            commands += ["INCR n", "PING", "DBSIZE", "GET n", "NONSENSE", "GET k5"]
            answers = await client(*commands)
            assert answers[:100] == ["OK"] * 100
            assert answers[100:200] == [b"%d" % number for number in range(100)]
            assert answers[200:204] == [1, "PONG", 101, b"1"]
            assert answers[204].startswith("ERR unknown command")
            assert answers[205] == b"5"

    in_virtual_time(main())


def test_a_write_is_answered_once_it_is_synced_and_what_follows_with_it() -> None:
    view = single_node(config=synced(), is_written_at_once=False)
    store = view.stores[0]
    assert store is not None

    async def main() -> None:
        async with connected(view) as client:
            client.send("SET a 1", "GET a")
            assert await client.is_silent()
            client.send("INCR b")
            assert await client.is_silent()
            assert store.last_sequence == 2
            store.tell_written(2)
            assert await client.is_silent()
            store.sync(1)
            assert await client.answers(2) == ["OK", b"1"]
            store.sync(2)
            assert await client.answers(1) == [1]

    in_virtual_time(main())


def test_a_write_that_too_few_replicas_have_is_refused_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(data_connection, "ACK_S_MAX", 0.1)
    config = TableConfig(partitions=1, replicas=3, min_replicas=2, ack="memory")
    view = single_node(config=config)
    acks = view.copy(0).acks
    assert isinstance(acks, StaticAcks)

    async def main() -> None:
        async with connected(view) as client:
            acks.replica_has(NodeId("slave"), 1)
            assert await client("SET a 1") == ["OK"]
            answers = await client("SET a 2", "GET a", "INCR a")
            assert answers[0].startswith("NOREPLICAS Not enough good replicas to write")
            assert answers[1].startswith("NOREPLICAS Not enough good replicas to read")
            assert answers[2].startswith("NOREPLICAS")
            client.send("SET a 3")
            assert await client.is_silent()
            acks.replica_has(NodeId("slave"), 4)
            assert await client.answers(1) == ["OK"]
            assert await client("WAIT 1 1000", "WAIT 2 10") == [1, 1]
            acks.replica_left(NodeId("slave"))
            assert await client("WAIT 1 10") == [0]

    in_virtual_time(main())
    assert b"NOREPLICAS" in data_connection_module.NOT_ACKED


def test_clients_are_told_where_their_keys_are() -> None:
    view = two_nodes()
    mine, theirs, elsewhere, lost = (key_of(partition) for partition in range(4))

    async def main() -> None:
        async with connected(view) as client:
            answers = await client(
                f"SET {mine} 1", f"GET {theirs}", f"GET {elsewhere}", f"GET {lost}"
            )
            assert answers == [
                "OK",
                f"MOVED {slot_of(theirs.encode())} 127.0.0.1:7002",
                f"MOVED {slot_of(elsewhere.encode())} 127.0.0.1:7002",
                "CLUSTERDOWN Hash slot not served",
            ]
            answers = await client("READONLY", f"GET {theirs}", f"SET {theirs} 1", f"GET {mine}")
            assert answers == ["OK", None, f"MOVED {slot_of(theirs.encode())} 127.0.0.1:7002", b"1"]
            view.copy(0).is_leading = view.copy(0).is_serving = False
            assert await client(f"GET {mine}") == ["CLUSTERDOWN The cluster is down"]

    in_virtual_time(main())


def test_writes_wait_for_a_disk_that_is_behind_and_are_refused_if_it_stays_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dispatch, "FROZEN_S_MAX", 0.3)
    view = single_node(partitions=1)
    store = view.stores[0]
    assert store is not None

    async def main() -> None:
        async with connected(view) as client:
            store.is_overloaded = True
            client.send("SET a 1", "GET a", "MSET a 2")
            assert await client.is_silent()
            store.is_overloaded = False
            assert (await client.answers(2)) == ["OK", b"1"]
            await client.answers(1)
            store.is_overloaded = True
            (refused,) = await client("INCR a")
            assert str(refused).startswith("TRYAGAIN the disk is behind")
            assert await client("GET a") == [b"2"]
            client.send("MULTI", "INCR a", "EXEC", "ONCE p 1", "BULK INCR a 1 0", "FLUSHDB")
            assert await client.answers(2) == ["OK", "QUEUED"]
            assert await client.is_silent()
            store.is_overloaded = False
            assert await client.answers(4) == [[3], "OK", "OK", "OK"]

    in_virtual_time(main())


def test_a_bulk_write_that_is_half_done_waits_for_the_disk_only_if_it_has_a_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dispatch, "FROZEN_S_MAX", 0.5)
    view = single_node(partitions=2)
    first, second = view.stores
    assert first is not None
    assert second is not None
    keys = [next(f"k{n}" for n in range(9) if view.partition_of(f"k{n}") == p) for p in (0, 1)]
    request = f"BULK INCR {keys[0]} 1 0 {keys[1]} 1 0"

    async def main() -> None:
        async with connected(view) as client:
            second.is_overloaded = True
            client.send("ONCE p 1", request)
            assert await client.answers(1) == ["OK"]
            assert await client.is_silent()
            second.is_overloaded = False
            assert await client.answers(1) == ["OK"]
            second.is_overloaded = True
            (refused,) = await client(request)
            assert str(refused).startswith("TRYAGAIN the disk is behind")
            assert await client(f"GET {keys[0]}", f"GET {keys[1]}") == [b"2", b"1"]

    in_virtual_time(main())


def test_requests_with_too_many_words_are_refused_where_the_short_way_would_take_them() -> None:
    async def main() -> None:
        async with connected(single_node()) as client:
            assert await client("SET n 1", "INCR n") == ["OK", 2]
            refused = "ERR wrong number of arguments for '{}' command"
            assert await client("INCR n 5", "GET n n", "INCR n") == [
                refused.format("incr"),
                refused.format("get"),
                3,
            ]

    in_virtual_time(main())


def test_half_a_request_is_not_kept_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_connection, "REQUEST_S_MAX", 0.3)

    async def main() -> None:
        async with connected(single_node()) as client:
            # An idle connection stays, and so does one that is in the midst of many requests.
            for _ in range(8):
                client.writer.write(b"*1\r\n$4\r\nPING\r\n*1\r\n$4\r\nPI")
                assert await client.answers(1) == ["PONG"]
                await asyncio.sleep(0.05)
                client.writer.write(b"NG\r\n")
                assert await client.answers(1) == ["PONG"]
            await asyncio.sleep(0.4)
            assert await client("PING") == ["PONG"]
            client.writer.write(b"*2\r\n$3\r\nGET\r\n$1000\r\nabc")
            for _ in range(4):
                await asyncio.sleep(0.05)
                client.writer.write(b"a")
            with pytest.raises((AssertionError, ConnectionError)):
                await client.answers(1, within_s=2)

    in_virtual_time(main())


def test_what_comes_behind_a_login_is_held_to_what_a_user_may_send() -> None:
    view = single_node(partitions=1)
    words = [b"MSET", *(b"{t}%d" % number for number in range(40_000))]
    many = b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(w), w) for w in words)

    async def main() -> None:
        async with connected(view, logs_in=False) as client:
            login = f"AUTH {WRITER} {PASSWORD}\r\n".encode()
            client.writer.write(b"GET a\r\n" + login + many[:-10])
            await asyncio.sleep(0.3)
            client.writer.write(many[-10:] + many)
            refused, *answers = await client.answers(4)
            assert "NOAUTH" in str(refused)
            assert answers == ["OK"] * 3

    in_virtual_time(main())


def test_values_that_are_not_in_memory_are_waited_for_in_order() -> None:
    view = single_node(partitions=1)
    store = view.stores[0]
    assert store is not None
    store.is_cold = True
    keys = " ".join(f"{{t}}{number}" for number in range(20))

    async def main() -> None:
        async with connected(view) as client:
            answers = await client("SET {t}1 a", f"MGET {keys}", "SET {t}1 b", "GET {t}1")
            assert answers[1][1] == b"a"
            assert answers[2:] == ["OK", b"b"]

    in_virtual_time(main())


def test_a_client_that_takes_no_answers_is_not_read_from() -> None:
    view = single_node(partitions=1)

    async def main() -> None:
        async with connected(view) as client:
            await client("SET a " + "x" * 1_000_000)
            for _ in range(10):
                client.send(*["GET a"] * 20)
            await asyncio.sleep(0.1)
            (connection,) = client.server._connections
            assert connection._transport is not None
            unsent = connection._transport.get_write_buffer_size()
            assert unsent < data_connection.UNSENT_BYTES_MAX + 2_000_000
            got = 0
            while got < 200 * 1_000_000:
                got += len(await client.reader.read(1 << 20))
            assert (await client("PING"))[-1] == "PONG"

    in_virtual_time(main())


def test_who_breaks_the_protocol_is_told_and_cut_off() -> None:
    async def main() -> None:
        async with connected(single_node()) as client:
            client.send("SET a 1")
            client.writer.write(b"*1\r\n+PING\r\n")
            assert await client.answers(2) == ["OK", "ERR Protocol error: expected '$', got '+'"]
            assert await client.reader.read() == b""

    in_virtual_time(main())


def test_quit_is_answered_and_ends_the_connection() -> None:
    async def main() -> None:
        async with connected(single_node()) as client:
            client.send("SET a 1", "QUIT", "SET a 2")
            assert await client.answers(2) == ["OK", "OK"]
            assert await client.reader.read() == b""

    in_virtual_time(main())


def test_strangers_are_bounded_and_given_little_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_connection, "LOGIN_S_MAX", 0.2)

    async def main() -> None:
        async with connected(single_node(), logs_in=False) as client:
            assert await client("GET a") == ["NOAUTH Authentication required."]
            assert await client("AUTH writer nonsense") == [
                "WRONGPASS invalid username-password pair or user is disabled."
            ]
            with pytest.raises((AssertionError, ConnectionError)):
                await client.answers(1)

    in_virtual_time(main())


def test_connections_above_the_most_are_refused() -> None:
    async def main() -> None:
        async with connected(single_node(), logs_in=False, connections_max=0) as client:
            assert await client.answers(1) == ["ERR max number of clients reached"]
            assert await client.reader.read() == b""

    in_virtual_time(main())


@pytest.mark.parametrize("command", ["SET k 1", "PING", "NONSENSE"])
def test_deep_pipelines_share_the_turns_and_hold_up_nobody(command: str) -> None:
    clients, commands = 10, 5_000

    async def main() -> None:
        async with AsyncExitStack() as stack:
            first = await stack.enter_async_context(connected(single_node()))
            server = first.server
            others = [await stack.enter_async_context(connected_to(server)) for _ in range(clients)]
            limits = server.turns.limits
            async with counting(lambda: server.command_count) as most:
                for each in others:
                    each.send(*[command] * commands)
                await until(lambda: server.turns.queue_length)
                assert await first("GET a") == [None]
                assert server.command_count < clients * commands / 2
                answers = await asyncio.gather(*(each.answers(commands, 60) for each in others))
            assert most.in_a_turn <= limits.pieces_max + 2 * limits.slice_pieces_max
            expected = {"S": "OK", "P": "PONG", "N": ANY}[command[0]]
            assert answers == [[expected] * commands] * clients

    run(main(), uvloop.new_event_loop)


def test_strangers_share_the_turns_too() -> None:
    async def main() -> None:
        async with connected(single_node(), logs_in=False) as client:
            server = client.server
            async with counting(lambda: server.command_count) as most:
                client.send(*["PING"] * 4_000)
                answers = await client.answers(4_000, 60)
            assert answers == ["NOAUTH Authentication required."] * 4_000
            assert most.in_a_turn <= server.turns.limits.pieces_max

    in_virtual_time(main())


def test_answers_that_are_held_are_bounded_by_their_number_as_well() -> None:
    view = single_node(config=synced(), is_written_at_once=False)
    store = view.stores[0]
    assert store is not None
    commands = 3 * data_connection.HELD_MAX

    async def main() -> None:
        async with connected(view) as client:
            client.send(*(f"SET k{number} 1" for number in range(commands)))
            await asyncio.sleep(1)
            done = store.last_sequence
            assert done > data_connection.HELD_MAX
            assert done < data_connection.HELD_MAX + client.server.turns.limits.pieces_max
            answers: list[str] = []
            while len(answers) < commands:
                some = store.last_sequence - store.synced_sequence
                store.tell_written(store.last_sequence)
                store.sync(store.last_sequence)
                answers += await client.answers(some, 60)
                await asyncio.sleep(0.1)
            assert answers == ["OK"] * commands

    in_virtual_time(main())


def test_less_is_taken_of_what_clients_offer_while_the_disk_is_behind() -> None:
    is_behind = True

    async def main() -> None:
        async with connected(single_node(), is_behind=lambda: is_behind) as client:
            client.send(*["SET k 1"] * 5_000)
            await asyncio.sleep(0.2)
            slices = 200 // client.server.turns.limits.rest_ms
            most = (slices + 2) * client.server.turns.limits.slice_pieces_max
            assert 0 < client.server.command_count <= most
            nonlocal is_behind
            is_behind = False
            assert await client.answers(5_000, 60) == ["OK"] * 5_000

    in_virtual_time(main())


def test_clients_that_do_not_log_in_do_not_keep_others_out() -> None:
    async def main() -> None:
        async with connected(single_node(), connections_max=24) as client:
            port = client.server.port
            silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(40)]
            late = Client(client.server, *await asyncio.open_connection("127.0.0.1", port))
            assert await late(f"AUTH {WRITER} {PASSWORD}") == ["OK"]
            assert await client("PING") == ["PONG"]
            told = await silent[0][0].read()
            assert told.startswith(b"-ERR the connection made room for another")
            assert client.server.admission.dropped["unauthenticated"] >= 24
            for _, writer in [*silent, (late.reader, late.writer)]:
                writer.transport.abort()

    in_virtual_time(main())


@pytest.mark.parametrize("loop_factory", [None, uvloop.new_event_loop])
def test_handshakes_that_stall_do_not_keep_others_out(tmp_path: Path, loop_factory: Any) -> None:
    authority = trustme.CA()
    path = str(tmp_path / "server.pem")
    authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(path)
    context = ssl.create_default_context()
    authority.configure_trust(context)

    async def main() -> None:
        async with connected(single_node(), connections_max=24) as client:
            server = client.server
            port = await server.listen(tls=ServerTls(TlsFiles(certificate=path)))
            silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(40)]
            async with asyncio.timeout(60):
                assert await silent[0][0].read() == b""
            assert server.admission.unauthenticated_count == BOUND_MIN
            streams = await asyncio.open_connection(
                "127.0.0.1", port, ssl=context, server_hostname="localhost"
            )
            late = Client(server, *streams)
            assert await late(f"AUTH {WRITER} {PASSWORD}") == ["OK"]
            assert await client("PING") == ["PONG"]
            for _, writer in [*silent, streams]:
                writer.transport.abort()
            await until(lambda: server.admission.count == 1)

    run(main(), loop_factory)


def test_a_transaction_is_not_executed_without_a_command_that_waited_in_vain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dispatch, "FROZEN_S_MAX", 0.1)
    view = single_node(partitions=1)

    async def main() -> None:
        async with connected(view) as client:
            view.copy(0).is_serving = False
            answers = await client("MULTI", "INCR {t}a")
            assert answers == ["OK", ANY]
            assert answers[1].startswith("TRYAGAIN")
            view.copy(0).is_serving = True
            answers = await client("INCR {t}b", "EXEC", "MGET {t}a {t}b")
            assert answers[0] == "QUEUED"
            assert answers[1].startswith("EXECABORT")
            assert answers[2] == [None, None]

    in_virtual_time(main())
