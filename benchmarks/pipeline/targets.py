"""A system under Spark: how its cluster is filled, and how Spark reads it and writes to it."""

import contextlib
import pathlib
from collections.abc import Iterator
from typing import Final

import msgspec
from tests.kits.install import maven
from tests.kits.install.cache import NotInstalled

from benchmarks.harness.cluster import Cluster
from benchmarks.harness.system import NotAvailable
from benchmarks.loghub.gateway_cluster import GatewayCluster
from benchmarks.loghub.loghub_system import LogHubSystem, gateway_address
from benchmarks.loghub.ways import PROJECT, Key
from benchmarks.peers.kafka_system import KafkaSystem
from benchmarks.pipeline.cases import (
    ARCHIVE,
    ARROW,
    FULL,
    GROUPS,
    KAFKA,
    NAMED,
    PARQUET,
    SINK,
    TUNED_KAFKA,
    TWO_COLUMNS,
)
from benchmarks.pipeline.orders import READ, Archive, Order, Rows, Scan, Write
from benchmarks.pipeline.records import MESSAGE, fill_kafka, fill_logstore
from raftwood.loghub.client.sync_client import LogHubClient

SHARDS: Final = 4
FILLED: Final = "filled"
SUNK: Final = "sunk"
TOPICS: Final = (FILLED, SUNK)
SPARK: Final = "4.2.0"
CONNECTOR: Final = (
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", SPARK),
    # That of Spark 4.2.0 is not to be had; it only asks for tokens, which nobody uses here.
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
    ("org.apache.kafka", "kafka-clients", "3.9.1"),
    ("org.apache.commons", "commons-pool2", "2.12.1"),
)
NAMED_SCHEMA: Final = (
    f"time timestamp, topic string, {MESSAGE} string, shard int, position binary, index int"
)
TUNED_SOURCE: Final = {
    "kafka.max.poll.records": "5000",
    "kafka.max.partition.fetch.bytes": str(8 << 20),
}
TUNED_SINK: Final = {"kafka.linger.ms": "5", "kafka.batch.size": "1000000"}
"""What was better than Kafka's defaults, by far; nobody gets these by himself."""
NAMED_OF_KAFKA: Final = (
    "timestamp",
    "topic",
    f"CAST(value AS string) AS {MESSAGE}",
    "partition",
    "offset",
)


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """One cell of the table; `has_servers` is false where files are read or written."""

    row: str
    case: str
    order: Order
    has_servers: bool = True


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster that runs and is filled; `first` is done once, before the queries."""

    cluster: Cluster
    queries: list[Query]
    first: list[Order] = []
    jars: str = ""


class LogHubUnderSpark:
    name = "loghub"

    def prepare(self) -> str:
        said = LogHubSystem().prepare()
        return f"{said}; Spark {SPARK} with the source and sink `loghub`, {SHARDS} shards"

    @contextlib.contextmanager
    def target(self, folder: pathlib.Path, records: pathlib.Path) -> Iterator[Target]:
        with GatewayCluster(LogHubSystem(), folder=folder, groups=SHARDS) as cluster:
            cluster.settle()
            layout = cluster.layout
            key_file = pathlib.Path(layout.folder, "key.json")
            key = msgspec.json.decode(key_file.read_bytes(), type=Key)
            address = gateway_address(layout)
            with LogHubClient.connect(
                address, access_key=key.id, access_secret=key.secret
            ) as client:
                for name in ("arrow", "groups", SUNK):
                    client.create_logstore(PROJECT, name, shard_count=SHARDS)
                fill_logstore(client, PROJECT, "arrow", records, is_arrow=True)
                fill_logstore(client, PROJECT, "groups", records, is_arrow=False)
            access = {"gateways": address, "accessKey": key.id, "accessSecret": key.secret}
            yield _loghub_target(cluster, access, pathlib.Path(layout.folder), records)


def _loghub_target(
    cluster: Cluster, access: dict[str, str], folder: pathlib.Path, records: pathlib.Path
) -> Target:
    stored = {
        row: Rows(format="loghub", options=access, path=f"{PROJECT}/{stream}")
        for row, stream in ((ARROW, "arrow"), (GROUPS, "groups"))
    }
    queries = [query for row, rows in stored.items() for query in _reading(row, rows)]
    archive, plain = str(folder / "archive"), str(folder / "plain")
    options = {
        "project": PROJECT,
        "logstore": "arrow",
        "archive": archive,
        "gateways": access["gateways"],
        "access_key": access["accessKey"],
        "access_secret": access["accessSecret"],
    }
    history = Rows(format=READ, options=options)
    two = msgspec.structs.replace(history, expressions=("shard", "time"))
    files = Rows(format="parquet", path=plain)
    sent = Rows(format="parquet", path=str(records))
    sink = Write(
        rows=sent,
        format="loghub",
        options={**access, "compression": "none"},
        path=f"{PROJECT}/{SUNK}",
    )
    to_files = Write(rows=sent, format="parquet", path=str(folder / SUNK), mode="overwrite")
    queries += [
        Query(row=ARCHIVE, case=FULL, order=Scan(rows=history)),
        Query(row=ARCHIVE, case=TWO_COLUMNS, order=_counted(two)),
        Query(row=PARQUET, case=FULL, order=Scan(rows=files), has_servers=False),
        Query(row=PARQUET, case=TWO_COLUMNS, order=_counted(files), has_servers=False),
        Query(row=ARROW, case=SINK, order=sink),
        Query(row=PARQUET, case=SINK, order=to_files, has_servers=False),
    ]
    first: list[Order] = [
        Archive(options={**access, "path": f"{PROJECT}/arrow"}, uri=archive),
        Write(rows=stored[ARROW], format="parquet", path=plain, mode="overwrite"),
    ]
    return Target(cluster=cluster, queries=queries, first=first)


def _reading(row: str, rows: Rows) -> list[Query]:
    named = msgspec.structs.replace(rows, schema=NAMED_SCHEMA)
    two = msgspec.structs.replace(rows, schema="shard int, time timestamp")
    return [
        Query(row=row, case=FULL, order=Scan(rows=rows)),
        Query(row=row, case=NAMED, order=Scan(rows=named)),
        Query(row=row, case=TWO_COLUMNS, order=_counted(two)),
    ]


def _counted(rows: Rows) -> Scan:
    return Scan(rows=rows, by="shard", greatest="time")


class KafkaUnderSpark:
    name = KAFKA

    def __init__(self) -> None:
        self._system = KafkaSystem(is_synced=False, topics=TOPICS)
        self._jars = ""

    def prepare(self) -> str:
        said = self._system.prepare()
        try:
            folder = maven.install("kafka-connector", *CONNECTOR, is_alone=True)
        except NotInstalled as problem:
            raise NotAvailable(str(problem)) from problem
        self._jars = ",".join(map(str, sorted(folder.glob("*.jar"))))
        return f"{said}; Spark {SPARK} with its own connector, {SHARDS} partitions"

    @contextlib.contextmanager
    def target(self, folder: pathlib.Path, records: pathlib.Path) -> Iterator[Target]:
        with Cluster(self._system, folder=folder, groups=SHARDS) as cluster:
            cluster.settle()
            addresses = ",".join(cluster.layout.client_addresses())
            fill_kafka(addresses, FILLED, records)
            servers = {"kafka.bootstrap.servers": addresses}
            queries = [
                *_kafka_queries(KAFKA, servers, servers, records),
                *_kafka_queries(
                    TUNED_KAFKA, {**servers, **TUNED_SOURCE}, {**servers, **TUNED_SINK}, records
                ),
            ]
            yield Target(cluster=cluster, queries=queries, jars=self._jars)


def _kafka_queries(
    row: str, source: dict[str, str], sink: dict[str, str], records: pathlib.Path
) -> list[Query]:
    rows = Rows(format="kafka", options={**source, "subscribe": FILLED})
    named = msgspec.structs.replace(rows, expressions=NAMED_OF_KAFKA)
    counted = Scan(rows=rows, by="partition", greatest="timestamp")
    sent = Rows(format="parquet", path=str(records), expressions=(f"{MESSAGE} AS value",))
    written = Write(rows=sent, format="kafka", options={**sink, "topic": SUNK})
    return [
        Query(row=row, case=FULL, order=Scan(rows=rows)),
        Query(row=row, case=NAMED, order=Scan(rows=named)),
        Query(row=row, case=TWO_COLUMNS, order=counted),
        Query(row=row, case=SINK, order=written),
    ]
