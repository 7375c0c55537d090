"""redis-py as it comes, cluster client and plain one, in both versions of the protocol."""

from collections.abc import Iterator

import pytest
import redis
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.retry import Retry

from tests.kits.zeppelin.data_node import DataNode, data_node
from tests.kits.zeppelin.static_view import PASSWORD, READER, WRITER


@pytest.fixture
def node() -> Iterator[DataNode]:
    with data_node() as started:
        yield started


@pytest.fixture(params=[2, 3], ids=["RESP2", "RESP3"])
def cluster(node: DataNode, request: pytest.FixtureRequest) -> Iterator[RedisCluster]:
    client = RedisCluster(
        startup_nodes=[ClusterNode("127.0.0.1", node.port)],
        username=WRITER,
        password=PASSWORD,
        protocol=request.param,
    )
    yield client
    client.close()


@pytest.fixture(params=[2, 3], ids=["RESP2", "RESP3"])
def client(node: DataNode, request: pytest.FixtureRequest) -> Iterator[redis.Redis]:
    with redis.Redis(
        port=node.port, username=WRITER, password=PASSWORD, protocol=request.param
    ) as made:
        yield made


def test_a_cluster_client_writes_and_reads(cluster: RedisCluster) -> None:
    assert cluster.set("foo", "bar", ex=100)
    assert cluster.get("foo") == b"bar"
    assert cluster.ttl("foo") == 100
    assert cluster.get("nothing") is None
    assert cluster.incr("count") == 1
    assert cluster.incrbyfloat("number", 1.5) == 1.5
    assert cluster.mset_nonatomic({f"key{number}": number for number in range(50)})
    assert cluster.mget_nonatomic([f"key{number}" for number in range(50)]) == [
        b"%d" % number for number in range(50)
    ]
    assert cluster.mset({"{t}a": 1, "{t}b": 2})
    assert cluster.mget(["{t}a", "{t}b", "{t}c"]) == [b"1", b"2", None]
    assert cluster.delete("foo", "count", "nothing") == 2
    assert cluster.exists("key1") == 1


def test_a_cluster_client_goes_through_all_keys(cluster: RedisCluster) -> None:
    with cluster.pipeline() as pipeline:
        for number in range(500):
            pipeline.set(f"key{number}", number)
        assert all(pipeline.execute())
    expected = sorted(b"key%d" % number for number in range(500))
    assert sorted(cluster.scan_iter(count=37)) == expected
    assert sorted(cluster.keys("key*")) == expected
    assert sorted(cluster.scan_iter(match="key?")) == [b"key%d" % number for number in range(10)]
    assert cluster.dbsize() == 500
    assert cluster.randomkey() in expected
    assert cluster.flushdb()
    assert cluster.dbsize() == 0


def test_a_cluster_client_has_transactions_on_one_tag(cluster: RedisCluster) -> None:
    with cluster.pipeline(transaction=True) as pipeline:
        pipeline.set("{t}a", 5)
        pipeline.incr("{t}a")
        pipeline.get("{t}a")
        assert pipeline.execute()[1:] == [6, b"6"]
    with cluster.pipeline(transaction=True) as pipeline:
        pipeline.watch("{t}a")
        assert pipeline.get("{t}a") == b"6"
        cluster.set("{t}a", 7)
        pipeline.multi()
        pipeline.set("{t}a", 8)
        with pytest.raises(redis.WatchError):
            pipeline.execute()
    assert cluster.get("{t}a") == b"7"


def test_a_cluster_client_is_told_of_the_cluster(cluster: RedisCluster, node: DataNode) -> None:
    info = cluster.cluster_info()
    assert (info["cluster_state"], info["cluster_slots_ok"]) == ("ok", "16384")
    assert list(cluster.cluster_nodes()) == [f"127.0.0.1:{node.port}"]
    assert len(cluster.cluster_shards()) == 1
    assert cluster.cluster_keyslot("foo") == 12182
    assert cluster.info("server")["redis_mode"] == "cluster"


def test_our_own_commands_go_to_the_right_node(cluster: RedisCluster) -> None:
    cluster.mset({"{t}a": 1, "{t}b": 2, "t": 3})
    listed = cluster.execute_command("TAG", "LIST", "t")
    pairs = (
        listed if isinstance(listed, dict) else dict(zip(listed[::2], listed[1::2], strict=True))
    )
    assert pairs == {b"{t}a": b"1", b"{t}b": b"2"}
    assert cluster.execute_command("CAS", "{t}a", "1", "9") == 1
    assert cluster.execute_command("CAS", "{t}a", "1", "9") == 0
    assert cluster.execute_command("TAG", "DEL", "t") == 2
    assert cluster.get("t") == b"3"


def test_a_plain_client_is_served(client: redis.Redis) -> None:
    assert client.ping()
    assert client.set("a", "1", px=50_000, nx=True)
    assert client.set("a", "2", nx=True) is None
    assert client.set("a", "3", get=True) == b"1"
    assert client.getex("a", ex=10) == b"3"
    assert client.expire("a", 20, gt=True)
    assert client.persist("a")
    assert client.object("encoding", "a") == b"int"
    assert client.memory_usage("a") is not None
    assert client.client_setname("me")
    assert client.client_getname() in ("me", b"me")
    assert client.client_info()["lib-name"] == "redis-py"
    assert [each["user"] for each in client.client_list()] == [WRITER]
    assert client.config_get("save") == {"save": ""}
    assert client.command_count() > 60
    assert client.command_getkeys("MSET", "a", "1", "b", "2") in (["a", "b"], [b"a", b"b"])
    assert client.wait(0, 10) == 0
    assert len(client.time()) == 2
    assert client.info()["cluster_enabled"] == 1
    with pytest.raises(redis.ResponseError, match="SELECT is not allowed in cluster mode"):
        client.execute_command("SELECT", "1")
    with pytest.raises(redis.ResponseError, match="don't hash to the same slot"):
        client.mget("a", "b")


def test_transactions_with_a_plain_client(client: redis.Redis) -> None:
    def add(pipeline: redis.client.Pipeline) -> None:
        value = int(pipeline.get("n") or 0)
        pipeline.multi()
        pipeline.set("n", value + 1)

    for _ in range(3):
        assert client.transaction(add, "n") == [True]
    assert client.get("n") == b"3"


def test_who_may_only_read_is_refused_writes(node: DataNode) -> None:
    with redis.Redis(port=node.port, username=READER, password=PASSWORD) as reader:
        assert reader.get("a") is None
        with pytest.raises(redis.exceptions.NoPermissionError):
            reader.set("a", 1)


@pytest.mark.parametrize("credentials", [{}, {"username": WRITER, "password": "guessed"}])
def test_strangers_are_refused(node: DataNode, credentials: dict[str, str]) -> None:
    with (
        redis.Redis(port=node.port, retry=Retry(NoBackoff(), 0), **credentials) as stranger,
        pytest.raises(redis.AuthenticationError),
    ):
        stranger.get("a")
