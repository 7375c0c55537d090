"""The front door for asyncio programs: a cluster, and its systems by name.

    async with raftwood.aio.connect() as cluster:
        orders = cluster.stream("shop/orders")
        async with orders.producer() as producer:
            await producer.send({"user": "anna"}, key="anna")
        async for record in orders.read(start="-15m"): ...
        async with cluster.kv() as kv: ...

Connections are made when a system is first used, and end with the cluster. What has to connect
first is an `Opening`: `await` it, or use it in `async with`, which closes it as well.
`raftwood.connect` is the same for programs without an event loop.
"""

import asyncio
import inspect
import os
import re
import signal
import threading
import time
import weakref
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Mapping,
    Sequence,
)
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from datetime import datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, Protocol, Self, TypeAlias, TypeVar

from raftwood.base.configuration import FILE_VARIABLE, compose, load_configuration
from raftwood.base.contexts import CONTEXT_VARIABLE
from raftwood.base.environment import Environment
from raftwood.base.errors import AlreadyExists, InvalidConfiguration, InvalidInput, Unavailable
from raftwood.base.lazy import lazy_exports
from raftwood.base.position import Position
from raftwood.clogs.client.shipper import AsyncShipper, open_shipper
from raftwood.disk.real_environment import real_environment
from raftwood.dlog.log.dlogs import DlogInfo, Dlogs
from raftwood.dlog.log.log_reader import StoredMessage
from raftwood.dlog.log.log_writer import LogWriter
from raftwood.dlog.log.meta import LogConfig
from raftwood.dlog.owner_records import taken_over
from raftwood.loghub.client.hub_client import AsyncLogHubClient
from raftwood.loghub.client.producer import AsyncProducer, ProducerSettings
from raftwood.loghub.client.pulled_batches import LogRecord
from raftwood.loghub.client.reader import AsyncReader, ReaderSettings, Start, start_at
from raftwood.loghub.consumer.checkpoints import AsyncCheckpointTracker
from raftwood.loghub.consumer.leases import LeaseStore, LeaseTimes, signature
from raftwood.loghub.consumer.loghub_source import LogHubBatch, LogHubSource, LogHubSourceSettings
from raftwood.loghub.consumer.processor import (
    AsyncBatchFunction,
    AsyncProcessor,
    Processor,
    ProcessorFactory,
)
from raftwood.loghub.consumer.worker import Worker, WorkerConfig
from raftwood.loghub.model import LogKind, check_stream_names
from raftwood.loghub.wire import LogstoreOptions
from raftwood.logservice.client.log_client import AsyncLogClient
from raftwood.net.stores import Stores
from raftwood.server import clients
from raftwood.server.cluster import client_network, reader_network
from raftwood.server.dlogs import dlogs_of
from raftwood.server.settings import Settings
from raftwood.zeppelin.client.async_kv import AsyncKv
from raftwood.zeppelin.client.nodes import ReadFrom

if TYPE_CHECKING:
    from raftwood.loghub.consumer.iterator import Consumer
    from raftwood.loghub.consumer.kafka_source import KafkaSource
    from raftwood.loghub.consumer.memory_store import MemoryLeaseStore
    from raftwood.loghub.consumer.meta_store import MetaLeaseStore
    from raftwood.loghub.consumer.sql_store import SqlLeaseStore
    from raftwood.logservice.client.keeper_client import KeeperClient, ServiceAgent
    from raftwood.logservice.hakeeper.messages import Order, OrderKind, ServiceKind

__all__ = [
    "AsyncCheckpointTracker",
    "AsyncCluster",
    "AsyncDlog",
    "AsyncKv",
    "AsyncLogClient",
    "AsyncLogHubClient",
    "AsyncProcessor",
    "AsyncProducer",
    "AsyncReader",
    "AsyncShipper",
    "AsyncStream",
    "AsyncStreamConsumer",
    "Consumer",
    "KafkaSource",
    "KeeperClient",
    "LeaseTimes",
    "LogHubSource",
    "MemoryLeaseStore",
    "MetaLeaseStore",
    "Opening",
    "Order",
    "OrderKind",
    "ReadStart",
    "ReaderOpening",
    "ServiceAgent",
    "ServiceKind",
    "SqlLeaseStore",
    "Worker",
    "WorkerConfig",
    "connect",
    "load_settings",
    "signature",
]

