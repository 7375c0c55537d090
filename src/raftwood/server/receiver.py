"""The receiver of a gateway: what shippers send goes into logstores, plain files, or both.

`StreamSink` chooses the logstore by the file's name. A place names a logstore, a shard and the
shard's log: text that shippers hand back, so it is checked like all that comes from outside. A
file's name is the key, so that its batches are in one shard, in order. That each is stored once is
the log's doing: see `loghub/server/idempotent_puts`.
"""

import re
from binascii import hexlify
from collections.abc import Awaitable, Callable
from fnmatch import translate
from typing import Final

import msgspec

from raftwood.base.environment import Environment
from raftwood.base.errors import (
    InvalidInput,
    NotFound,
    PermissionDenied,
    RaftwoodError,
    Unavailable,
)
from raftwood.base.metrics import Metrics
from raftwood.clogs.configuration_store import ConfigurationService
from raftwood.clogs.errors import PlaceMoved
from raftwood.clogs.file_sink import PLACE as FILES_PLACE
from raftwood.clogs.file_sink import FileSink
from raftwood.clogs.frames import ClogsMessage
from raftwood.clogs.receiver import DRAIN_MS, DatagramListener, Receiver, ReceiverLimits
from raftwood.clogs.receiver_settings import ClogsSettings, FileRoute, parsed_routes
from raftwood.clogs.seams import Sink
from raftwood.clogs.wire import CONFIGURATION, KEY_ROLE, ConfigurationAnswer, ConfigurationRequest
from raftwood.loghub.batches import Batch, Format, decompress
from raftwood.loghub.errors import ShardReadonly
from raftwood.loghub.log_groups import decode_log_group
from raftwood.loghub.model import AccessRole, Logstore, check_stream_names
from raftwood.loghub.server.access import EVERYWHERE, check_role
from raftwood.loghub.server.gateway import Gateway
from raftwood.loghub.shards import hash_key, is_log_name
from raftwood.net import Call, Identity, Secret, ServerTls, Service
from raftwood.server.settings import Settings

_PARTS: Final = 4
_SHARD: Final = re.compile(r"[0-9]{1,9}")
PLACES_MAX: Final = 16_384
"""Of files, that are kept in memory."""


class StreamPlace(msgspec.Struct, frozen=True):
    """A shard's log, as shippers hand it around."""

    project: str
    logstore: str
    shard: int
    log: str

    def __str__(self) -> str:
        return f"{self.project}/{self.logstore}/{self.shard}/{self.log}"


def parsed_place(text: str) -> StreamPlace:
    """`InvalidInput` for what no gateway gave."""
    parts = text.split("/")
    if len(parts) != _PARTS or not _SHARD.fullmatch(parts[2]) or not is_log_name(parts[3]):
        raise InvalidInput(f"{text[:80]!r} is no place of this receiver: ask where the file goes")
    check_stream_names(parts[0], parts[1])
    return StreamPlace(parts[0], parts[1], int(parts[2]), parts[3])


class FilePlace(msgspec.Struct, frozen=True, gc=False):
    """Where a file's batches go for as long as its logstore stays what it is."""

    logstore: Logstore
    place: StreamPlace
    text: str


class Routes:
    """Which logstore a file's lines go to."""

    def __init__(self, routes: list[FileRoute]) -> None:
        self._routes = [(re.compile(translate(each.glob)), each) for each in routes]

    def find(self, name: str) -> FileRoute | None:
        return next((route for glob, route in self._routes if glob.match(name)), None)

    def of(self, name: str) -> FileRoute:
        route = self.find(name)
        if route is None:
            raise NotFound(
                f"file {name[:80]!r} goes to no logstore: set clogs.project and clogs.logstore, or "
                "give it a route in clogs.routes"
            )
        return route


