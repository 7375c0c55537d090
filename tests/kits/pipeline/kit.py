"""What the tests with Spark share: a logstore, filled and read."""

import contextlib
import itertools
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raftwood.base.compression import Codec
from raftwood.base.errors import AlreadyExists
from raftwood.loghub.batches import Batch, Format
from raftwood.loghub.client import LogHubClient, ProducerSettings
from raftwood.loghub.wire import PutRequest, encode_put
from raftwood.logservice.client import LogClient
from raftwood.pipeline.hub import Hub as PipelineHub
from raftwood.pipeline.options import StreamAccess
from tests.kits.pipeline.standalone import Standalone

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PROJECT = "shop"
_numbers = itertools.count()


class Hub:
    """Logstores of one test."""

    def __init__(self, standalone: Standalone, client: LogHubClient, spark: "SparkSession") -> None:
        self.standalone = standalone
        self.client = client
        self.spark = spark
        with contextlib.suppress(AlreadyExists):
            client.create_project(PROJECT)

    @property
    def access(self) -> dict[str, str]:
        return self.standalone.access

    def logstore(self, shards: int = 2) -> str:
        name = f"stream-{next(_numbers)}"
        self.client.create_logstore(PROJECT, name, shard_count=shards)
        return name

    def fill(
        self,
        logstore: str,
        numbers: Iterable[int],
        *,
        settings: ProducerSettings | None = None,
        **shared: Any,
    ) -> None:
        """Records with a number and a text, by key, as LogGroups."""
        with self.client.producer(PROJECT, logstore, settings=settings) as producer:
            for number in numbers:
                contents = {"n": str(number), "text": f"text {number}"}
                producer.send(contents, key=str(number), **shared)

    def put_raw(self, logstore: str, body: bytes, *, shard: int = 0, records: int = 1) -> None:
        """A batch that says to be a LogGroup, whatever it is."""
        access = StreamAccess(
            gateways=(self.standalone.loghub.native,),
            access_key=self.standalone.loghub.access_key,
            access_secret=self.standalone.loghub.access_secret,
            project=PROJECT,
            logstore=logstore,
        )
        batch = Batch(
            body=body,
            format=Format.LOG_GROUP,
            codec=Codec.NONE,
            raw_bytes=len(body),
            records=records,
        )
        request = PutRequest(PROJECT, logstore, shard, "", 0, batch)
        with PipelineHub.connect(access) as hub:
            hub.begin(hub.put(encode_put(request), shard=shard)).result()

    def truncate(self, logstore: str, *, shard: int, batches_left: int) -> None:
        """Free the oldest batches, as retention does."""
        (detail,) = [
            each for each in self.client.describe(PROJECT, logstore) if each.shard.id == shard
        ]
        service = self.standalone.parts.logservice
        secrets = tomllib.loads(Path(service.config).read_text())["secrets"]
        with LogClient.connect(
            service.address,
            secret=secrets["clients"],
            shard=detail.shard.log,
            cluster="standalone",
        ) as log:
            log.truncate(int(detail.next) - 1 - batches_left)

    def read(
        self, logstore: str, schema: str | None = None, options: Mapping[str, Any] | None = None
    ) -> "DataFrame":
        reader = self.spark.read.format("loghub").options(**self.access, **(options or {}))
        if schema is not None:
            reader = reader.schema(schema)
        return reader.load(f"{PROJECT}/{logstore}")

    def stream(
        self, logstore: str, schema: str | None = None, options: Mapping[str, Any] | None = None
    ) -> "DataFrame":
        reader = self.spark.readStream.format("loghub").options(**self.access, **(options or {}))
        if schema is not None:
            reader = reader.schema(schema)
        return reader.load(f"{PROJECT}/{logstore}")

    def copy(
        self,
        frame: "DataFrame",
        logstore: str,
        checkpoint: object,
        options: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """What is there of a stream into a logstore; the progress of each micro-batch."""
        query = (
            frame.writeStream.format("loghub")
            .options(**self.access, **(options or {}))
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start(f"{PROJECT}/{logstore}")
        )
        query.awaitTermination()
        return list(query.recentProgress)

    def numbers(self, logstore: str) -> list[int]:
        """All numbers that are stored, sorted."""
        rows = self.read(logstore, "n int").collect()
        return sorted(row.n for row in rows)
