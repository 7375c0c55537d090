"""BINLOG: records by position, where two binlogs part, what keys have now."""

import asyncio
from typing import Any

import pytest

from raftwood.zeppelin.model import NodeId, TableConfig
from raftwood.zeppelin.records import (
    FORGOTTEN_NS,
    READERS_MAX,
    BinlogReaders,
    BinlogRecord,
    EpochStart,
    KeyWrite,
    decode_record,
)
from tests.kits.zeppelin.acks import StaticAcks
from tests.kits.zeppelin.command_kit import CommandClient, CommandHost
from tests.kits.zeppelin.memory_store import MemoryPartitionStore
from tests.kits.zeppelin.static_view import single_node


@pytest.fixture
def host() -> CommandHost:
    return CommandHost(single_node(partitions=1))


@pytest.fixture
def client(host: CommandHost) -> CommandClient:
    return host.client()


def _store(host: CommandHost) -> MemoryPartitionStore:
    store = host.view.stores[0]
    assert store is not None
    return store


def _read(
    client: CommandClient, epoch: int, sequence: int, *, wait_ms: int = 0, first: int | None = None
) -> Any:
    first = sequence + 1 if first is None else first
    count, ((partition, *rest),) = client(
        "BINLOG", "READ", "me", 1 << 20, wait_ms, 0, epoch, sequence, first
    )
    assert (count, partition) == (1, 0)
    return rest


def _keys(answer: Any) -> list[bytes]:
    assert answer[0] == b"records"
    return [write.key for record in answer[2] for write in decode_record(record).writes]


def test_partitions_are_told_with_their_slots() -> None:
    client = CommandHost(single_node(partitions=2)).client()
    assert client("BINLOG", "PARTITIONS") == [b"orders", 1, [[0, 0, 8192], [1, 8192, 16384]]]


def test_records_follow_a_position(client: CommandClient) -> None:
    for key in "abc":
        client("SET", key, 1)
    answer = _read(client, 0, 0)
    assert (answer[1], _keys(answer)) == (3, [b"a", b"b", b"c"])
    assert _keys(_read(client, 2, 1)) == [b"b", b"c"]
    assert _keys(_read(client, 2, 2, first=2)) == [b"b", b"c"]
    assert _read(client, 2, 3) == [b"records", 3, []]


def test_bytes_are_shared_by_partitions_and_one_record_comes_at_least() -> None:
    client = CommandHost(single_node(partitions=2)).client()
    client("BULK", "SET", *(word for n in range(20) for word in (f"k{n}", "x" * 100, 0)))
    _, (first, second) = client("BINLOG", "READ", "me", 10, 0, 1, 0, 0, 1, 0, 0, 0, 1)
    assert (first[0], len(first[3])) == (1, 1)
    assert second == [0, b"records", 1, []]


def test_what_is_not_done_is_not_told() -> None:
    config = TableConfig(partitions=1, replicas=2, min_replicas=2, ack="memory")
    host = CommandHost(single_node(config=config))
    client = host.client()
    client("SET", "a", 1)
    client("SET", "b", 1)
    assert _read(client, 0, 0) == [b"records", 0, []]
    acks = host.view.copy(0).acks
    assert isinstance(acks, StaticAcks)
    acks.replica_has(NodeId("other"), 1)
    assert _keys(_read(client, 0, 0)) == [b"a"]


def test_a_position_of_a_binlog_that_was_cut_is_unknown(
    host: CommandHost, client: CommandClient
) -> None:
    store = _store(host)
    for sequence, epoch in enumerate((2, 2, 5), 1):
        store.commit(BinlogRecord(epoch, sequence, (KeyWrite(b"k%d" % sequence, b"1"),)))
    host.view.copy(0).epoch = 5
    assert _read(client, 2, 3) == [b"unknown"]
    assert _read(client, 5, 4) == [b"unknown"]
    assert client("BINLOG", "COMMON", 0, 4, 2, 1) == 2
    assert client("BINLOG", "COMMON", 0, 4, 3, 4) is None
    assert _keys(_read(client, 2, 2)) == [b"k3"]


def test_a_master_that_is_none_any_more_says_nothing(
    host: CommandHost, client: CommandClient
) -> None:
    client("SET", "a", 1)
    assert _read(client, 9, 1) == [b"moved"]
    assert "TRYAGAIN" in str(client("BINLOG", "COMMON", 0, 1, 9, 1))
    copy = host.view.copy(0)
    copy.is_serving = False
    assert _keys(_read(client, 0, 0)) == [b"a"]  # while it is handed over
    assert "TRYAGAIN" in str(client("BINLOG", "VALUES", 0, 0, 0, "a"))
    copy.is_leading = False
    assert _read(client, 2, 1) == [b"moved"]
    assert "CLUSTERDOWN" in str(client("BINLOG", "COMMON", 0, 1, 2, 1))