__getattr__ = lazy_exports(
    __name__,
    {
        "raftwood.loghub.consumer.iterator": ("Consumer",),
        "raftwood.loghub.consumer.kafka_source": ("KafkaSource",),
        "raftwood.loghub.consumer.memory_store": ("MemoryLeaseStore",),
        "raftwood.loghub.consumer.meta_store": ("MetaLeaseStore",),
        "raftwood.loghub.consumer.sql_store": ("SqlLeaseStore",),
        "raftwood.logservice.client.keeper_client": ("KeeperClient", "ServiceAgent"),
        "raftwood.logservice.hakeeper.messages": ("Order", "OrderKind", "ServiceKind"),
    },
)

ReadStart: TypeAlias = Start | str | datetime | timedelta
"""Where a read begins: "begin", "end", a time, how long ago ("-15m"), or positions by shard."""
_ADDRESSES: Final = re.compile(r"[^=\s,/]+:[0-9]{1,5}(,\s*[^=\s,/]+:[0-9]{1,5})*")
_READ_BYTES: Final = 1 << 20


class _Client(Protocol):
    async def close(self) -> None: ...

    async def __aenter__(self) -> Any: ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> object: ...


_Opened = TypeVar("_Opened", bound=_Client)
_Resource = TypeVar("_Resource")


class Opening(Generic[_Opened]):
    """A client to be: `await` it, or use it in `async with`, which closes it as well."""

    def __init__(self, opening: Callable[[], Coroutine[Any, Any, _Opened]]) -> None:
        self.open = opening
        self._opened: _Opened | None = None

    def __await__(self) -> Generator[Any, None, _Opened]:
        return self.open().__await__()

    async def __aenter__(self) -> _Opened:
        self._opened = await self.open()
        return self._opened

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._opened is not None
        await self._opened.__aexit__(kind, error, trace)


class ReaderOpening(Opening[AsyncReader]):
    """A reader to be, which is also an iterator of its records."""

    async def __aiter__(self) -> AsyncGenerator[LogRecord, None]:
        async with self as reader:
            async for record in reader:
                yield record


