"""The whole story: web servers ship lines to receivers, of which one is killed and comes back.

The lines go into a stream that is kept in ledgers, whose writer is fenced; Spark parses them,
errors and figures by the minute go to streams of their own, the figures also to keys of Zeppelin's,
the rest to an archive, the log is truncated, and more lines come. Then processes share a stream by
leases, while one joins, one is killed, and a shard is split. Everything is counted on its way in,
and again at its end.
"""

import shutil
import threading
import time
from collections.abc import Sequence
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

import msgspec

from raftwood.base.configuration import load_configuration
from raftwood.disk.real_environment import real_environment
from raftwood.dlog.log.dlogs import Dlogs
from raftwood.dlog.owner_records import taken_over
from raftwood.loghub.client import LogHubClient
from raftwood.loghub.model import LogKind
from raftwood.server.cluster_client import connected_metastore
from raftwood.server.dlogs import opened_ledgers
from raftwood.server.event_loop import run
from raftwood.server.parts import KvPart, LogServicePart
from raftwood.server.settings import Settings
from raftwood_demos.consumers import ConsumersOutcome, ConsumersPlan, checks_of
from raftwood_demos.consumers import play as play_consumers
from raftwood_demos.pipeline_check import FigureCheck, Figures, MinuteRow, checks, read_minutes
from raftwood_demos.receivers import ReceiverTarget
from raftwood_demos.shipping import Shipped, Shipping, ShippingPlan, shipping_checks
from raftwood_demos.standalone_process import StandaloneProcess
from raftwood_demos.story import StoryListener
from raftwood_demos.web_logs import WebFiles, stored_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from raftwood.pipeline.jobs.job import Job, JobProgress

_PREFIX: Final = "minute:"


class _Kept(msgspec.Struct):
    window_start: str
    requests: int
    errors: int
    bytes: int
    p95_ms: float | None = None


def read_kept_minutes(part: KvPart) -> list[MinuteRow]:
    """In order; needs the extra `redis`."""
    from redis.cluster import ClusterNode, RedisCluster  # noqa: PLC0415 (an extra)

    client = RedisCluster(
        startup_nodes=[ClusterNode(part.host, part.port)],
        username=part.user,
        password=part.password,
    )
    try:
        keys = sorted(client.scan_iter(match=f"{_PREFIX}*", count=1000))
        values = client.mget_nonatomic(keys)
    finally:
        client.close()
    rows = [msgspec.json.decode(value, type=_Kept) for value in values if value is not None]
    return [
        MinuteRow(each.window_start, each.requests, each.errors, each.bytes, each.p95_ms or 0.0)
        for each in rows
    ]


class LogTakeover(msgspec.Struct, frozen=True):
    """What came of it."""

    ledgers: int
    """Of all the logs, before."""
    interruption_ms: float
    """The longest time that nobody could write one of them."""


def take_over(part: LogServicePart, logs: Sequence[str]) -> LogTakeover:
    """One log after the other; their writers ack nothing from here on."""
    settings = load_configuration(
        Settings, file=part.config, assignments=("dlog.store=bookies",)
    ).settings
    ledgers = 0
    interruption_ms = 0.0

    async def main() -> None:
        nonlocal ledgers, interruption_ms
        async with (
            connected_metastore(environment, settings, part.address) as store,
            opened_ledgers(environment, settings, store) as found,
        ):
            dlogs = Dlogs(environment, store, found, settings.dlog_client)
            for log in logs:
                ledgers += len((await dlogs.info(log)).meta.ledgers)
                async with taken_over(dlogs, log) as writer:
                    interruption_ms = max(interruption_ms, writer.take_over.interruption_ms)

    with real_environment() as environment:
        run(main())
    return LogTakeover(ledgers, interruption_ms)


PROJECT: Final = "web"
STREAMS: Final = {"access": 2, "parsed": 2, "errors": 1, "minutes": 1}
"""Each with so many shards."""
KEPT_IN_DLOG: Final = ("access",)
"""In ledgers on bookies; the others in the log service."""
FILE: Final = "web_pipeline.toml"
_TARGET: Final = ReceiverTarget(PROJECT, "access")


