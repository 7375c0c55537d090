"""Thousands of random commands: the model's answers, and a binlog that leads to its keys."""

import random
from collections.abc import Callable
from typing import Any

import pytest

from raftwood.net.listeners import FairScheduler, TurnLimits
from raftwood.zeppelin.commands.command import Turn
from raftwood.zeppelin.node.data_connection import DataConnection
from raftwood.zeppelin.node.data_server import DataServer
from raftwood.zeppelin.records import KeyWrite
from tests.kits.running import run
from tests.kits.zeppelin.command_kit import BEGIN_MS, CommandHost
from tests.kits.zeppelin.decoding import decoded
from tests.kits.zeppelin.memory_store import MemoryPartitionStore
from tests.kits.zeppelin.redis_model import RedisModel
from tests.kits.zeppelin.static_view import WRITER, single_node

KEYS = [b"{t}%d" % number for number in range(6)]
VALUES = [
    b"",
    b"1",
    b"-7",
    b"9223372036854775800",
    b"1.5",
    b"a longer value",
    b"\r\n\0\xff",
    b"007",
]


class Chance:
    """Commands as they come, most of them valid."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def key(self) -> bytes:
        return self.random.choice(KEYS)

    def value(self) -> bytes:
        return self.random.choice(VALUES)

    def number(self) -> bytes:
        return str(self.random.choice((0, 1, -1, 3, -5, 10, 100, 2**62))).encode()

    def offset(self) -> bytes:
        return str(self.random.randint(-8, 8)).encode()

    def keys(self) -> list[bytes]:
        return self.random.sample(KEYS, self.random.randint(1, 3))

    def span(self) -> list[bytes]:
        now = BEGIN_MS
        word, number = self.random.choice(
            (
                (b"EX", self.random.randint(1, 5)),
                (b"PX", self.random.randint(1, 4000)),
                (b"EXAT", now // 1000 + self.random.randint(-5, 60)),
                (b"PXAT", now + self.random.randint(-5000, 60_000)),
            )
        )
        return [word, b"%d" % number]

    def set_options(self) -> list[bytes]:
        time = self.random.choice(([], [], [b"KEEPTTL"], self.span()))
        condition = self.random.choice(([], [], [b"NX"], [b"xx"]))
        return [*condition, *time, *self.random.choice(([], [b"GET"]))]

    def expire(self) -> list[bytes]:
        name, number = self.random.choice(
            (
                (b"EXPIRE", self.random.randint(-1, 5)),
                (b"PEXPIRE", self.random.randint(-10, 4000)),
                (b"EXPIREAT", BEGIN_MS // 1000 + self.random.randint(-5, 60)),
                (b"PEXPIREAT", BEGIN_MS + self.random.randint(-5000, 60_000)),
            )
        )
        options = self.random.choice(([], [], [b"NX"], [b"XX"], [b"GT"], [b"LT"], [b"XX", b"LT"]))
        return [name, self.key(), b"%d" % number, *options]

    def command(self) -> list[bytes]:
        pairs = [word for key in self.keys() for word in (key, self.value())]
        getex: list[list[bytes]] = [[], [b"PERSIST"], self.span()]
        cas: list[list[bytes]] = [[], [b"KEEPTTL"], self.span()]
        return self.random.choice(
            (
                [b"GET", self.key()],
                [b"SET", self.key(), self.value()],
                [b"SET", self.key(), self.value(), *self.set_options()],
                [b"SETNX", self.key(), self.value()],
                [b"SETEX", self.key(), b"2", self.value()],
                [b"PSETEX", self.key(), b"1500", self.value()],
                [b"GETSET", self.key(), self.value()],
                [b"GETDEL", self.key()],
                [b"GETEX", self.key(), *self.random.choice(getex)],
                [b"CAS", self.key(), self.value(), self.value(), *self.random.choice(cas)],
                [b"MGET", *self.keys()],
                [b"MSET", *pairs],
                [b"MSETNX", *pairs],
                [b"DEL", *self.keys()],
                [b"UNLINK", *self.keys()],
                [b"EXISTS", *self.keys()],
                [b"INCR", self.key()],
                [b"DECR", self.key()],
                [b"INCRBY", self.key(), self.number()],
                [b"DECRBY", self.key(), self.number()],
                [b"INCRBYFLOAT", self.key(), self.random.choice((b"0.1", b"-3", b"1e2"))],
                [b"APPEND", self.key(), self.value()],
                [b"STRLEN", self.key()],
                [b"GETRANGE", self.key(), self.offset(), self.offset()],
                [b"SETRANGE", self.key(), str(abs(int(self.offset()))).encode(), self.value()],
                self.expire(),
                self.expire(),
                [b"PERSIST", self.key()],
                *([name, self.key()] for name in (b"TTL", b"PTTL", b"EXPIRETIME", b"PEXPIRETIME")),
                [b"TYPE", self.key()],
            )
        )


class Sent:
    """A transport that keeps what is written to it."""

    def __init__(self) -> None:
        self.data = b""

    def write(self, data: bytes) -> None:
        self.data += data

    def __getattr__(self, _: str) -> Callable[..., None]:
        return lambda *_: None


class ConnectedClient:
    """Commands through a connection, with the short ways that it takes."""

    def __init__(self, host: CommandHost) -> None:
        self._sent = Sent()
        server = DataServer(host.view, host.environment)
        # All in one turn of the loop.
        server.turns = FairScheduler(TurnLimits(pieces_max=1 << 30, turn_ms=3_600_000))
        self._buffer = server.receive_buffer
        self.connection = DataConnection(server, 1)
        self.connection.connection_made(self._sent)  # type: ignore[arg-type]
        self.connection.session.log_in(host.view.topology.users[WRITER])

    def __call__(self, *words: bytes) -> Any:
        self._sent.data = b""
        heads = [b"$%d\r\n%b\r\n" % (len(word), word) for word in words]
        data = b"*%d\r\n" % len(words) + b"".join(heads)
        self._buffer[: len(data)] = data
        self.connection.buffer_updated(len(data))
        return decoded(self._sent.data)


def check(seed: int, commands: int, *, is_connected: bool = False) -> None:
    """Answers as the model's; and whoever replays the binlog, whenever, has the same keys."""

    async def main() -> None:
        host = CommandHost(single_node(partitions=1))
        client = ConnectedClient(host)
        compare(seed, commands, host, client)
        client.connection.connection_lost(None)

    if is_connected:
        run(main())
    else:
        host = CommandHost(single_node(partitions=1))
        compare(seed, commands, host, host.client())