class StreamSink:
    """A `Sink` over a gateway's streams."""

    def __init__(self, gateway: Gateway, routes: Routes) -> None:
        self._gateway = gateway
        self._routes = routes
        self._places: dict[str, FilePlace] = {}
        """By the file's name, those that were looked up last."""

    async def locate(self, key: str, name: str) -> str:
        route = self._routes.of(name)
        check_writer(self._gateway, key, route.project)
        return await self._place(name)

    async def store(self, key: str, message: ClogsMessage) -> str:
        if message.place == FILES_PLACE:
            # Receivers wrote plain files before: no log has it, and shippers that still run ask.
            raise _moved(message)
        if message.place:
            return await self._store_there(key, message, self._parsed(message))
        if not message.is_resumed:
            raise InvalidInput(
                f"a batch of file {message.name[:80]!r} names no place: ask where the file goes"
            )
        return await self._store_resumed(key, message, self._routes.of(message.name))

    def _parsed(self, message: ClogsMessage) -> StreamPlace:
        known = self._places.get(message.name)
        if known is not None and known.text == message.place:
            return known.place
        return parsed_place(message.place)

    async def _store_there(self, key: str, message: ClogsMessage, place: StreamPlace) -> str:
        # There and nowhere else, whatever the routes say by now: it may be there already.
        check_writer(self._gateway, key, place.project)
        batch = _batch(message)
        self._gateway.quotas.take(place.project, len(message.body))
        try:
            await self._gateway.placed_puts.put(
                place.project,
                place.logstore,
                batch,
                shard=place.shard,
                log=place.log,
                producer=stored_producer(message.producer),
                sequence=message.sequence,
            )
        except ShardReadonly as error:
            raise _moved(message) from error
        except NotFound as error:
            route = self._routes.find(message.name)
            if route is None or (route.project, route.logstore) == (place.project, place.logstore):
                raise
            # The logstore was deleted once the file had a route to another one.
            raise _moved(message) from error
        return await self._next_place(message.name)

    async def _store_resumed(self, key: str, message: ClogsMessage, route: FileRoute) -> str:
        check_writer(self._gateway, key, route.project)
        batch = _batch(message)
        self._gateway.quotas.take(route.project, len(message.body))
        await self._gateway.placed_puts.put_resumed(
            route.project,
            route.logstore,
            batch,
            key=_key(message.name),
            producer=stored_producer(message.producer),
            sequence=message.sequence,
        )
        return await self._next_place(message.name)

    async def _next_place(self, name: str) -> str:
        """The batch is stored, so that nothing may fail any more: without a place, who needs one
        asks.
        """
        try:
            return await self._place(name)
        except RaftwoodError:
            return ""

    async def _place(self, name: str) -> str:
        known = self._places.get(name)
        if known is not None:
            # A split, a merge or a deletion makes another value of the logstore.
            place = known.place
            now = await self._gateway.streams.logstore(place.project, place.logstore)
            if now is known.logstore:
                return known.text
        route = self._routes.of(name)
        logstore, shard = await self._gateway.placed_puts.shard(
            route.project, route.logstore, _key(name)
        )
        place = StreamPlace(route.project, route.logstore, shard.id, shard.log)
        found = self._places[name] = FilePlace(logstore, place, str(place))
        if len(self._places) > PLACES_MAX:
            del self._places[next(iter(self._places))]
        return found.text


def stored_producer(producer: bytes) -> bytes:
    """A shipper's producer as logs know it: release 0.1.0 named it by hexadecimal text, and a batch
    that it stored is known again by the same name alone.
    """
    return hexlify(producer)


def check_writer(gateway: Gateway, key: str, project: str) -> None:
    """The access key may write to a project; without one, to all."""
    known = gateway.access.key(key)
    if known is None:
        raise PermissionDenied(f"key {key[:140]} was revoked: ask for another one")
    check_role(known, project or EVERYWHERE, AccessRole.WRITER)


def _moved(message: ClogsMessage) -> PlaceMoved:
    return PlaceMoved(
        f"file {message.name[:80]!r} goes elsewhere by now, and nothing was stored: ask where, and "
        "send the same again"
    )


def _key(name: str) -> str:
    return hash_key(name.encode())


def _batch(message: ClogsMessage) -> Batch:
    try:
        kind = Format(message.format)
    except ValueError as error:
        raise InvalidInput(
            f"a batch has format {message.format}, unknown to this receiver: use a newer one"
        ) from error
    return Batch(
        body=message.body,
        format=kind,
        codec=message.codec,
        raw_bytes=message.raw_bytes,
        records=message.count,
    )


MESSAGE: Final = b"message"


def lines_of(message: ClogsMessage) -> bytes:
    """A batch as text: of each record its message, other fields behind it as `key=value`."""
    if message.format != Format.LOG_GROUP:
        raise InvalidInput(
            f"a batch of format {message.format} cannot be written to plain files: send a LogGroup"
        )
    group = decode_log_group(decompress(message.body, message.codec, raw_bytes=message.raw_bytes))
    lines = []
    for log in group.Logs:
        contents = log.Contents
        if len(contents) == 1 and contents[0].Key == MESSAGE:
            lines.append(contents[0].Value)
            continue
        fields = [each.Value for each in contents if each.Key == MESSAGE]
        fields += [b"%b=%b" % (each.Key, each.Value) for each in contents if each.Key != MESSAGE]
        lines.append(b" ".join(fields))
    lines.append(b"")
    return b"\n".join(lines)


