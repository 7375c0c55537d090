"""A user of redis-py at work: writes until its input ends, then looks for what was acked.

`python -m … '{"host": …, "tags": […], "has_retries": true}'` prints `ready` once it works. What
users see is counted: a call that raises has failed for them, whatever the client tried by itself.
"""

import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.retry import Retry

PAUSE_S = 0.002


def connected(given: dict[str, Any]) -> Any:
    """With the client's defaults, or so that it sends each command once."""
    options = {} if given["has_retries"] else {"retry": Retry(NoBackoff(), 0)}
    return RedisCluster(
        startup_nodes=[ClusterNode("127.0.0.1", port) for port in given["ports"]],
        username=given["user"],
        password=given["password"],
        **options,
    )


class Load:
    """Sets of new keys and increments of counters, by tag."""

    def __init__(self, client: Any, given: dict[str, Any]) -> None:
        self._client = client
        self._name = given["name"]
        self.tags: list[str] = given["tags"]
        self.acked: dict[str, int] = {}
        self.incremented: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()
        self.errors: list[tuple[float, str]] = []
        self.calls: dict[str, list[tuple[float, float]]] = {tag: [] for tag in self.tags}
        """When each was made, by the clock that all processes share, and how long it took."""
        self.gap_s = 0.0
        self._served_at = dict.fromkeys(self.tags, time.monotonic())
        self._number = 0

    def work(self) -> None:
        """Once with each tag."""
        for tag in self.tags:
            self._number += 1
            key = f"{{{tag}}}{self._name}-{self._number}"
            counter = self.counter(tag)
            self.sent[counter] += 1
            try:
                if self._timed(tag, self._client.incr, counter):
                    self.incremented[counter] += 1
                if self._timed(tag, self._client.set, key, self._number):
                    self.acked[key] = self._number
            except (redis.RedisError, redis.exceptions.RedisClusterException, OSError) as error:
                self.errors.append((time.monotonic(), f"{type(error).__name__}: {error}"[:120]))
            else:
                now = time.monotonic()
                self.gap_s = max(self.gap_s, now - self._served_at[tag])
                self._served_at[tag] = now
            time.sleep(PAUSE_S)

    def _timed(self, tag: str, call: Callable[..., Any], *words: Any) -> Any:
        began_s = time.monotonic()
        try:
            return call(*words)
        finally:
            self.calls[tag].append((began_s, time.monotonic() - began_s))

    def counter(self, tag: str) -> str:
        return f"{{{tag}}}{self._name}-count"

    def lost(self) -> list[str]:
        return [key for key, value in self.acked.items() if self._client.get(key) != b"%d" % value]

    def unscanned(self) -> list[str]:
        """What a client that has seen masters change leaves out when it goes through all keys."""
        scanned = set(self._client.scan_iter(count=1000))
        return [key for key in self.acked if key.encode() not in scanned]

    def counts(self) -> dict[str, list[int]]:
        """By counter: what was acked, what it is, and what was sent."""
        return {
            counter: [
                self.incremented[counter],
                int(self._client.get(counter) or 0),
                self.sent[counter],
            ]
            for counter in map(self.counter, self.tags)
        }


def main() -> None:
    given = json.loads(sys.argv[1])
    is_over = threading.Event()

    def wait() -> None:
        sys.stdin.read()
        is_over.set()

    threading.Thread(target=wait, daemon=True).start()
    with connected(given) as client:
        load = Load(client, given)
        load.work()
        print("ready", flush=True)
        while not is_over.is_set():
            load.work()
        said = {
            "acked": len(load.acked),
            "lost": load.lost(),
            "unscanned": load.unscanned(),
            "counts": load.counts(),
            "errors": load.errors,
            "gap_s": load.gap_s,
            "calls": load.calls,
        }
    print(json.dumps(said))


main()
