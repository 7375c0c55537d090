"""MULTI, EXEC, WATCH: together or not at all, as one record."""

import pytest
from msgspec.structs import replace

from tests.kits.zeppelin.command_kit import CommandHost
from tests.kits.zeppelin.static_view import READER, single_node


@pytest.fixture
def host() -> CommandHost:
    return CommandHost(single_node(partitions=1))


def test_a_transaction_is_one_record_and_sees_its_own_writes(host: CommandHost) -> None:
    client = host.client()
    assert client("MULTI") == "OK"
    assert client("SET", "{t}a", 1) == "QUEUED"
    assert client("INCR", "{t}a") == "QUEUED"
    assert client("TAG", "LIST", "t") == "QUEUED"
    assert client("DEL", "{t}b") == "QUEUED"
    assert host.client()("GET", "{t}a") is None
    assert client("EXEC") == ["OK", 2, [b"{t}a", b"2"], 0]
    store = host.view.stores[0]
    assert store is not None
    assert [len(record.writes) for record in store.binlog] == [1]


def test_a_command_that_fails_in_a_transaction_leaves_the_others(host: CommandHost) -> None:
    client = host.client()
    client("SET", "a", "text")
    client("MULTI")
    client("INCR", "a")
    client("APPEND", "a", "s")
    assert client("EXEC") == ["ERR value is not an integer or out of range", 5]


@pytest.mark.parametrize(
    "words", [("NONSENSE",), ("GET",), ("GET", "{other}a"), ("KEYS", "*"), ("MGET", "a", "b")]
)
def test_a_command_that_is_refused_breaks_its_transaction(
    host: CommandHost, words: tuple[str, ...]
) -> None:
    client = host.client()
    client("MULTI")
    assert client("SET", "{t}a", 1) == "QUEUED"
    assert client(*words).startswith(("ERR", "CROSSSLOT"))
    assert client("EXEC").startswith("EXECABORT")
    assert client("EXEC") == "ERR EXEC without MULTI"
    assert client("GET", "{t}a") is None


def test_what_is_discarded_is_not_done(host: CommandHost) -> None:
    client = host.client()
    assert client("DISCARD") == "ERR DISCARD without MULTI"
    client("MULTI")
    assert client("MULTI") == "ERR MULTI calls can not be nested"
    assert client("WATCH", "a") == "ERR WATCH inside MULTI is not allowed"
    client("SET", "a", 1)
    assert client("DISCARD") == "OK"
    assert client("GET", "a") is None


@pytest.mark.parametrize(
    ("words", "is_touched"),
    [
        (("SET", "a", "1"), True),
        (("DEL", "a"), True),
        (("PEXPIRE", "a", "100000"), True),
        (("FLUSHDB",), True),
        (("GET", "a"), False),
        (("SET", "b", "1"), False),
    ],
)
def test_a_watched_key_that_was_touched_ends_the_transaction(
    host: CommandHost, words: tuple[str, ...], is_touched: bool
) -> None:
    client, other = host.client(), host.client()
    client("SET", "a", "1")
    client("WATCH", "a")
    other(*words)
    client("MULTI")
    client("GET", "a")
    assert client("EXEC") == (None if is_touched else [b"1"])
    assert host.view.copy(0).watched == {}


def test_a_watched_key_that_has_expired_ends_the_transaction(host: CommandHost) -> None:
    client = host.client()
    client("SET", "a", 1, "PX", 100)
    client("WATCH", "a")
    host.clock.now_ms += 200
    client("MULTI")
    client("GET", "a")
    assert client("EXEC") is None


def test_a_new_epoch_of_the_partition_ends_the_transaction(host: CommandHost) -> None:
    client = host.client()
    client("WATCH", "a")
    host.view.copy(0).epoch += 1
    client("MULTI")
    client("SET", "a", 1)
    assert client("EXEC") is None
    client("WATCH", "a")
    client("UNWATCH")
    host.view.copy(0).epoch += 1
    client("MULTI")
    assert client("EXEC") == []


def test_who_may_only_read_has_transactions_that_read(host: CommandHost) -> None:
    client = host.client(READER)
    client("MULTI")
    assert client("GET", "a") == "QUEUED"
    assert client("EXEC") == [None]
    client("MULTI")
    assert client("SET", "a", 1).startswith("NOPERM User reader has no permissions")
    assert client("EXEC").startswith("EXECABORT")


def test_who_may_no_longer_write_does_not_by_a_transaction_begun_before(host: CommandHost) -> None:
    client = host.client()
    client("MULTI")
    client("SET", "a", 1)
    topology = host.view.topology
    users = {name: replace(user, may_write=False) for name, user in topology.users.items()}
    host.view.topology = replace(topology, epoch=topology.epoch + 1, users=users)
    assert client("EXEC").startswith("NOPERM User writer has no permissions")
    assert client("EXEC") == "ERR EXEC without MULTI"
    assert client("EXISTS", "a") == 0
