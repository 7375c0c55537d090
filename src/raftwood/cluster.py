"""The front door for programs without an event loop: a cluster, and its systems by name.

    with raftwood.connect() as cluster:
        orders = cluster.stream("shop/orders")
        with orders.producer() as producer:
            producer.send({"user": "anna"}, key="anna")
        for record in orders.read(start="-15m"): ...
        with cluster.kv() as kv: ...

A thin facade: `raftwood.aio` runs on an event loop in a thread of the cluster's own, and any number
of threads may call it. The calls mean what they do there.
"""

import inspect
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, Literal, Self, TypeAlias

from raftwood import aio
from raftwood.aio import AsyncCluster, AsyncDlog, AsyncStream, AsyncStreamConsumer, ReadStart
from raftwood.base.errors import InvalidInput
from raftwood.base.files import Buffer
from raftwood.base.position import Position
from raftwood.clogs.client.sync_shipper import Shipper
from raftwood.disk.loop_thread import LoopThread
from raftwood.dlog.log.dlogs import DlogInfo
from raftwood.dlog.log.entries import DlogMessage
from raftwood.dlog.log.log_reader import StoredMessage
from raftwood.dlog.log.log_writer import LogWriter
from raftwood.dlog.log.meta import LogConfig
from raftwood.loghub.client.producer import ProducerSettings
from raftwood.loghub.client.reader import ReaderSettings
from raftwood.loghub.client.sync_client import LogHubClient, Reader
from raftwood.loghub.client.sync_producer import Producer
from raftwood.loghub.consumer.checkpoints import CheckpointTracker
from raftwood.loghub.consumer.leases import LeaseStore
from raftwood.loghub.consumer.loghub_source import LogHubBatch, LogHubSourceSettings
from raftwood.loghub.consumer.processor import BatchFunction, Processor, ProcessorFactory
from raftwood.loghub.model import LogKind
from raftwood.loghub.wire import LogstoreOptions
from raftwood.logservice.client.sync_client import LogClient
from raftwood.server import clients
from raftwood.server.settings import Settings
from raftwood.zeppelin.client.kv import Kv
from raftwood.zeppelin.client.nodes import ReadFrom

__all__ = [
    "Cluster",
    "Dlog",
    "DlogWriter",
    "Stream",
    "StreamConsumer",
    "connect",
]


def connect(
    target: str | os.PathLike[str] | None = None,
    *,
    access_key: str | None = None,
    access_secret: str | None = None,
    context: str | None = None,
    settings: Mapping[str, Any] | None = None,
) -> "Cluster":
    """A cluster: the one that commands use, that of a TOML file, or that of some gateways.

    `target` is the path of a file, or HOST:PORT[,HOST:PORT] with `access_key` and `access_secret`.
    `context` names another context than the one in use. `settings` has further ones as a file
    would, by `section.key`.
    """
    return Cluster(
        aio.load_settings(
            target,
            access_key=access_key,
            access_secret=access_secret,
            context=context,
            settings=settings,
        )
    )


class Cluster:
    """Made by `connect`; `close` it when done, or use `with`. Any thread may use it."""

    def __init__(self, settings: Settings) -> None:
        self._thread = LoopThread("raftwood-cluster")
        self._cluster = AsyncCluster(settings, self._thread.environment)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all that was opened here: producers put what they hold first."""
        self._thread.stop(self._cluster.close)

    @property
    def settings(self) -> Settings:
        return self._cluster.settings

    def stream(self, name: str) -> "Stream":
        """A logstore of LogHub, PROJECT/LOGSTORE."""
        return Stream(self._thread, self._cluster.stream(name))

    def log(self, name: str | int, *, is_read_only: bool = False) -> LogClient:
        """A log of the log service, by its name or its shard's number."""
        opening = self._cluster.log(name, is_read_only=is_read_only)
        return LogClient(self._thread.shared(), self._thread.call(opening.open()))

    def dlog(self, name: str) -> "Dlog":
        """A log made of ledgers."""
        return Dlog(self._thread, self._cluster.dlog(name))

    def kv(
        self,
        user: str | None = None,
        *,
        password: str | None = None,
        read_from: ReadFrom = "masters",
    ) -> Kv:
        """A table of Zeppelin, by the user that logs in; see `AsyncCluster.kv`."""
        opening = self._cluster.kv(user, password=password, read_from=read_from)
        return Kv(self._thread.shared(), self._thread.call(opening.open()))

    def shipper(self, **changes: Any) -> Shipper:
        """Ships lines by file name, in a thread of its own; the caller closes it.

        `changes` are settings of `clogs_client`.
        """
        return Shipper(clients.shipper_settings(self.settings, **changes))

    def loghub(self) -> LogHubClient:
        """All of LogHub's API: projects, shards, groups."""
        opening = self._cluster.loghub()
        return LogHubClient(self._thread.shared(), self._thread.call(opening.open()))