def load_settings(
    target: str | os.PathLike[str] | None = None,
    *,
    access_key: str | None = None,
    access_secret: str | None = None,
    context: str | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Settings:
    """The settings that `connect` uses.

    Addresses of gateways stand alone: nothing else is read, so that a program is never connected
    to two clusters. Else it is what commands use, the environment before the file or the context.
    """
    if target is not None and context is not None:
        raise InvalidInput("give a file, addresses or a context, not two of them")
    arguments = dict(settings or {})
    if access_key is not None:
        arguments["loghub_client.access_key"] = access_key
    if access_secret is not None:
        arguments["loghub_client.access_secret"] = access_secret
    if isinstance(target, str) and _ADDRESSES.fullmatch(target.strip()):
        arguments["loghub_client.gateways"] = [each.strip() for each in target.split(",")]
        return compose(Settings, arguments=arguments).settings
    environment = dict(os.environ)
    if context is not None:
        environment[CONTEXT_VARIABLE] = context
        environment.pop(FILE_VARIABLE, None)
    return load_configuration(
        Settings,
        file=None if target is None else os.fspath(target),
        environment=environment,
        arguments=arguments,
        reads_context=True,
    ).settings


def connect(
    target: str | os.PathLike[str] | None = None,
    *,
    access_key: str | None = None,
    access_secret: str | None = None,
    context: str | None = None,
    settings: Mapping[str, Any] | None = None,
    environment: Environment | None = None,
) -> "Opening[AsyncCluster]":
    """A cluster: the one that commands use, that of a TOML file, or that of some gateways.

    `target` is the path of a file, or HOST:PORT[,HOST:PORT] with `access_key` and `access_secret`.
    `context` names another context than the one in use. `settings` has further ones as a file
    would, by `section.key`.
    """
    loaded = load_settings(
        target,
        access_key=access_key,
        access_secret=access_secret,
        context=context,
        settings=settings,
    )

    async def opening() -> AsyncCluster:
        return AsyncCluster(loaded, environment)

    return Opening(opening)


class _Shared(Generic[_Resource]):
    """A connection that the first caller makes, and that all others use."""

    def __init__(
        self,
        cluster: "AsyncCluster",
        opening: Callable[[], AbstractAsyncContextManager[_Resource]],
    ) -> None:
        self._cluster = cluster
        self._opening = opening
        self._lock = asyncio.Lock()
        self._found: _Resource | None = None

    async def get(self) -> _Resource:
        async with self._lock:
            self._cluster.check_open()
            if self._found is None:
                self._found = await self._cluster._stack.enter_async_context(self._opening())
            return self._found


class AsyncCluster:
    """Made by `connect`; `close` it when done, or use `async with`."""

    def __init__(self, settings: Settings, environment: Environment | None = None) -> None:
        self.settings = settings
        self._environment = environment
        self._stack = AsyncExitStack()
        self._opened: weakref.WeakSet[_Client] = weakref.WeakSet()
        self._is_closed = False
        self._hub = _Shared(self, self._connected_hub)
        self._writing = _Shared(self, lambda: self._connected_stores(read_only=False))
        self._reading = _Shared(self, lambda: self._connected_stores(read_only=True))
        self._dlogs = _Shared(self, self._connected_dlogs)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all that was opened here: producers put what they hold first."""
        if self._is_closed:
            return
        self._is_closed = True
        for client in self._opened:
            self._stack.push_async_callback(client.close)
        await self._stack.aclose()

    def check_open(self) -> None:
        if self._is_closed:
            raise Unavailable("the cluster is closed: connect again")

    # The systems

    def stream(self, name: str) -> "AsyncStream":
        """A logstore of LogHub, PROJECT/LOGSTORE."""
        return AsyncStream(self, name)

    def log(self, name: str | int, *, is_read_only: bool = False) -> Opening[AsyncLogClient]:
        """A log of the log service, by its name or its shard's number."""

        async def opening() -> AsyncLogClient:
            stores = await (self._reading if is_read_only else self._writing).get()
            return self._kept(
                await AsyncLogClient.attach(
                    self.environment, stores, shard=name, is_read_only=is_read_only
                )
            )

        return Opening(opening)

    async def keeper(self) -> "KeeperClient":
        """HAKeeper, for services that register with it and for operators."""
        from raftwood.logservice.client.keeper_client import KeeperClient  # noqa: PLC0415

        return KeeperClient(await self._writing.get())

    def dlog(self, name: str) -> "AsyncDlog":
        """A log made of ledgers."""
        return AsyncDlog(self, name)

    def kv(
        self,
        user: str | None = None,
        *,
        password: str | None = None,
        read_from: ReadFrom = "masters",
    ) -> Opening[AsyncKv]:
        """A table of Zeppelin, by the user that logs in; else by that of the settings.

        The first user of a table has its name.
        """
        known = self.settings.zeppelin_client.user
        if user is not None and user != known and password is None:
            raise InvalidConfiguration(
                f"the password of {user!r} is not known: zeppelin_client.user is {known!r}. Give "
                f"kv({user!r}, password=…), or set zeppelin_client.user and "
                "zeppelin_client.password"
            )

        async def opening() -> AsyncKv:
            return self._kept(
                await clients.kv_client(
                    self.environment,
                    self.settings,
                    user=user,
                    password=password,
                    read_from=read_from,
                )
            )

        return Opening(opening)

    def shipper(self, **changes: Any) -> Opening[AsyncShipper]:
        """Ships lines by file name; `changes` are settings of `clogs_client`."""
        settings = clients.shipper_settings(self.settings, **changes)

        async def opening() -> AsyncShipper:
            return self._kept(await open_shipper(self.environment, settings))

        return Opening(opening)

    def loghub(self) -> Opening[AsyncLogHubClient]:
        """All of LogHub's API: projects, shards, groups."""

        async def opening() -> AsyncLogHubClient:
            access = clients.hub_access(self.settings)
            return self._kept(await clients.loghub_client(self.environment, access))

        return Opening(opening)

    # Connections

    @property
    def environment(self) -> Environment:
        """Clocks, randomness and files; made here if the caller gave none."""
        self.check_open()
        if self._environment is None:
            self._environment = self._stack.enter_context(real_environment())
        return self._environment

    def _kept(self, client: _Opened) -> _Opened:
        self._opened.add(client)
        return client

    @asynccontextmanager
    async def _connected_hub(self) -> AsyncIterator[AsyncLogHubClient]:
        access = clients.hub_access(self.settings)
        async with await clients.loghub_client(self.environment, access) as client:
            yield client

    def _connected_stores(self, *, read_only: bool) -> AbstractAsyncContextManager[Stores]:
        network = (reader_network if read_only else client_network)(self.settings)
        return clients.connected_log_stores(self.environment, self.settings, None, network)

    @asynccontextmanager
    async def _connected_dlogs(self) -> AsyncIterator[Dlogs]:
        async with clients.connected_ledgers(self.environment, self.settings, None) as found:
            yield dlogs_of(self.environment, self.settings, *found)


class AsyncStream:
    """A logstore; made by `AsyncCluster.stream`. It connects when it is first used."""

    def __init__(self, cluster: AsyncCluster, name: str) -> None:
        project, slash, logstore = name.partition("/")
        if not (project and slash and logstore):
            raise InvalidInput(f"{name[:140]!r} names no logstore: write PROJECT/LOGSTORE")
        check_stream_names(project, logstore)
        self.project = project
        self.logstore = logstore
        self._cluster = cluster

    @property
    def settings(self) -> Settings:
        return self._cluster.settings

    async def create(
        self,
        *,
        shards: int = 2,
        log: LogKind | Literal["logservice", "dlog"] = "logservice",
        options: LogstoreOptions | None = None,
        if_absent: bool = False,
    ) -> None:
        """Make the logstore, and its project where that is not there."""
        client = await self._cluster._hub.get()
        with suppress(AlreadyExists):
            await client.create_project(self.project)
        try:
            await client.create_logstore(
                self.project,
                self.logstore,
                shard_count=shards,
                log=LogKind(log),
                options=options,
            )
        except AlreadyExists:
            if not if_absent:
                raise

    async def delete(self) -> None:
        """Delete the logstore with all its records; its project stays."""
        client = await self._cluster._hub.get()
        await client.delete_logstore(self.project, self.logstore)

    def producer(self, settings: ProducerSettings | None = None) -> Opening[AsyncProducer]:
        """Puts records, each once, those of a key in their order."""

        async def opening() -> AsyncProducer:
            client = await self._cluster._hub.get()
            return self._cluster._kept(
                client.producer(self.project, self.logstore, settings=settings)
            )

        return Opening(opening)

    def read(
        self,
        start: ReadStart = "begin",
        *,
        follow: bool = False,
        shard: int | None = None,
        group: str | None = None,
        settings: ReaderSettings | None = None,
    ) -> ReaderOpening:
        """Records from a place on, up to the end as it is now, or for ever.

        `async for record in stream.read()`; the reader itself has batches, tables of Arrow, and
        with a `group` checkpoints.
        """
        now_s = time.time()
        first = start if isinstance(start, int | Mapping) else start_at(start, now_s=now_s)

        async def opening() -> AsyncReader:
            client = await self._cluster._hub.get()
            return self._cluster._kept(
                client.reader(
                    self.project,
                    self.logstore,
                    shard=shard,
                    start=first,
                    follow=follow,
                    group=group,
                    settings=settings,
                )
            )

        return ReaderOpening(opening)

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
    ) -> "Callable[[type[AsyncProcessor | Processor] | _AsyncFunction], AsyncStreamConsumer]":
        """Decorates `async def process(batch, checkpoint)`, or a class of processors.

        Workers of a group share the logstore's shards by leases: in the store or at the URL that
        `leases` names, else where `loghub_client.lease_store` says. `timeout_s` is the same in all
        workers of a group. A worker without a `name` gets one of its own.
        """
        config = clients.worker_config(
            name, start=start, timeout_ms=int(timeout_s * 1000), balance=balance
        )

        def decorated(
            process: _AsyncFunction | type[AsyncProcessor] | type[Processor],
        ) -> AsyncStreamConsumer:
            return AsyncStreamConsumer(
                self,
                group,
                process,
                _factory_of(process),
                config=config,
                leases=leases,
                source=LogHubSourceSettings(skips_freed=skips_freed),
            )

        return decorated


