"""A table as a DataFrame while clients of Redis write to it: as of one moment in each partition."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from redis.cluster import RedisCluster

from raftwood.zeppelin.client import Kv
from raftwood.zeppelin.slots import slot_of
from tests.kits.zeppelin.data_node import data_nodes
from tests.kits.zeppelin.static_view import PASSWORD, READER, WRITER

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEYS = [f"key{number}" for number in range(400)]


class Rounds:
    """Writes all keys in order, round after round; tells which round was done, and which began."""

    def __init__(self, port: int) -> None:
        self._client = RedisCluster(host="127.0.0.1", port=port, username=WRITER, password=PASSWORD)
        self.begun = self.done = 0
        self._is_over = threading.Event()

    def round(self) -> None:
        self.begun += 1
        for key in KEYS:
            self._client.set(key, self.begun)
            self._is_over.wait(0.002)  # Spark needs the processor as well
        self.done = self.begun

    @contextmanager
    def going_on(self) -> Iterator[None]:
        def write() -> None:
            while not self._is_over.is_set():
                self.round()

        thread = threading.Thread(target=write)
        thread.start()
        try:
            yield
        finally:
            self._is_over.set()
            thread.join(60)
            self._client.close()
        assert not thread.is_alive()


def test_a_query_reads_each_partition_as_of_one_moment_while_it_is_written(
    spark: "SparkSession",
) -> None:
    with (
        data_nodes(2, partitions=3) as nodes,
        Kv.connect(f"127.0.0.1:{nodes[0].port}", user=WRITER, password=PASSWORD) as kv,
    ):
        access = {"addresses": f"127.0.0.1:{nodes[0].port}", "user": READER, "password": PASSWORD}
        rounds = Rounds(nodes[0].port)
        rounds.round()
        with rounds.going_on():
            before = rounds.done
            frame = (
                spark.read.format("zeppelin")
                .schema("key string, value string, expires timestamp")
                .options(**access, pageBytes=400)
                .load()
            )
            found = {row.key: int(row.value) for row in frame.collect()}
            after = rounds.begun
            assert {row.key: int(row.value) for row in frame.collect()} == found
        assert sorted(found) == sorted(KEYS)
        places = kv.partitions()
        for place in places:
            values = [found[key] for key in KEYS if slot_of(key.encode()) in place.slots]
            # One writer goes through the keys in order: the later ones are a round behind.
            assert values == sorted(values, reverse=True)
            assert before <= values[-1] <= values[0] <= min(values[-1] + 1, after)
