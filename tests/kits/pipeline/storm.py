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
from raftwood.pipeline.session import LOCAL
from tests.kits.pipeline.cluster_up import ClusterUp
from tests.kits.pipeline.copying_driver import POLL_S, STEP_S_MAX, CopyingDriver
from tests.kits.pipeline.copying_query import Job
from tests.kits.pipeline.gate import HELD_AT, Gate, Task
from tests.kits.pipeline.spark_cluster import SparkCluster

PROJECT = "shop"
SOURCE = "orders"
SINK = "copies"
FORGETFUL = "copies-of-a-wrong-sink"
DRIVER, WORKER, STORE, GATEWAY = FAULTS = ("driver", "worker", "store leader", "gateway")
EXECUTOR = "executor"
"""On a cluster of Spark's, the process that workers are below."""
REPEATING = {DRIVER, WORKER, EXECUTOR}
"""After these, tasks are run again: the sink that is wrong must be found out."""
ROWS_PER_BATCH = 500
SENT_AT_ONCE = 50
CORES = 2
"""So many tasks run at once."""
CHUNKS_AT_STRIKE = 2
"""So many of every task are let on while the blow falls, and are on their way when it does."""
DELAY_S_MAX = 0.03
ELECTION_S_MAX = 300.0


class Storm:
    """One query and its faults: each strikes a micro-batch of its own, the first the first."""

    def __init__(self, cluster: ClusterUp, driver: CopyingDriver, gate: Gate, seed: int) -> None:
        self._cluster = cluster
        self._driver = driver
        self._gate = gate
        self._random = random.Random(f"pipeline storm {seed}")
        self.counts: Counter[str] = Counter()

    def rage(self, faults: Sequence[str]) -> None:
        with self._cluster.client() as client:
            self._places = [(each.shard, each.position) for each in records(client, SOURCE)]
        self._driver.start()
        for batch, fault in enumerate(faults):
            self._strike_in_the_middle(batch, fault)
            self.counts[f"killed {fault} in mid-batch"] += 1
        self._gate.let(None)
        self._driver.wait()

    def _strike_in_the_middle(self, batch: int, fault: str) -> None:
        held = self._held(batch)
        self._check_that_a_part_is_stored(batch)
        log = self._log_of_sink()
        victim = self._victim(fault, log)
        assert fault != GATEWAY or victim in gateways_of(held[0])
        self._gate.let(batch, HELD_AT + CHUNKS_AT_STRIKE)
        time.sleep(self._random.uniform(0, DELAY_S_MAX))
        if victim:
            self._cluster.kill(victim)
        elif fault == DRIVER:
            self._driver.kill()
            self._check_that_a_part_is_stored(batch)
            self._driver.start()
        else:
            process_of(held[0], fault).kill()
        assert self._driver.done() < batch, "the blow came too late"
        self._gate.let(batch)
        self._driver.wait_for(batch)
        if victim:
            # It was away until others had done all of the micro-batch.
            self._wait_for_another_leader(log, victim)
            self._cluster.restart(victim)
        elif fault != DRIVER:
            attempts = [each for each in self._gate.begun(batch) if is_repetition(each, held[0])]
            assert attempts, f"nobody has missed {held[0]}"

    def _held(self, batch: int) -> list[Task]:
        """The tasks of a micro-batch, as soon as all that run are in their middle."""
        deadline = time.monotonic() + STEP_S_MAX
        while len(held := self._gate.held(batch)) < CORES:
            self._driver.check_running()
            assert time.monotonic() < deadline, self._driver.last_words()
            time.sleep(POLL_S)
        return held

    def _check_that_a_part_is_stored(self, batch: int) -> None:
        """Of a micro-batch some rows, and not all; of those before it, all."""
        before, through = self._rows_through(batch - 1), self._rows_through(batch)
        deadline = time.monotonic() + STEP_S_MAX
        with self._cluster.client() as client:
            while (found := sum(stored(client, SINK).values())) <= before:
                assert time.monotonic() < deadline, self._driver.last_words()
                time.sleep(POLL_S)
        assert before < found < through
        assert self._driver.planned() == batch == self._driver.done() + 1

    def _rows_through(self, batch: int) -> int:
        if batch < 0:
            return 0
        ends = self._driver.end_of(batch).positions
        return sum(position < ends[shard] for shard, position in self._places)

    def _wait_for_another_leader(self, log: str, former: str) -> None:
        deadline = time.monotonic() + ELECTION_S_MAX
        while self._cluster.leader(log) == former:
            assert time.monotonic() < deadline, f"{former} is dead, and leads {log}"
            time.sleep(POLL_S)

    def _log_of_sink(self) -> str:
        """Of a shard that the query writes to."""
        with self._cluster.client() as client:
            return self._random.choice(client.describe(PROJECT, SINK)).shard.log

    def _victim(self, fault: str, log: str) -> str:
        """A process of the cluster; none for faults of Spark."""
        if fault == GATEWAY:
            return self._random.choice(self._cluster.gateways)
        return self._cluster.leader(log) if fault == STORE else ""


