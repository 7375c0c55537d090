"""FENCE, BULK APPLY and CLEAR: whoever has the largest number writes, and nobody else."""

import pytest

from raftwood.zeppelin.slots import slot_of
from tests.kits.zeppelin.command_kit import BEGIN_MS, CommandClient, CommandHost
from tests.kits.zeppelin.static_view import READER

KEYS = [b"key%d" % number for number in range(40)]
"""Of all partitions."""


@pytest.fixture
def host() -> CommandHost:
    return CommandHost()


@pytest.fixture
def client(host: CommandHost) -> CommandClient:
    return host.client()


def _sets(value: object = b"1", expires_ms: int = 0) -> list[object]:
    return [word for key in KEYS for word in (key, "SET", value, expires_ms)]


def test_changes_are_applied_with_absolute_times(client: CommandClient) -> None:
    client("SET", "gone", 1)
    ends = BEGIN_MS + 5_000
    changes = ["a", "SET", 1, ends, "b", "SET", 2, 0, "gone", "DEL", "", 0, "none", "DEL", "", 0]
    assert client("BULK", "APPLY", "me", 7, *changes, "past", "SET", 1, BEGIN_MS) == "OK"
    assert client("BULK", "GET", "a", "b", "gone", "past") == [b"1", b"2", None, None]
    assert (client("PTTL", "a"), client("TTL", "b")) == (5_000, -1)


def test_the_same_number_again_is_done_once(host: CommandHost, client: CommandClient) -> None:
    for _ in range(2):
        assert client("BULK", "APPLY", "me", 7, *_sets()) == "OK"
    assert [store.last_sequence for store in host.view.stores if store] == [1, 1, 1, 1]
    assert client("FENCE", "me") == 7
    assert client("FENCE", "another") == -1


def test_who_has_put_a_fence_is_alone(host: CommandHost, client: CommandClient) -> None:
    late = host.client()
    assert late("FENCE", "me", 100) == "OK"
    assert late("BULK", "APPLY", "me", 101, *_sets(b"old")) == "OK"
    assert client("FENCE", "me", 200) == client("FENCE", "me", 200) == "OK"
    for words in (
        ("BULK", "APPLY", "me", 102, *_sets(b"older")),
        ("BULK", "APPLY", "me", 101, *_sets(b"old")),
        ("BULK", "CLEAR", "me", 103, 0, 16_383),
        ("FENCE", "me", 150),
    ):
        assert "FENCED" in str(late(*words)), words
    assert client("BULK", "GET", *KEYS) == [b"old"] * len(KEYS)
    assert client("BULK", "APPLY", "me", 201, *_sets(b"new")) == "OK"
    assert client("BULK", "GET", *KEYS) == [b"new"] * len(KEYS)
    assert late("SET", KEYS[0], 1) == "OK", "what has no number is written as ever"


def test_slots_are_cleared_where_whole_partitions_have_them(client: CommandClient) -> None:
    client("BULK", "APPLY", "me", 1, *_sets())
    assert client("BULK", "CLEAR", "me", 2, 0, 8_191) == 0
    left = [key for key in KEYS if client("GET", key) is not None]
    assert left == [key for key in KEYS if slot_of(key) >= 8_192]
    assert client("BULK", "CLEAR", "me", 3, 4_000, 12_287) == 1
    assert all(slot_of(key) >= 12_288 for key in left if client("GET", key) is not None)


@pytest.mark.parametrize(
    "words",
    [
        ("FENCE", ""),
        ("FENCE", "x" * 65),
        ("FENCE", "x", "one"),
        ("FENCE", "x", 1, 2),
        ("BULK", "APPLY", "x", 1, "a", "SET", 1),
        ("BULK", "APPLY", "x", 1, "a", "PUT", 1, 0),
        ("BULK", "APPLY", "x", 1, "a", "SET", 1, -1),
        ("BULK", "APPLY", "x", "one", "a", "SET", 1, 0),
        ("BULK", "CLEAR", "x", 1, 5, 4),
        ("BULK", "CLEAR", "x", 1, 0, 16_384),
    ],
)
def test_what_makes_no_sense_is_refused(
    host: CommandHost, client: CommandClient, words: tuple[object, ...]
) -> None:
    assert "ERR" in str(client(*words))
    assert [store.last_sequence for store in host.view.stores if store] == [0, 0, 0, 0]
    assert client("GET", "a") is None


def test_who_may_not_write_puts_no_fence(host: CommandHost) -> None:
    client = host.client(READER)
    assert client("FENCE", "me") == -1
    assert "NOPERM" in str(client("FENCE", "me", 1))
    assert "NOPERM" in str(client("BULK", "CLEAR", "me", 1, 0, 5))