class PlainFiles:
    """A `Sink` of plain files: for keys that may write to the project that a file is routed to,
    or, where it is routed to none, to all projects.
    """

    def __init__(self, gateway: Gateway, routes: Routes, files: FileSink) -> None:
        self._gateway = gateway
        self._routes = routes
        self._files = files

    async def locate(self, key: str, name: str) -> str:
        self._check(key, name)
        return await self._files.locate(key, name)

    async def store(self, key: str, message: ClogsMessage) -> str:
        self._check(key, message.name)
        return await self._files.store(key, message)

    def _check(self, key: str, name: str) -> None:
        route = self._routes.find(name)
        check_writer(self._gateway, key, "" if route is None else route.project)


class StreamsAndFiles:
    """A `Sink`: a batch is acknowledged once both have it. Its place is the stream's."""

    def __init__(self, streams: StreamSink, files: FileSink) -> None:
        self._streams = streams
        self._files = files

    async def locate(self, key: str, name: str) -> str:
        return await self._streams.locate(key, name)

    async def store(self, key: str, message: ClogsMessage) -> str:
        # Where only one of them has it in the end it comes again, and each knows what it has. The
        # stream is first, for it sees to rights and quotas.
        place = await self._streams.store(key, message)
        await self._files.store(key, message)
        return place


class ReceiverServer:
    """Use `start`, and `close` when done; the gateway is its owner's."""

    def __init__(
        self, receiver: Receiver, configuration: ConfigurationService, files: FileSink | None
    ) -> None:
        self._receiver = receiver
        self._files = files
        self._configuration = configuration
        self._datagrams: DatagramListener | None = None
        self.address = ""
        """Where shippers are served."""
        self.udp_address = ""
        """Where datagrams are taken; empty where they are not."""

    @classmethod
    async def start(
        cls,
        environment: Environment,
        settings: Settings,
        gateway: Gateway,
        *,
        metrics: Metrics,
        tls: ServerTls | None,
    ) -> "ReceiverServer":
        clogs = settings.clogs

        def secret_of(peer: Identity) -> Secret | None:
            key = gateway.access.key(peer.node_id) if peer.role == KEY_ROLE else None
            return None if key is None else Secret(key.secret)

        files: FileSink | None = None
        if clogs.files_folder:
            files = await FileSink.open(environment, clogs.files_folder, lines_of)
        configuration = ConfigurationService(gateway.metadata.store)

        async def configured(_: Call, request: ConfigurationRequest) -> ConfigurationAnswer:
            return await configuration.answer(request)

        service = Service()
        service.typed(CONFIGURATION, configured)
        receiver = Receiver(
            environment,
            _sink(gateway, clogs, files),
            secret_of=secret_of,
            limits=ReceiverLimits(
                batches_max=clogs.batches_max,
                bytes_max=clogs.bytes_max,
                connections_max=clogs.connections_max,
                connections=settings.connections,
            ),
            metrics=metrics,
            service=service,
        )
        started = cls(receiver, configuration, files)
        try:
            await configuration.start()
            started.address = await _listen(
                clogs.listen, lambda host, port: receiver.listen(host, port, tls=tls)
            )
            if clogs.udp_listen:
                started._datagrams = DatagramListener(
                    receiver, secret=clogs.udp_secret.reveal().encode(), key=clogs.udp_access_key
                )
                started.udp_address = await _listen(clogs.udp_listen, started._datagrams.listen)
        except BaseException:
            await started.close(drain_ms=0)
            raise
        return started

    async def close(self, *, drain_ms: int = DRAIN_MS) -> None:
        """Answer what is under way, within its time, then stop."""
        await self._configuration.close()  # whoever waits for a change is answered
        if self._datagrams is not None:
            await self._datagrams.close()
        await self._receiver.close(drain_ms=drain_ms)
        if self._files is not None:
            await self._files.close()


def _sink(gateway: Gateway, settings: ClogsSettings, files: FileSink | None) -> Sink:
    routes = Routes(parsed_routes(settings))
    streams = StreamSink(gateway, routes)
    if files is None:
        return streams
    if settings.store == "files":
        return PlainFiles(gateway, routes, files)
    return StreamsAndFiles(streams, files)


async def _listen(address: str, listen: Callable[[str, int], Awaitable[int]]) -> str:
    host, _, port = address.rpartition(":")
    try:
        bound = await listen(host.strip("[]"), int(port))
    except OSError as error:
        raise Unavailable(
            f"cannot listen on {address}: {error.strerror or error}; set clogs.listen and "
            "clogs.udp_listen to addresses of this machine that are free, or to nothing"
        ) from error
    return f"{host}:{bound}"