_AsyncFunction: TypeAlias = Callable[[LogHubBatch, AsyncCheckpointTracker], Awaitable[object]]


class AsyncStreamConsumer:
    """A worker of a group; made by `AsyncStream.consumer`.

    A batch is dealt with when the function returns. Where it raises, the batch is given again a
    little later. It can be called as it was before it was decorated.
    """

    def __init__(
        self,
        stream: AsyncStream,
        group: str,
        process: Callable[..., Any],
        factory: ProcessorFactory,
        *,
        config: WorkerConfig,
        leases: LeaseStore | str | None,
        source: LogHubSourceSettings,
    ) -> None:
        self.stream = stream
        self.group = group
        self.config = config
        self._process = process
        self._factory = factory
        self._leases = leases
        self._source = source
        self._worker: Worker | None = None
        self._is_stopped = False

    def __call__(self, *arguments: Any) -> Any:
        return self._process(*arguments)

    async def run(self, *, handles_signals: bool = True) -> None:
        """Take part until `stop`, `raftwood group drain`, SIGINT or SIGTERM; then hand over.

        A second signal ends the program as it always does. Signals reach the main thread alone.
        """
        stream, cluster = self.stream, self.stream._cluster
        client = await cluster._hub.get()
        source = LogHubSource(
            client, project=stream.project, logstore=stream.logstore, settings=self._source
        )
        async with self._lease_store() as store:
            worker = Worker(
                self.config, self._factory, store, source=source, environment=cluster.environment
            )
            self._worker = worker
            if self._is_stopped:
                worker.drain()
            handled = _handle_signals(self.stop) if handles_signals else []
            try:
                await worker.run()
            finally:
                self._worker, self._is_stopped = None, False
                _let_go_of(handled)

    def stop(self) -> None:
        """Hand all shards over and leave: `run` returns when that is done."""
        self._is_stopped = True
        if self._worker is not None:
            self._worker.drain()

    @asynccontextmanager
    async def _lease_store(self) -> AsyncIterator[LeaseStore]:
        if not isinstance(self._leases, str | None):
            yield self._leases
            return
        cluster = self.stream._cluster
        async with clients.opened_lease_store(
            cluster.environment,
            cluster.settings,
            self._leases,
            project=self.stream.project,
            logstore=self.stream.logstore,
            group=self.group,
        ) as store:
            yield store


