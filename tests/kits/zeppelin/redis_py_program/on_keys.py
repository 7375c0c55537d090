"""Commands on keys, through a cluster client."""

import time
from typing import Any

import redis

from tests.kits.zeppelin.redis_py_program.given import Given, refused


def strings(given: Given) -> None:
    with given.cluster() as client:
        assert client.set("foo", "bar") is True
        assert client.get("foo") == b"bar"
        assert client.get("nothing") is None
        assert client.set("foo", "new", get=True) == b"bar"
        assert client.set("foo", "x", nx=True) is None
        assert client.set("absent", "x", xx=True) is None
        assert client.setnx("other", "1") is True
        assert client.setnx("other", "2") is False
        assert client.setex("short", 100, "v")
        assert client.psetex("shorter", 100_000, "v")
        assert client.getset("foo", "old") == b"new"
        assert client.append("foo", "er") == 5
        assert client.strlen("foo") == 5
        assert client.getrange("foo", 1, -2) == b"lde"
        assert client.setrange("foo", 5, "!") == 6
        assert client.getdel("foo") == b"older!"
        assert client.getdel("foo") is None
        assert client.mset({"{t}a": 1, "{t}b": b"\x00\xff"}) is True
        assert client.mget("{t}a", "{t}b", "{t}c") == [b"1", b"\x00\xff", None]
        assert client.msetnx({"{t}b": 1, "{t}c": 1}) in (False, 0)
        assert client.msetnx({"{u}b": 1, "{u}c": 1}) in (True, 1)
        many = {f"many{number}": f"{number}" for number in range(100)}
        assert client.mset_nonatomic(many)
        assert client.mget_nonatomic(list(many)) == [value.encode() for value in many.values()]
        assert client.execute_command("CAS", "other", "1", "9") == 1
        assert client.execute_command("CAS", "other", "1", "9") == 0


def numbers(given: Given) -> None:
    with given.cluster() as client:
        assert client.incr("n") == 1
        assert client.incrby("n", 41) == 42
        assert client.decr("n") == 41
        assert client.decrby("n", 40) == 1
        assert client.execute_command("INCR", "n") == 2
        assert client.execute_command("DECR", "n") == 1
        assert client.incrbyfloat("real", 1.5) == 1.5
        assert client.incrbyfloat("real", -0.25) == 1.25
        client.set("words", "abc")
        refused(redis.ResponseError, "not an integer", client.incr, "words")
        refused(redis.ResponseError, "not a valid float", client.incrbyfloat, "words", 1.0)
        client.set("high", 2**63 - 1)
        refused(redis.ResponseError, "overflow", client.incr, "high")


def expiry(given: Given) -> None:
    now = time.time()
    with given.cluster() as client:
        client.set("e", "v")
        assert client.ttl("e") == client.pttl("e") == client.expiretime("e") == -1
        assert client.ttl("nothing") == client.pexpiretime("nothing") == -2
        assert client.expire("e", 100)
        assert 98 <= client.ttl("e") <= 100
        assert client.pexpire("e", 200_000)
        assert 198_000 < client.pttl("e") <= 200_000
        assert client.expireat("e", int(now) + 300)
        assert client.expiretime("e") == int(now) + 300
        moment_ms = int(now * 1000) + 400_123
        assert client.pexpireat("e", moment_ms)
        assert client.pexpiretime("e") == moment_ms
        assert not client.expire("e", 10, gt=True)
        assert client.expire("e", 10, lt=True)
        assert not client.expire("e", 10, nx=True)
        assert client.getex("e", px=50_000) == b"v"
        assert client.pttl("e") <= 50_000
        assert client.set("e", "w", keepttl=True)
        assert client.ttl("e") > 0
        assert client.getex("e", persist=True) == b"w"
        assert client.ttl("e") == -1
        assert client.expire("e", 10)
        assert client.persist("e")
        assert not client.persist("e")
        assert client.set("brief", "v", px=60)
        assert client.expire("e", -1)
        assert client.get("e") is None
        time.sleep(0.1)
        assert client.get("brief") is None
        assert client.exists("brief") == 0


def keys(given: Given) -> None:
    with given.cluster() as client:
        names = [f"key{number}" for number in range(20)]
        for name in names:
            client.set(name, 1)
        assert client.exists(*names, "nothing") == 20
        assert client.touch(*names) == 20
        assert client.type("key1") == b"string"
        assert client.type("nothing") == b"none"
        assert client.object("encoding", "key1") == b"int"
        assert client.object("refcount", "key1") == 1
        assert client.memory_usage("key1") > 0
        assert client.unlink(*names[:5]) == 5
        assert client.delete(*names, "nothing") == 15
        assert client.exists(*names) == 0


def tags(given: Given) -> None:
    with given.cluster() as client:
        client.mset({"{tag}a": 1, "{tag}b": 2, "tag": 3})
        listed = client.execute_command("TAG", "LIST", "tag")
        if not isinstance(listed, dict):
            listed = dict(zip(listed[::2], listed[1::2], strict=True))
        assert listed == {b"{tag}a": b"1", b"{tag}b": b"2"}
        assert client.execute_command("TAG", "DEL", "tag") == 2
        assert client.get("tag") == b"3"


def binary_and_large(given: Given) -> None:
    with given.cluster() as client:
        odd = bytes(range(256))
        values: dict[bytes, Any] = {
            odd: odd,
            b"\r\n": b"\r\n$-1\r\n",
            b"{\x00}x": b"",
            "ключ".encode(): "значение".encode(),
            b"k" * 10_000: b"v" * 100_000,
            b"large": bytes(1 << 20),
        }
        for key, value in values.items():
            assert client.set(key, value)
        for key, value in values.items():
            assert client.get(key) == value
        refused(redis.ResponseError, "at most", client.set, b"k" * 100_000, b"v")
    with given.cluster(decode_responses=True) as client:
        assert client.get("ключ") == "значение"
        assert client.set("text", "тест")
        assert client.getrange("text", 0, -1) == "тест"


def pipelines(given: Given) -> None:
    with given.cluster() as client:
        with client.pipeline() as pipeline:
            for number in range(1000):
                pipeline.set(f"p{number}", number)
                pipeline.incr(f"p{number}")
                pipeline.get(f"p{number}")
            answers = pipeline.execute()
        assert answers[::3] == [True] * 1000
        assert answers[1::3] == list(range(1, 1001))
        assert answers[2::3] == [b"%d" % (number + 1) for number in range(1000)]
        with client.pipeline() as pipeline:
            pipeline.set("s", "text").incr("s").get("s")
            first, second, third = pipeline.execute(raise_on_error=False)
        assert first is True
        assert third == b"text"
        assert isinstance(second, redis.ResponseError), second
        with client.pipeline() as pipeline:
            pipeline.set("s", 1).incrbyfloat("s", 0.5).expire("s", 100).ttl("s").delete("s")
            assert pipeline.execute() == [True, 1.5, True, 100, 1]


SCENARIOS = (strings, numbers, expiry, keys, tags, binary_and_large, pipelines)
