"""The client for programs without an event loop, from several threads."""

import threading
from collections.abc import Iterator

import pyarrow
import pytest

from raftwood.base.errors import Unauthenticated, Unavailable
from raftwood.zeppelin.client import Kv
from tests.kits.zeppelin.data_node import DataNode, data_node
from tests.kits.zeppelin.static_view import PASSWORD, WRITER


@pytest.fixture
def node() -> Iterator[DataNode]:
    with data_node() as started:
        yield started


@pytest.fixture
def kv(node: DataNode) -> Iterator[Kv]:
    with Kv.connect(f"127.0.0.1:{node.port}", user=WRITER, password=PASSWORD) as connected:
        yield connected


def test_every_call_is_there(kv: Kv) -> None:
    assert kv.set("a", "1")
    assert kv.set("a", "2", get=True) == b"1"
    assert (kv.get("a"), kv.exists("a"), kv.strlen("a")) == (b"2", True, 1)
    assert kv.cas("a", 2, 3)
    assert (kv.incr("a"), kv.append("a", "0")) == (4, 2)
    assert kv.expire("a", ex=5)
    assert kv.persist("a")
    assert kv.ttl_ms("a") == -1
    assert kv.getset("a", "x") == b"40"
    assert kv.command("GETEX", "a") == b"x"
    assert kv.getdel("a") == b"x"
    kv.set_many({"{t}b": 1, "{t}c": 2})
    kv.incr_many({"{t}b": 5})
    assert kv.get_many(["{t}b", "{t}c"]) == [b"6", b"2"]
    assert kv.tag_list("t") == {b"{t}b": b"6", b"{t}c": b"2"}
    assert kv.transaction([("GET", "{t}b")]) == [b"6"]
    assert sorted(kv.scan()) == [b"{t}b", b"{t}c"]
    assert (kv.size(), kv.delete("{t}b"), kv.tag_delete("t")) == (2, 1, 1)
    assert kv.put_arrow(pyarrow.table({"key": ["x", "y"], "value": ["1", "2"]})) == 2
    assert kv.get_arrow(["x"]).to_pylist() == [{"key": b"x", "value": b"1"}]
    assert sum(part.num_rows for part in kv.scan_arrow()) == 2
    assert kv.delete_many(["x"]) == 1
    kv.flush()
    assert kv.size() == 0


def test_a_scan_that_is_left_ends_with_the_client(kv: Kv) -> None:
    kv.set_many(dict.fromkeys(range(100), 1))
    for _ in kv.scan(count=10):
        break
    left = kv.scan(count=10)
    next(left)
    kv.close()
    left.close()  # type: ignore[attr-defined]


def test_threads_share_it(kv: Kv) -> None:
    def count() -> None:
        for _ in range(50):
            kv.incr("n")

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert kv.get("n") == b"200"


def test_a_client_that_cannot_connect_leaves_nothing_behind(node: DataNode) -> None:
    with pytest.raises(Unauthenticated):
        Kv.connect(f"127.0.0.1:{node.port}", user=WRITER, password="guessed")
    with Kv.connect(f"127.0.0.1:{node.port}", user=WRITER, password=PASSWORD) as kv:
        pass
    with pytest.raises(Unavailable, match="closed"):
        kv.get("a")
