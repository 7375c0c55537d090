"""Commands on one node and its connections, transactions, and what is refused."""

from typing import Any

import redis

from tests.kits.zeppelin.redis_py_program.given import Given, refused


def connections(given: Given) -> None:
    with given.plain("foo", client_name="me") as client:
        assert client.ping() is True
        assert client.echo("hi") == b"hi"
        assert client.client_getname() in ("me", b"me")
        assert client.client_setname("you")
        assert client.client_id() > 0
        me = client.client_info()
        assert (me["name"], me["user"], me["lib-name"]) == ("you", given.user, "redis-py")
        assert me["resp"] == str(given.protocol)
        assert "you" in [each["name"] for each in client.client_list()]
        assert client.client_no_evict("ON")
        assert client.client_no_touch("ON")
        assert client.client_getredir() == -1
        assert client.client_trackinginfo()
        assert client.select(0)
        assert client.readonly()
        assert client.readwrite()
        assert client.execute_command("ASKING") in (b"OK", "OK", True)
        assert client.execute_command("ONCE", "interop", "1") in (b"OK", "OK", True)
        greeting = client.execute_command("HELLO", str(given.protocol))
        if isinstance(greeting, list):
            greeting = dict(zip(greeting[::2], greeting[1::2], strict=True))
        assert greeting[b"mode"] == b"cluster"
        assert greeting[b"proto"] == given.protocol
    with given.plain("foo") as client:
        assert client.execute_command("RESET") in ("RESET", b"RESET")
        refused(redis.AuthenticationError, "Authentication required", client.get, "foo")
        assert client.auth(given.password, given.user)
        client.get("foo")
        assert client.quit()


def node_commands(given: Given) -> None:
    with given.plain("foo") as client:
        assert len(client.time()) == 2
        assert client.config_get("save") == {"save": ""}
        assert client.config_get("append*")["appendonly"] == "yes"
        assert client.info()["cluster_enabled"] == 1
        assert client.info("server")["redis_mode"] == "cluster"
        assert "redis_version" not in client.info("replication")
        assert client.lastsave()
        client.set("foo", 1)
        assert client.wait(0, 10) >= 0
        assert client.execute_command("BULK", "SET", "foo", "2", "0", "{foo}", "3", "0")
        assert client.execute_command("BULK", "GET", "{foo}", "foo") == [b"3", b"2"]
        assert client.command_count() == len(client.command_list()) == len(client.command())
        assert client.command_getkeys("MSET", "a", "1", "b", "2") in (["a", "b"], [b"a", b"b"])
        refused(redis.ResponseError, "not allowed", client.config_set, "save", "")


def transactions(given: Given) -> None:
    def add(pipeline: Any) -> None:
        value = int(pipeline.get("{n}") or 0)
        pipeline.multi()
        pipeline.set("{n}", value + 1)
        pipeline.get("{n}")

    with given.plain("{n}") as client, given.plain("{n}") as other:
        client.delete("{n}")
        for number in range(1, 4):
            assert client.transaction(add, "{n}") == [True, b"%d" % number]
        with client.pipeline() as pipeline:
            pipeline.watch("{n}")
            other.set("{n}", "taken")
            pipeline.multi()
            pipeline.set("{n}", "mine")
            refused(redis.WatchError, "", pipeline.execute)
        with client.pipeline() as pipeline:
            pipeline.watch("{n}")
            other.set("{n}", "again")
            pipeline.unwatch()
            pipeline.multi()
            pipeline.set("{n}", "mine")
            assert pipeline.execute() == [True]
        with client.pipeline() as pipeline:
            pipeline.set("{n}", "text").incr("{n}").get("{n}")
            first, second, third = pipeline.execute(raise_on_error=False)
            assert (first, third) == (True, b"text")
            assert isinstance(second, redis.ResponseError)
        with client.pipeline() as pipeline:
            pipeline.set("{n}", "lost")
            pipeline.execute_command("NONSENSE")
            refused(redis.ResponseError, "unknown command", pipeline.execute)
        assert client.get("{n}") == b"text"
        connection = client.connection_pool.get_connection("MULTI")
        for words in (("MULTI",), ("SET", "{n}", "lost"), ("DISCARD",)):
            connection.send_command(*words)
            connection.read_response()
        client.connection_pool.release(connection)
        assert client.get("{n}") == b"text"


def refusals(given: Given) -> None:
    with given.plain("foo") as client:
        crossed = "Keys in request don't hash to the same slot"
        refused(redis.ResponseError, crossed, client.mget, "foo", "bar")
        refused(redis.ResponseError, "unknown command", client.lpush, "foo", 1)
        refused(redis.ResponseError, "SELECT is not allowed", client.select, 1)
        refused(redis.ResponseError, "wrong number", client.execute_command, "GET")
        refused(redis.ResponseError, "syntax error", client.execute_command, "SET", "foo", "b", "c")
    with given.cluster() as cluster:
        refused(redis.exceptions.RedisClusterException, "same key slot", cluster.mget, "foo", "bar")
        refused(
            redis.exceptions.RedisClusterException,
            "same key slot",
            cluster.mset,
            {"foo": 1, "bar": 2},
        )
        refused(redis.RedisError, "doesn't exist", cluster.hset, "foo", "a", "b")
    with given.of_node(given.host, given.port, username=None, password=None) as stranger:
        refused(redis.AuthenticationError, "uthenticat", stranger.get, "foo")
    with given.of_node(given.host, given.port, password="guessed") as stranger:
        refused(redis.AuthenticationError, "invalid username-password", stranger.get, "foo")
    with given.of_node(given.host, given.port, username="nobody") as stranger:
        refused(redis.AuthenticationError, "invalid username-password", stranger.get, "foo")
    if given.reader is not None:
        with given.of_node(given.host, given.port, username=given.reader) as reader:
            kind = redis.exceptions.NoPermissionError
            refused(kind, "has no permissions to run the 'set'", reader.set, "foo", 1)


SCENARIOS = (connections, node_commands, transactions, refusals)