def _factory_of(process: Callable[..., Any]) -> ProcessorFactory:
    if isinstance(process, type):
        if not issubclass(process, Processor | AsyncProcessor):
            raise InvalidInput(f"class {process.__name__} is no Processor: derive it from one")
        return process
    if not inspect.iscoroutinefunction(process):
        raise InvalidInput(
            f"{process!r} may block the event loop: write `async def`, derive a class from "
            "Processor, or use `raftwood.connect`"
        )
    return lambda: AsyncBatchFunction(process)


_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


def _handle_signals(stop: Callable[[], None]) -> Sequence[signal.Signals]:
    if threading.current_thread() is not threading.main_thread():
        return []
    loop = asyncio.get_running_loop()

    def stopping() -> None:
        _let_go_of(_SIGNALS)
        stop()

    for number in _SIGNALS:
        loop.add_signal_handler(number, stopping)
    return _SIGNALS


def _let_go_of(numbers: Sequence[signal.Signals]) -> None:
    for number in numbers:
        asyncio.get_running_loop().remove_signal_handler(number)


class AsyncDlog:
    """A log made of ledgers; made by `AsyncCluster.dlog`. It connects when it is first used."""

    def __init__(self, cluster: AsyncCluster, name: str) -> None:
        self.name = name
        self._cluster = cluster

    async def create(self, config: LogConfig | None = None, *, if_absent: bool = False) -> None:
        """Make the log, replicated and rotated as `config` or the settings say."""
        dlogs = await self._cluster._dlogs.get()
        try:
            await dlogs.create(self.name, config or self._cluster.settings.dlog.log_config())
        except AlreadyExists:
            if not if_absent:
                raise

    async def info(self) -> DlogInfo:
        """Its record, the first position and the next one."""
        return await (await self._cluster._dlogs.get()).info(self.name)

    @asynccontextmanager
    async def writer(self) -> AsyncIterator[LogWriter]:
        """Take the log over: the writer before this one is fenced, and can append no more."""
        dlogs = await self._cluster._dlogs.get()
        async with taken_over(dlogs, self.name) as writer:
            yield writer

    async def read(
        self, start: Position | None = None, *, follow: bool = False
    ) -> AsyncGenerator[StoredMessage, None]:
        """Messages from a position on, up to the end as it is now, or as they come."""
        dlogs = await self._cluster._dlogs.get()
        info = await dlogs.info(self.name)
        reader = await dlogs.open_reader(self.name)
        at = info.first if start is None else start
        try:
            if follow:
                async for message in reader.tail(at):
                    yield message
                return
            while at < info.next:
                messages, following = await reader.read(at, bytes_max=_READ_BYTES)
                for message in messages:
                    if message.position < info.next:
                        yield message
                if following == at:
                    return
                at = following
        finally:
            await reader.close()

    async def shrink(self, before: Position) -> Position:
        """Free what is below a position; the first that can be read then."""
        return await (await self._cluster._dlogs.get()).shrink(self.name, before)

    async def terminate(self) -> Position:
        """End the log for ever; where it ends."""
        return await (await self._cluster._dlogs.get()).terminate(self.name)

    async def remove(self) -> None:
        """Delete the log and all its messages; its writer is fenced."""
        await (await self._cluster._dlogs.get()).remove(self.name)