def compare(seed: int, commands: int, host: CommandHost, client: Callable[..., Any]) -> None:
    chance = Chance(seed)
    model = RedisModel(BEGIN_MS)
    for number in range(commands):
        words = chance.command()
        got, expected = client(*words), model(*words)
        assert got == expected, f"seed {seed}, command {number}: {words}"
        if chance.random.random() < 0.2:
            host.clock.now_ms += chance.random.choice((1, 100, 900, 2500))
            model.now_ms = host.clock.now_ms
    model.expire_all()
    store = host.view.stores[0]
    assert store is not None
    replica = MemoryPartitionStore()
    for record in store.binlog:
        replica.commit(record)
    kept = dict(replica.scan(after=None, now_ms=model.now_ms))
    assert {key: value.data for key, value in kept.items()} == model.data
    assert {key: value.expires_ms for key, value in kept.items() if value.expires_ms} == model.ends


@pytest.mark.parametrize("seed", range(8))
def test_random_commands_are_answered_as_by_redis(seed: int) -> None:
    check(seed, 1000)


@pytest.mark.parametrize("seed", range(100, 108))
def test_random_commands_over_a_connection_are_answered_as_by_redis(seed: int) -> None:
    check(seed, 1000, is_connected=True)


def _relative(self: Turn, key: bytes, data: bytes, expires_ms: int = 0) -> None:
    self.writes[key] = KeyWrite(key, data, expires_ms and expires_ms - self.now_ms)


def _keeps_what_is_past(self: Turn, key: bytes, data: bytes, expires_ms: int = 0) -> None:
    self.writes[key] = KeyWrite(key, data, 0 if expires_ms <= self.now_ms else expires_ms)


def _forgets_the_end(self: Turn, key: bytes, data: bytes, expires_ms: int = 0) -> None:
    old = self.get(key)
    is_kept = old is not None and old.expires_ms == expires_ms
    self.writes[key] = KeyWrite(key, data, 0 if is_kept else expires_ms)


@pytest.mark.parametrize("mutant", [_relative, _keeps_what_is_past, _forgets_the_end])
def test_a_wrong_time_to_live_is_noticed(
    mutant: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Turn, "put", mutant)
    with pytest.raises(AssertionError):
        check(0, 1000)