class Stream:
    """A logstore; made by `Cluster.stream`. It connects when it is first used."""

    def __init__(self, thread: LoopThread, stream: AsyncStream) -> None:
        self._thread = thread
        self._stream = stream

    @property
    def project(self) -> str:
        return self._stream.project

    @property
    def logstore(self) -> str:
        return self._stream.logstore

    def create(
        self,
        *,
        shards: int = 2,
        log: LogKind | Literal["logservice", "dlog"] = "logservice",
        options: LogstoreOptions | None = None,
        if_absent: bool = False,
    ) -> None:
        """Make the logstore, and its project where that is not there."""
        self._thread.call(
            self._stream.create(shards=shards, log=log, options=options, if_absent=if_absent)
        )

    def delete(self) -> None:
        """Delete the logstore with all its records; its project stays."""
        self._thread.call(self._stream.delete())

    def producer(self, settings: ProducerSettings | None = None) -> Producer:
        """Puts records, each once, those of a key in their order."""
        return Producer(self._thread, self._thread.call(self._stream.producer(settings).open()))

    def read(
        self,
        start: ReadStart = "begin",
        *,
        follow: bool = False,
        shard: int | None = None,
        group: str | None = None,
        settings: ReaderSettings | None = None,
    ) -> Reader:
        """Records from a place on, up to the end as it is now, or for ever; an iterator.

        The reader also has batches, tables of Arrow, and with a `group` checkpoints.
        """
        opening = self._stream.read(
            start, follow=follow, shard=shard, group=group, settings=settings
        )
        return Reader(self._thread, self._thread.call(opening.open()))

    def table(self, **options: Any) -> Any:
        """History and tail as one table; the options are those of `raftwood.read`."""
        from raftwood.pipeline.read import read  # noqa: PLC0415 (needs an extra)

        access = clients.hub_access(self._stream.settings)
        return read(
            self.project,
            self.logstore,
            gateways=",".join(access.addresses),
            access_key=access.access_key,
            access_secret=self._stream.settings.loghub_client.access_secret.reveal(),
            **options,
        )

    def consumer(
        self,
        group: str,
        *,
        name: str | None = None,
        start: Literal["begin", "end"] = "begin",
        leases: LeaseStore | str | None = None,
        timeout_s: float = 10.0,
        balance: Literal["count", "bytes"] = "count",
        skips_freed: bool = False,
    ) -> "Callable[[_Function | type[Processor]], StreamConsumer]":
        """Decorates `process(batch, checkpoint)`, or a class of processors.

        It is called in threads, for one batch of a shard at a time. See `AsyncStream.consumer`.
        """
        config = clients.worker_config(
            name, start=start, timeout_ms=int(timeout_s * 1000), balance=balance
        )

        def decorated(process: _Function | type[Processor]) -> StreamConsumer:
            if inspect.iscoroutinefunction(process):
                raise InvalidInput(f"{process!r} needs an event loop: use `raftwood.aio`")
            consumer = AsyncStreamConsumer(
                self._stream,
                group,
                process,
                _factory_of(process),
                config=config,
                leases=leases,
                source=LogHubSourceSettings(skips_freed=skips_freed),
            )
            return StreamConsumer(self._thread, consumer)

        return decorated


_Function: TypeAlias = Callable[[LogHubBatch, CheckpointTracker], object]


def _factory_of(process: _Function | type[Processor]) -> ProcessorFactory:
    if isinstance(process, type):
        return process
    return lambda: BatchFunction(process)


