"""Where the cluster is, who the clients are, and which version of redis-py they have."""

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.retry import Retry

BEHIND_S_MAX = 5.0
VERSION = int(redis.__version__.split(".")[0])


@dataclass(frozen=True)
class Given:
    """What the program was told."""

    host: str
    port: int
    user: str
    password: str
    protocol: int
    nodes: int
    reader: str | None = None
    """A user who may not write, with the same password."""

    def cluster(self, **options: Any) -> Any:
        return RedisCluster(
            startup_nodes=[ClusterNode(self.host, self.port)],
            username=self.user,
            password=self.password,
            protocol=self.protocol,
            **options,
        )

    def plain(self, key: str, **options: Any) -> Any:
        """A client of the one node that has a key."""
        with self.cluster() as cluster:
            node = cluster.get_node_from_key(key)
        return self.of_node(node.host, node.port, **options)

    def of_node(self, host: str, port: int, **options: Any) -> Any:
        credentials = {"username": self.user, "password": self.password, **options}
        # One attempt: what a server answers is to be seen.
        retry = Retry(NoBackoff(), 0)
        return redis.Redis(host=host, port=port, protocol=self.protocol, retry=retry, **credentials)


def refused(kind: type[Exception], text: str, call: Callable[..., Any], *arguments: Any) -> None:
    try:
        answer = call(*arguments)
    except kind as error:
        assert text in str(error), f"{error!r} does not say {text!r}"
    else:
        raise AssertionError(f"{call} answered {answer!r}, and was to be refused: {text}")


def until(is_so: Callable[[], bool]) -> None:
    """Slaves may be a little behind."""
    deadline = time.monotonic() + BEHIND_S_MAX
    while not is_so():
        assert time.monotonic() < deadline, "slaves are too far behind"
        time.sleep(0.005)


@functools.cache
def spy() -> set[str]:
    """The names of all commands that clients send from now on."""
    serializer = redis.connection.PythonRespSerializer
    pack, sent = serializer.pack, set()

    def packed(self: Any, *words: Any) -> Any:
        first = words[0]
        name = first.decode() if isinstance(first, bytes) else str(first)
        sent.add(name.split()[0].lower())
        return pack(self, *words)

    serializer.pack = packed
    return sent
