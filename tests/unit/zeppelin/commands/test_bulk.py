"""BULK: many keys of many partitions in one request, done once in each."""

import pytest

from raftwood.zeppelin.commands.bulk import BULK_KEYS_MAX
from raftwood.zeppelin.commands.command import VALUE_BYTES_MAX
from raftwood.zeppelin.model import NodeId, Partition, TableConfig
from raftwood.zeppelin.slots import place_of_slot, slot_of
from tests.kits.zeppelin.command_kit import BEGIN_MS, CommandClient, CommandHost
from tests.kits.zeppelin.static_view import READER, StaticView, node, topology_of

KEYS = [b"key%d" % number for number in range(40)]
"""Of all partitions."""


@pytest.fixture
def host() -> CommandHost:
    return CommandHost()


@pytest.fixture
def client(host: CommandHost) -> CommandClient:
    return host.client()


def _partition(key: bytes) -> int:
    return place_of_slot(slot_of(key), 4)


def _stores(host: CommandHost) -> list[int]:
    """How many records each partition has."""
    return [store.last_sequence for store in host.view.stores if store is not None]


def test_keys_of_all_slots_are_written_read_and_deleted(
    host: CommandHost, client: CommandClient
) -> None:
    triples = [word for key in KEYS for word in (key, key.upper(), 0)]
    assert client("BULK", "SET", *triples) == "OK"
    assert _stores(host) == [1, 1, 1, 1]
    assert client("BULK", "GET", *KEYS, "nothing") == [*map(bytes.upper, KEYS), None]
    assert client("BULK", "DEL", *KEYS[:10], "nothing", KEYS[0]) == 10
    assert client("BULK", "GET", *KEYS[:11]) == [None] * 10 + [b"KEY10"]


def test_cold_values_are_fetched(host: CommandHost, client: CommandClient) -> None:
    client("BULK", "SET", *(word for key in KEYS for word in (key, key, 0)))
    for store in host.view.stores:
        assert store is not None
        store.is_cold = _partition(KEYS[0]) != 0
    assert client("BULK", "GET", *KEYS) == KEYS


def test_each_key_has_its_own_end(host: CommandHost, client: CommandClient) -> None:
    assert client("BULK", "SET", "a", 1, 5_000, "b", 2, 0) == "OK"
    assert (client("PTTL", "a"), client("TTL", "b")) == (5_000, -1)
    assert client("BULK", "INCR", "a", 4, 0, "b", 5, 60_000, "c", -1, 0) == "OK"
    assert client("BULK", "GET", "a", "b", "c") == [b"5", b"7", b"-1"]
    assert (client("PTTL", "a"), client("PTTL", "b")) == (5_000, 60_000)
    host.clock.now_ms = BEGIN_MS + 5_000
    assert client("BULK", "GET", "a", "b") == [None, b"7"]


def test_a_request_that_is_sent_again_is_done_where_it_was_not(client: CommandClient) -> None:
    here = [key for key in KEYS if _partition(key) == 0]
    client("ONCE", "producer", 1)
    client("BULK", "INCR", *(word for key in here for word in (key, 1, 0)))
    for _ in range(2):
        client("ONCE", "producer", 1)
        assert client("BULK", "INCR", *(word for key in KEYS for word in (key, 1, 0))) == "OK"
    assert client("BULK", "GET", *KEYS) == [b"1"] * len(KEYS)
    for _ in range(2):
        client("ONCE", "producer", 2)
        assert client("BULK", "DEL", *KEYS) == len(KEYS)


def test_what_is_refused_writes_nothing(host: CommandHost, client: CommandClient) -> None:
    client("SET", "a", "no number")
    assert client("BULK", "INCR", *KEYS[:1], 1, 0, "a", 1, 0).startswith("ERR value is not an")
    assert client("BULK", "SET", "b", 1, 0, "c", 1, -5).startswith("ERR invalid expire time")
    assert client("BULK", "SET", "b", 1, 0, "c").startswith("ERR wrong number of arguments")
    assert client("BULK", "SET", "b", 1, 0, "c", bytes(VALUE_BYTES_MAX + 1), 0).startswith("ERR")
    assert client("BULK", "GET", *["a"] * (BULK_KEYS_MAX + 1)).startswith("ERR BULK takes 1 to")
    assert client("BULK", "NONSENSE", "a").startswith("ERR unknown subcommand")
    assert host.client(READER)("BULK", "SET", "b", 1, 0).startswith("NOPERM")
    assert client("KEYS", "*") == [b"a"]


def test_one_key_that_is_elsewhere_refuses_all() -> None:
    config = TableConfig(partitions=4, replicas=1, ack="memory")
    partitions = [Partition(epoch=2, master=NodeId("a" if each else "b")) for each in range(4)]
    topology = topology_of([node("a", 1000), node("b", 1001)], partitions, config)
    client = CommandHost(StaticView(topology, "a")).client()
    words = [word for key in KEYS for word in (key, 1, 0)]
    assert client("BULK", "SET", *words).endswith("127.0.0.1:1001")
    assert client("BULK", "GET", *KEYS).startswith("MOVED ")
    assert client("DBSIZE") == 0


def test_a_partition_that_stands_at_two_places_has_one_record_of_a_request() -> None:
    partitions = [Partition(epoch=2, master=NodeId("alone"))] * 2
    config = TableConfig(partitions=4, replicas=1, ack="memory")
    host = CommandHost(StaticView(topology_of([node("alone", 1)], partitions, config), "alone"))
    client = host.client()
    assert client("BULK", "SET", *(word for key in KEYS for word in (key, key, 0))) == "OK"
    assert _stores(host) == [1, 1]
    assert client("BULK", "GET", *KEYS) == KEYS
    assert client("DBSIZE") == len(KEYS)
    assert client("FLUSHDB") == "OK"
    assert _stores(host) == [2, 2]
