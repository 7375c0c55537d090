"""`redis-cli` and `redis-benchmark`, as Debian has them."""

from collections.abc import Iterator

import pytest

from tests.kits.zeppelin.data_node import data_node, data_nodes
from tests.kits.zeppelin.redis_tools import Tools
from tests.kits.zeppelin.static_view import PASSWORD, WRITER

pytestmark = pytest.mark.needs("redis_tools")


@pytest.fixture
def tools() -> Iterator[Tools]:
    """At one of three nodes, all of which are masters."""
    with data_nodes(3) as nodes:
        yield Tools(nodes[0].port, WRITER, PASSWORD)


@pytest.mark.parametrize("protocol", ["-2", "-3"])
def test_redis_cli_follows_keys_to_their_nodes(tools: Tools, protocol: str) -> None:
    keys = [f"key{number}" for number in range(10)]
    given = "".join(f"set {key} {key}-value\nget {key}\n" for key in keys)
    said = tools.cli("-c", protocol, given=given).splitlines()
    assert any(line.startswith("-> Redirected to slot") for line in said)
    values = [line for line in said if line.endswith("-value")]
    assert values == [f"{key}-value" for key in keys]
    given = "set {t} 5\nincrby {t} 3\nmulti\nget {t}\nappend {t} 0\nexec\nttl {t}\n"
    said = tools.cli("-c", protocol, given=given).splitlines()
    assert said[-8:] == ["OK", "8", "OK", "QUEUED", "QUEUED", "8", "2", "-1"]
    assert "cluster" in tools.cli("-c", protocol, "hello")


def test_redis_cli_tells_of_nodes_and_commands(tools: Tools) -> None:
    info = dict(line.split(":", 1) for line in tools.cli("info").split() if ":" in line)
    assert (info["redis_mode"], info["cluster_enabled"]) == ("cluster", "1")
    assert "The value of a key" in tools.cli("help", "get")
    assert "The value of a key" in tools.cli("command", "docs", "get")
    assert "cluster_state:ok" in tools.cli("cluster", "info")
    assert tools.cli("client", "list").count("addr=") >= 1


def test_redis_cli_finds_the_cluster_well(tools: Tools) -> None:
    for number in range(3):
        tools.cli("-c", "set", f"key{number}", "1")
    checked = tools.cluster("check")
    assert "[OK] 3 keys in 3 masters." in checked
    assert "[OK] All nodes agree about slots configuration." in checked
    assert "[OK] All 16384 slots covered." in checked
    assert "WARNING" not in checked
    assert "[OK] 3 keys in 3 masters." in tools.cluster("info")
    counted = [line.split()[-1] for line in tools.cluster("call", "dbsize").splitlines()[1:]]
    assert sum(map(int, counted)) == 3


def test_redis_cli_loads_and_scans_a_node() -> None:
    with data_node() as node:
        tools = Tools(node.port, WRITER, PASSWORD)
        words = (f"*3\r\n$3\r\nSET\r\n$4\r\nk{number:03}\r\n$1\r\nv\r\n" for number in range(500))
        assert "errors: 0, replies: 500" in tools.cli("--pipe", given="".join(words))
        scanned = tools.cli("--scan", "--pattern", "k*7").split()
        assert sorted(scanned) == [f"k{number:03}" for number in range(7, 500, 10)]
        assert "Sampled 500 keys in the keyspace!" in tools.cli("--bigkeys")
        assert tools.benchmark("-t", "ping,set,get", "-n", "500").keys() == {
            *("PING_INLINE", "PING_MBULK", "SET", "GET"),
        }


@pytest.mark.parametrize(
    "options",
    [("-c", "10"), ("-c", "20", "-P", "16", "-r", "1000", "--threads", "2")],
    ids=["one at a time", "pipelines and threads"],
)
def test_redis_benchmark_has_no_errors(tools: Tools, options: tuple[str, ...]) -> None:
    done = tools.benchmark("--cluster", "-t", "set,get,incr,mset", "-n", "2000", *options)
    assert done.keys() == {"SET", "GET", "INCR", "MSET (10 keys)"}
    assert all(done.values())