def test_purged_records_are_told_so(host: CommandHost, client: CommandClient) -> None:
    store = _store(host)
    store.epochs = [EpochStart(2, 1)]
    store.epoch, store.first_sequence, store.last_sequence = 2, 8, 7
    store.commit(BinlogRecord(2, 8, ()))
    assert _read(client, 0, 0) == _read(client, 2, 5) == [b"purged"]
    assert client("BINLOG", "COMMON", 0, 9, 2, 1) == 8
    assert client("BINLOG", "COMMON", 0, 5, 2, 1) is None
    assert _read(client, 2, 7)[:2] == [b"records", 8]


def test_a_reader_waits_for_records(host: CommandHost) -> None:
    async def main() -> None:
        client = host.client()
        client.session.begin_turn()
        waiting = asyncio.create_task(_ask(client, 1_000))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        _store(host).commit(BinlogRecord(2, 1, (KeyWrite(b"a", b"1"),)))
        assert b"records" in await waiting
        assert not host.view.copy(0).acks._callers

    async def _ask(client: CommandClient, wait_ms: int) -> bytes:
        from raftwood.zeppelin.commands.dispatch import execute

        words = ["BINLOG", "READ", "me", 100, wait_ms, 0, 0, 0, 1]
        answer = execute(client.session, [str(word).encode() for word in words])
        assert not isinstance(answer, bytes)
        return await answer

    asyncio.run(main())


def test_a_reader_waits_no_longer_than_it_said(client: CommandClient) -> None:
    assert _read(client, 0, 0, wait_ms=10) == [b"records", 0, []]


def test_values_are_told_with_their_ends_and_their_position(client: CommandClient) -> None:
    client("SET", "a", 1)
    client("SET", "b", 2, "PXAT", 1_900_000_000_000)
    assert client("BINLOG", "VALUES", 0, 2, 1, "a", "b", "c") == [
        2,
        2,
        [[b"1", 0], [b"2", 1_900_000_000_000], None],
    ]
    assert client("BINLOG", "VALUES", 0, 1, 1, "a") is None
    assert client("BINLOG", "VALUES", 0, 2, 3, "a") is None


def test_readers_hold_a_binlog_until_they_are_forgotten(
    host: CommandHost, client: CommandClient
) -> None:
    client("SET", "a", 1)
    _read(client, 2, 1)
    assert _store(host).readers.needed_from(host.clock.monotonic_ns()) == 2
    readers = BinlogReaders()
    assert readers.needed_from(0) is None
    for number in range(READERS_MAX):
        readers.note(b"%d" % number, needs=100 - number, now_ns=number)
    assert readers.needed_from(100) == 100 - READERS_MAX + 1
    readers.note(b"5", needs=1, now_ns=200)
    assert readers.needed_from(200) == 1
    with pytest.raises(Exception, match="others read"):
        readers.note(b"one more", needs=1, now_ns=300)
    readers.note(b"later", needs=7, now_ns=FORGOTTEN_NS + 199)
    assert readers.needed_from(FORGOTTEN_NS + 199) == 1
    assert readers.needed_from(FORGOTTEN_NS + 200) == 7


@pytest.mark.parametrize(
    "words",
    [
        ("READ", "", 1, 1, 0, 0, 0, 1),
        ("READ", "x" * 65, 1, 1, 0, 0, 0, 1),
        ("READ", "x", -1, 1, 0, 0, 0, 1),
        ("READ", "x", 1, 1_000_000, 0, 0, 0, 1),
        ("READ", "x", 1, 1, 0, 0, 0, 1, 2),
        ("READ", "x", 1, 1, 0, 0, 0, "one"),
        ("COMMON", 0, 1, 2),
        ("COMMON", 7, 1),
        ("VALUES", 0, 0, 0, *map(str, range(1_001))),
        ("FOLLOW", 1),
    ],
)
def test_what_makes_no_sense_is_refused(client: CommandClient, words: tuple[object, ...]) -> None:
    assert "ERR" in str(client("BINLOG", *words))


def test_partitions_that_are_not_here_are_said_to_have_moved(client: CommandClient) -> None:
    assert client("BINLOG", "READ", "me", 1, 0, 5, 0, 0, 1) == [1, [[5, b"moved"]]]
