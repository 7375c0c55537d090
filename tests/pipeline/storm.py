"""A streaming query copies a logstore while what it stands on is killed: all is there once."""

import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from raftwood.loghub.client import LogHubClient
from tests.pipeline.cluster_up import ClusterUp
from tests.pipeline.copying_driver import CopyingDriver, Ended
from tests.pipeline.copying_query import Job

PROJECT = "shop"
SOURCE = "orders"
SINK = "copies"
DRIVER, WORKER, STORE, GATEWAY = FAULTS = ("driver", "worker", "store leader", "gateway")
ROWS_PER_BATCH = 500
SENT_AT_ONCE = 50
STRIKES_MAX = 5
DELAY_S_MAX = 0.3
MATRIX_ROWS_PER_FAULT = 2_000
RESTARTED_S = 1.0
"""After so long a process that was killed is there again."""


class Storm:
    """One query and its faults."""

    def __init__(self, cluster: ClusterUp, driver: CopyingDriver, seed: int) -> None:
        self._cluster = cluster
        self._driver = driver
        self._random = random.Random(f"pipeline storm {seed}")
        self._struck = -1
        self.counts: Counter[str] = Counter()

    def rage(self, faults: Sequence[str]) -> None:
        self._driver.start()
        for fault in faults:
            for _ in range(STRIKES_MAX):
                if self._strikes_in_mid_batch(fault):
                    break
            else:
                raise AssertionError(f"{fault}: no strike has met a micro-batch in {STRIKES_MAX}")
            self.counts[f"killed {fault} in mid-batch"] += 1
        self._driver.wait()

    def _strikes_in_mid_batch(self, fault: str) -> bool:
        try:
            batch = self._driver.in_mid_batch(self._struck)
        except Ended:
            raise AssertionError(f"all was copied before {fault}: give more rows") from None
        self._struck = batch
        workers = self._driver.busy_workers(batch)
        if not workers:
            return False
        lost = self._driver.lost_tasks()
        killed = self._strike(fault, workers)
        was_under_way = self._driver.newest("commits") < batch
        self._mend(fault, killed)
        if fault != WORKER:
            return was_under_way
        # A worker that was done with its task is not missed by anybody.
        return self._driver.loses_a_task(lost, batch)

    def _strike(self, fault: str, workers: list[psutil.Process]) -> str:
        """Who was killed."""
        if fault == WORKER:
            workers[0].kill()
            return fault
        killed = {STORE: self._leader, GATEWAY: self._some_gateway}.get(fault, lambda: fault)()
        time.sleep(self._random.uniform(0, DELAY_S_MAX))
        if fault == DRIVER:
            self._driver.kill()
        else:
            self._cluster.kill(killed)
        return killed

    def _some_gateway(self) -> str:
        return self._random.choice(self._cluster.gateways)

    def _leader(self) -> str:
        with self._cluster.client() as client:
            shards = client.describe(PROJECT, SINK)
        return self._cluster.leader(self._random.choice(shards).shard.log)

    def _mend(self, fault: str, killed: str) -> None:
        if fault == DRIVER:
            self._driver.start()
        elif fault in (STORE, GATEWAY):
            time.sleep(RESTARTED_S)
            self._cluster.restart(killed)


@contextmanager
def prepared(folder: Path, rows: int) -> Iterator[tuple[ClusterUp, CopyingDriver]]:
    """A cluster with a stream that is filled and one that is empty, and a query to copy it."""
    with ClusterUp(folder) as cluster:
        with cluster.client() as client:
            client.create_project(PROJECT)
            for name in (SOURCE, SINK):
                client.create_logstore(PROJECT, name, shard_count=2)
            fill(client, rows)
        job = Job(
            access=cluster.access,
            source=f"{PROJECT}/{SOURCE}",
            sink=f"{PROJECT}/{SINK}",
            checkpoint=str(folder / "checkpoint"),
            scratch=str(folder / "scratch"),
            rows_per_batch=ROWS_PER_BATCH,
        )
        driver = CopyingDriver(folder / "driver", job)
        try:
            yield cluster, driver
        finally:
            driver.close()


def fill(client: LogHubClient, rows: int) -> None:
    with client.producer(PROJECT, SOURCE) as producer:
        for first in range(0, rows, SENT_AT_ONCE):
            for number in range(first, min(rows, first + SENT_AT_ONCE)):
                contents = {"number": str(number), "text": f"order {number}"}
                producer.send(contents, key=str(number), time_ns=number * 1_000_000_000)
            producer.flush()


def stored(client: LogHubClient, logstore: str) -> Counter[Any]:
    """All records, whichever shard and batch they stand in."""
    with client.reader(PROJECT, logstore) as reader:
        return Counter(
            (record.time_ns, record.topic, record.source, *sorted(record.contents.items()))
            for record in reader
        )


def run_pipeline_storm(
    folder: Path, seed: int, faults: Sequence[str], *, rows: int
) -> Counter[str]:
    """Raises what it found; else how often what happened."""
    with prepared(folder, rows) as (cluster, driver):
        storm = Storm(cluster, driver, seed)
        storm.rage(faults)
        with cluster.client() as client:
            found, wanted = stored(client, SINK), stored(client, SOURCE)
        assert sum(wanted.values()) == rows
        assert not wanted - found, f"lost: {sorted((wanted - found).elements())[:5]}"
        assert not found - wanted, f"stored twice: {sorted((found - wanted).elements())[:5]}"
        storm.counts["rows copied"] = rows
        return storm.counts


def run_pipeline_matrix(folder: Path, seed: int) -> Counter[str]:
    """Each fault by itself, then all of them twice in any order."""
    mixed = [*FAULTS, *FAULTS]
    random.Random(f"pipeline matrix {seed}").shuffle(mixed)
    counts: Counter[str] = Counter()
    for number, faults in enumerate([*([each, each] for each in FAULTS), mixed]):
        below = folder / str(number)
        below.mkdir()
        rows = MATRIX_ROWS_PER_FAULT * len(faults)
        counts += run_pipeline_storm(below, seed, faults, rows=rows)
    return counts