class PipelinePlan(msgspec.Struct, frozen=True, kw_only=True):
    """How large the story is."""

    lines: int = 200_000
    """Before the archive."""
    later: int = 20_000
    """After it: they stay in the log."""
    lines_per_minute: int = 12_000
    seed: int = 7
    web_servers: int = 3
    shipping_s: float = 5.0
    """Before the archive, at the least: a receiver is killed meanwhile."""
    consumers: ConsumersPlan = ConsumersPlan()

    def shipping(self) -> ShippingPlan:
        return ShippingPlan(
            servers=self.web_servers,
            lines=self.lines + self.later,
            lines_per_minute=self.lines_per_minute,
            seed=self.seed,
            seconds=self.shipping_s,
        )


class JobRun(msgspec.Struct, frozen=True):
    """A job's outcome."""

    job: str
    rows: int
    seconds: float


class PipelineOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it."""

    seconds: float
    shipped_per_s: float
    shipped: Shipped
    taken_over: LogTakeover
    runs: list[JobRun]
    figures: Figures
    minutes: list[MinuteRow]
    consumers: ConsumersOutcome
    checks: list[FigureCheck]

    @property
    def held(self) -> bool:
        return all(each.held for each in self.checks)


def run_pipeline(folder: str, plan: PipelinePlan, listener: StoryListener) -> PipelineOutcome:
    """Needs the extras `spark` and `redis`."""
    began = time.perf_counter()
    listener.on_progress("starting Raftwood", 0, 0)
    with (
        StandaloneProcess(folder, _TARGET.flags()) as standalone,
        standalone.client() as client,
    ):
        listener.on_step(f"Raftwood runs, natively at {standalone.loghub.native}")
        demo = _Demo(folder, plan, listener, standalone, client)
        demo.make_streams()
        with Shipping(folder, standalone.parts, plan.shipping(), _TARGET, listener) as shipping:
            shipped_per_s, killed = shipping.ship_and_kill(plan.lines)
            taken_over = demo.take_over()
            with demo.spark() as spark:
                demo.run_jobs(spark, ("parse", "errors", "minutes", "keys", "archive"))
                shipping.ship(plan.later)
                demo.run_jobs(spark, ("parse", "errors", "minutes", "keys"))
            shipped = shipping.shipped(killed)
            truth, made = shipping.known()
        figures, minutes = demo.read_back()
        stored = demo.read_files()
        kept = demo.read_keys()
        consumed = play_consumers(
            folder,
            plan.consumers,
            listener,
            standalone.loghub,
            client,
            stream=f"{PROJECT}/clicks",
        )
    return PipelineOutcome(
        seconds=time.perf_counter() - began,
        shipped_per_s=shipped_per_s,
        shipped=shipped,
        taken_over=taken_over,
        runs=demo.runs,
        figures=figures,
        minutes=minutes,
        consumers=consumed,
        checks=[
            *shipping_checks(shipped, lines=truth.total.requests, made=made, found=stored),
            *checks(truth, figures, minutes, kept, archived_lines=plan.lines),
            *checks_of(consumed.verdict),
        ],
    )


class _Demo:
    def __init__(
        self,
        folder: str,
        plan: PipelinePlan,
        listener: StoryListener,
        standalone: StandaloneProcess,
        client: LogHubClient,
    ) -> None:
        self._folder = folder
        self._plan = plan
        self._listener = listener
        self._loghub = standalone.loghub
        self._logservice = standalone.parts.logservice
        kv = standalone.parts.kv
        assert kv is not None, "Zeppelin runs in standalone"
        self._kv = kv
        self._client = client
        self._firsts: dict[int, int] = {}
        """Where each shard of what is parsed began."""
        self.runs: list[JobRun] = []

    def make_streams(self) -> None:
        self._client.create_project(PROJECT)
        for name, shards in STREAMS.items():
            kind = LogKind.DLOG if name in KEPT_IN_DLOG else LogKind.LOGSERVICE
            self._client.create_logstore(PROJECT, name, shard_count=shards, log=kind)
        self._firsts = self._first_positions()
        names = ", ".join(f"{PROJECT}/{each}" for each in STREAMS)
        kept = ", ".join(f"{PROJECT}/{each}" for each in KEPT_IN_DLOG)
        self._listener.on_step(f"streams: {names}; of these {kept} is kept in ledgers (DLOG)")

    def _first_positions(self) -> dict[int, int]:
        details = self._client.describe(PROJECT, "parsed")
        return {each.shard.id: int(each.first) for each in details}

    def take_over(self) -> LogTakeover:
        """Whoever writes the first stream is fenced; what is shipped later goes on all the same."""
        shards = self._client.shards(PROJECT, "access")
        taken = take_over(self._logservice, [each.log for each in shards])
        self._listener.on_step(
            f"{PROJECT}/access, {taken.ledgers} ledgers so far, was taken over by another writer: "
            f"{taken.interruption_ms:.0f} ms nobody could write"
        )
        return taken

    def spark(self) -> Any:
        from raftwood.pipeline.jobs.runner import running_spark  # noqa: PLC0415

        self._listener.on_progress("starting Spark", 0, 0)
        settings = {"spark.sql.shuffle.partitions": "2"}
        return running_spark("raftwood demo", folder=self._folder, settings=settings)

    def _jobs(self) -> "list[Job[Any]]":
        from raftwood.pipeline.jobs.pipeline_file import read_pipeline  # noqa: PLC0415

        path = f"{self._folder}/{FILE}"
        shutil.copyfile(str(files(__package__).joinpath(FILE)), path)
        part = self._loghub
        environment = {
            "RAFTWOOD_LOGHUB_CLIENT__GATEWAYS": part.native,
            "RAFTWOOD_LOGHUB_CLIENT__ACCESS_KEY": part.access_key,
            "RAFTWOOD_LOGHUB_CLIENT__ACCESS_SECRET": part.access_secret,
            "RAFTWOOD_ZEPPELIN_CLIENT__ADDRESSES": f"{self._kv.host}:{self._kv.port}",
            "RAFTWOOD_ZEPPELIN_CLIENT__USER": self._kv.user,
            "RAFTWOOD_ZEPPELIN_CLIENT__PASSWORD": self._kv.password,
        }
        return read_pipeline(path, environment).jobs

    def run_jobs(self, spark: "SparkSession", names: tuple[str, ...]) -> None:
        from raftwood.pipeline.jobs.job import JobContext  # noqa: PLC0415

        for job in self._jobs():
            if job.name not in names:
                continue

            def tell(progress: "JobProgress") -> None:
                self._listener.on_progress(f"job {progress.job}", progress.rows, 0)

            began = time.perf_counter()
            done = job.run(JobContext(spark, tell, threading.Event()))
            elapsed_s = time.perf_counter() - began
            self.runs.append(JobRun(job.name, done.rows, elapsed_s))
            self._listener.on_step(f"job {job.name}: {done.rows:,} rows in {elapsed_s:.1f} s")

    def read_keys(self) -> list[MinuteRow]:
        """The figures by the minute, through a client of Redis as anybody has one."""
        kept = read_kept_minutes(self._kv)
        self._listener.on_step(f"{len(kept)} keys read back from Zeppelin through redis-py")
        return kept

    def read_files(self) -> WebFiles:
        """The files of the web servers, as the first stream has them by its topics."""
        from raftwood.pipeline.read import read  # noqa: PLC0415 (an extra)

        found = stored_files(read, PROJECT, "access", self._access())
        self._listener.on_step(f"{len(found)} files read back from {PROJECT}/access, line by line")
        return found

    def _access(self) -> dict[str, Any]:
        part = self._loghub
        return {
            "gateways": part.native,
            "access_key": part.access_key,
            "access_secret": part.access_secret,
        }

    def read_back(self) -> tuple[Figures, list[MinuteRow]]:
        from raftwood.pipeline.read import read  # noqa: PLC0415 (an extra)

        self._listener.on_progress("reading back", 0, 0)
        access = self._access()
        archive = f"{self._folder}/archive"
        statuses = ["status int", "size bigint"]
        whole = read(PROJECT, "parsed", archive=archive, columns=statuses, **access)
        tail = read(PROJECT, "parsed", columns=statuses, **access)
        errors = read(PROJECT, "errors", columns=["status int"], **access)
        lines = read(PROJECT, "access", columns=["index"], **access)
        freed = [first > self._firsts[shard] for shard, first in self._first_positions().items()]
        figures = Figures(
            lines_stored=lines.num_rows,
            parsed=whole.num_rows,
            parsed_errors=sum(status >= 500 for status in whole["status"].to_pylist()),
            parsed_bytes=sum(whole["size"].to_pylist()),
            archived=whole.num_rows - tail.num_rows,
            tail=tail.num_rows,
            errors=errors.num_rows,
            shards_truncated=sum(freed),
            shards=len(freed),
        )
        minutes = read_minutes(read, PROJECT, access)
        self._listener.on_step("everything read back")
        return figures, minutes