class StreamConsumer:
    """A worker of a group; made by `Stream.consumer`.

    A batch is dealt with when the function returns. Where it raises, the batch is given again a
    little later. It can be called as it was before it was decorated.
    """

    def __init__(self, thread: LoopThread, consumer: AsyncStreamConsumer) -> None:
        self._thread = thread
        self._consumer = consumer

    def __call__(self, *arguments: Any) -> Any:
        return self._consumer(*arguments)

    def run(self, *, handles_signals: bool = True) -> None:
        """Take part until `stop`, `raftwood group drain`, SIGINT or SIGTERM; then hand over.

        A second signal ends the program as it always does. Signals reach the main thread alone.
        """
        with _handled_signals(self.stop, is_wanted=handles_signals):
            self._thread.call(self._consumer.run(handles_signals=False))

    def stop(self) -> None:
        """Hand all shards over and leave: `run` returns when that is done. Any thread may call."""
        self._thread.soon(self._consumer.stop)


@contextmanager
def _handled_signals(stop: Callable[[], None], *, is_wanted: bool) -> Iterator[None]:
    if not is_wanted or threading.current_thread() is not threading.main_thread():
        yield
        return
    before: dict[int, Any] = {}

    def restore() -> None:
        while before:
            signal.signal(*before.popitem())

    def stopping(_: int, __: FrameType | None) -> None:
        restore()
        stop()

    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, stopping)
        yield
    finally:
        restore()


class Dlog:
    """A log made of ledgers; made by `Cluster.dlog`. It connects when it is first used."""

    def __init__(self, thread: LoopThread, dlog: AsyncDlog) -> None:
        self._thread = thread
        self._dlog = dlog

    @property
    def name(self) -> str:
        return self._dlog.name

    def create(self, config: LogConfig | None = None, *, if_absent: bool = False) -> None:
        """Make the log, replicated and rotated as `config` or the settings say."""
        self._thread.call(self._dlog.create(config, if_absent=if_absent))

    def info(self) -> DlogInfo:
        """Its record, the first position and the next one."""
        return self._thread.call(self._dlog.info())

    @contextmanager
    def writer(self) -> "Iterator[DlogWriter]":
        """Take the log over: the writer before this one is fenced, and can append no more."""
        opened = self._dlog.writer()
        writer = self._thread.call(opened.__aenter__())
        try:
            yield DlogWriter(self._thread, writer)
        finally:
            self._thread.call(opened.__aexit__(None, None, None))

    def read(
        self, start: Position | None = None, *, follow: bool = False
    ) -> Iterator[StoredMessage]:
        """Messages from a position on, up to the end as it is now, or as they come."""
        return self._thread.each_of(self._dlog.read(start, follow=follow))

    def shrink(self, before: Position) -> Position:
        """Free what is below a position; the first that can be read then."""
        return self._thread.call(self._dlog.shrink(before))

    def terminate(self) -> Position:
        """End the log for ever; where it ends."""
        return self._thread.call(self._dlog.terminate())

    def remove(self) -> None:
        """Delete the log and all its messages; its writer is fenced."""
        self._thread.call(self._dlog.remove())


class DlogWriter:
    """The one writer of a log; made by `Dlog.writer`. The calls are those of `LogWriter`."""

    def __init__(self, thread: LoopThread, writer: LogWriter) -> None:
        self._thread = thread
        self._writer = writer

    @property
    def next_position(self) -> Position:
        """Behind all that was acked here, and below all that is to come."""
        return self._writer.next_position

    def append(
        self, message: Buffer | DlogMessage, *, producer: str = "", sequence: int = 0
    ) -> Position:
        """Durable when it returns; the same (producer, sequence) again is stored once."""
        return self._thread.call(self._writer.append(message, producer=producer, sequence=sequence))

    def append_all(
        self, messages: Sequence[Buffer | DlogMessage], *, producer: str = "", sequence: int = 0
    ) -> list[Position]:
        """Several at once, with consecutive sequences from the one given."""
        return self._thread.call(
            self._writer.append_all(messages, producer=producer, sequence=sequence)
        )

    def rotate(self) -> None:
        """Go on in a new ledger."""
        self._thread.call(self._writer.rotate())