def gateways_of(task: Task) -> set[str]:
    """Those that a worker is connected to."""
    connections = psutil.Process(task.pid).net_connections("tcp")
    return {f"gateway-{each.raddr.port}" for each in connections if each.raddr}


def process_of(task: Task, fault: str) -> psutil.Process:
    worker = psutil.Process(task.pid)
    if fault == WORKER:
        return worker
    return next(each for each in worker.parents() if each.name() == "java")


def is_repetition(task: Task, former: Task) -> bool:
    return task.partition == former.partition and task.attempt > former.attempt


@contextmanager
def prepared(
    folder: Path, rows: int, master: str
) -> Iterator[tuple[ClusterUp, CopyingDriver, Gate]]:
    """A cluster with a stream that is filled and one that is empty, and a query to copy it."""
    gate = folder / "gate"
    with ClusterUp(folder) as cluster:
        with cluster.client() as client:
            prepare_streams(client, rows, SINK, FORGETFUL)
        job = Job(
            access=cluster.access,
            source=f"{PROJECT}/{SOURCE}",
            sink=f"{PROJECT}/{SINK}",
            checkpoint=str(folder / "checkpoint"),
            scratch=str(folder / "scratch"),
            rows_per_batch=ROWS_PER_BATCH,
            master=master,
            gate=str(gate),
            forgetful=FORGETFUL,
        )
        driver = CopyingDriver(folder / "driver", job)
        try:
            yield cluster, driver, Gate(str(gate))
        finally:
            driver.close()


def prepare_streams(client: LogHubClient, rows: int, *empty: str) -> None:
    client.create_project(PROJECT)
    for name in (SOURCE, *empty):
        client.create_logstore(PROJECT, name, shard_count=2)
    with client.producer(PROJECT, SOURCE) as producer:
        for first in range(0, rows, SENT_AT_ONCE):
            for number in range(first, min(rows, first + SENT_AT_ONCE)):
                contents = {"number": str(number), "text": f"order {number}"}
                producer.send(contents, key=str(number), time_ns=number * 1_000_000_000)
            producer.flush()


def records(client: LogHubClient, logstore: str) -> list[Any]:
    with client.reader(PROJECT, logstore) as reader:
        return list(reader)


def stored(client: LogHubClient, logstore: str) -> Counter[Any]:
    """All records, whichever shard and batch they stand in."""
    return Counter(
        (
            *(each.time_ns, each.topic, each.source),
            *(tuple(sorted(found.items())) for found in (each.tags, each.contents)),
        )
        for each in records(client, logstore)
    )


def flaws(found: Counter[Any], wanted: Counter[Any]) -> list[str]:
    """What is not there, and what is there too often."""
    lost, more = wanted - found, found - wanted
    return [
        f"{which.total()} {what}, such as {sorted(which)[:3]}"
        for what, which in (("lost", lost), ("stored twice", more))
        if which
    ]


def run_pipeline_storm(
    folder: Path, seed: int, faults: Sequence[str], *, master: str = LOCAL
) -> Counter[str]:
    """Raises what it found; else how often what happened."""
    rows = ROWS_PER_BATCH * (len(faults) + 1)
    with prepared(folder, rows, master) as (cluster, driver, gate):
        storm = Storm(cluster, driver, gate, seed)
        storm.rage(faults)
        with cluster.client() as client:
            wanted = stored(client, SOURCE)
            assert wanted.total() == rows
            found = flaws(stored(client, SINK), wanted)
            assert not found, found
            if REPEATING & set(faults):
                found = flaws(stored(client, FORGETFUL), wanted)
                assert ["stored twice" in each for each in found] == [True], found
        storm.counts["rows copied"] = rows
        return storm.counts


def run_pipeline_matrix(folder: Path, seed: int) -> Counter[str]:
    """All faults twice in any order: on one machine, then on a cluster of Spark's."""
    counts = run_pipeline_storm(made(folder / "local"), seed, shuffled(FAULTS, seed))
    with SparkCluster(made(folder / "spark")) as cluster:
        faults = shuffled((*FAULTS, EXECUTOR), seed)
        there = run_pipeline_storm(made(folder / "cluster"), seed, faults, master=cluster.address)
    return counts + Counter({f"{name} on a cluster": count for name, count in there.items()})


def made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def shuffled(faults: Sequence[str], seed: int) -> list[str]:
    found = [*faults, *faults]
    random.Random(f"pipeline faults {seed}").shuffle(found)
    return found
