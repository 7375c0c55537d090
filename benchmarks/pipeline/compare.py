"""The whole comparison: in each round one system after the other runs all queries."""

import pathlib
import statistics
import tempfile
from collections.abc import Callable
from typing import Final

import msgspec

from benchmarks.harness.cluster import ClusterFailed, check_disk
from benchmarks.harness.comparison import Results
from benchmarks.harness.system import NotAvailable
from benchmarks.peers.programs import CACHE
from benchmarks.pipeline.orders import Answer
from benchmarks.pipeline.records import write_records
from benchmarks.pipeline.spark_process import SparkProcess
from benchmarks.pipeline.targets import KafkaUnderSpark, LogHubUnderSpark, Query, Target

SYSTEMS: Final = ("loghub", "kafka")
System = LogHubUnderSpark | KafkaUnderSpark


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """How much there is to do: about a quarter of an hour at the default."""

    rows: int = 2_000_000
    warm_ups: int = 4
    """Of all queries in turn: Java has compiled what is busy after these, Kafka's brokers too."""
    repeats: int = 3
    rounds: int = 1


QUICK: Final = Pace(rows=50_000, warm_ups=1, repeats=1)


class Spent(msgspec.Struct, frozen=True, kw_only=True):
    """CPU is per row."""

    rows_per_second: float
    spark_us: float
    servers_us: float

    @property
    def rows_per_cpu_second(self) -> float:
        return 1e6 / (self.spark_us + self.servers_us)


class PipelineResults(Results, kw_only=True):
    """`spent` has the medians, by row and then by case."""

    rows: int
    spent: dict[str, dict[str, Spent]] = msgspec.field(default_factory=dict)


class Comparison:
    """One run."""

    def __init__(self, results: PipelineResults, progress: Callable[[str], None]) -> None:
        self.results = results
        self._progress = progress
        self._taken: dict[tuple[str, str], list[Spent]] = {}

    def prepared(self, names: tuple[str, ...]) -> list[System]:
        systems: list[System] = []
        for name in names:
            self._progress(f"{name}: made ready")
            system = LogHubUnderSpark() if name == "loghub" else KafkaUnderSpark()
            try:
                self.results.systems[name] = system.prepare()
                systems.append(system)
            except NotAvailable as problem:
                self.results.missing[name] = str(problem)
        return systems

    def run_round(self, system: System, pace: Pace, folder: pathlib.Path) -> None:
        records = folder / "records.parquet"
        try:
            with system.target(folder, records) as target:
                self._queries(target, pace)
        except (ClusterFailed, OSError) as problem:
            self.results.failed.append(f"{system.name}: {problem}")
            self._progress(f"failed: {problem}")

    def _queries(self, target: Target, pace: Pace) -> None:
        folder = pathlib.Path(target.cluster.layout.folder)
        with SparkProcess(folder, jars=target.jars) as spark:
            for order in target.first:
                spark.do(order)
            for turn in range(pace.warm_ups + pace.repeats):
                is_warm = turn >= pace.warm_ups
                self._progress("measured" if is_warm else "warming up")
                for query in target.queries:
                    before = sum(target.cluster.cpu_s())
                    answer = spark.do(query.order)
                    servers_s = sum(target.cluster.cpu_s()) - before
                    if is_warm:
                        self._took(query, answer, servers_s, pace.rows)

    def _took(self, query: Query, answer: Answer, servers_s: float, rows: int) -> None:
        if answer.count not in (None, rows):
            raise ClusterFailed(
                f"{query.case}: {query.row} has counted {answer.count} rows of {rows}"
            )
        taken = self._taken.setdefault((query.row, query.case), [])
        taken.append(
            Spent(
                rows_per_second=rows / answer.elapsed_s,
                spark_us=answer.cpu_s / rows * 1e6,
                servers_us=servers_s / rows * 1e6 if query.has_servers else 0.0,
            )
        )
        self.results.spent.setdefault(query.row, {})[query.case] = _medians(taken)


def _medians(taken: list[Spent]) -> Spent:
    return Spent(
        **{
            field: statistics.median(getattr(each, field) for each in taken)
            for field in Spent.__struct_fields__
        }
    )


def compare(
    names: tuple[str, ...] = SYSTEMS,
    pace: Pace | None = None,
    *,
    folder: pathlib.Path = CACHE / "data",
    progress: Callable[[str], None] = print,
) -> PipelineResults:
    pace = pace or Pace()
    comparison = Comparison(PipelineResults(disk=check_disk(folder), rows=pace.rows), progress)
    systems = comparison.prepared(names)
    with tempfile.TemporaryDirectory(prefix="pipeline-", dir=folder) as data:
        write_records(pathlib.Path(data, "records.parquet"), pace.rows)
        for number in range(1, pace.rounds + 1):
            for system in systems:
                progress(f"round {number}: {system.name}")
                comparison.run_round(system, pace, pathlib.Path(data))
    return comparison.results
