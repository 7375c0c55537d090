"""`StreamSink`: what shippers send goes into logstores, by the names of the files.

A place names a logstore, a shard and the shard's log: text that shippers hand back, so it is
checked like all that comes from outside. A file's name is the key, so that its batches are in one
shard, in order. That each is stored once is the log's doing: see `loghub/server/placed_puts`.
"""

import re
from fnmatch import translate
from typing import Final

import msgspec

from raftwood.base.errors import InvalidInput, NotFound, PermissionDenied, RaftwoodError
from raftwood.clogs.errors import PlaceMoved
from raftwood.clogs.frames import Message
from raftwood.clogs.receiver.file_sink import PLACE as FILES_PLACE
from raftwood.clogs.settings import Route
from raftwood.loghub.batches import Batch, Format
from raftwood.loghub.errors import ShardReadonly
from raftwood.loghub.key_ranges import hash_key
from raftwood.loghub.log_names import is_log_name
from raftwood.loghub.model import Role, check_stream_names
from raftwood.loghub.server.access import EVERYWHERE, check_role
from raftwood.loghub.server.gateway import Gateway

_PARTS: Final = 4
_SHARD: Final = re.compile(r"[0-9]{1,9}")


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


class Routes:
    """Which logstore a file's lines go to."""

    def __init__(self, routes: list[Route]) -> None:
        self._routes = [(re.compile(translate(each.glob)), each) for each in routes]

    def find(self, name: str) -> Route | None:
        return next((route for glob, route in self._routes if glob.match(name)), None)

    def of(self, name: str) -> Route:
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

    async def locate(self, key: str, name: str) -> str:
        route = self._routes.of(name)
        check_writer(self._gateway, key, route.project)
        return str(await self._place(name, route))

    async def store(self, key: str, message: Message) -> str:
        if message.place == FILES_PLACE:
            # Receivers wrote plain files before: no log has it, and shippers that still run ask.
            raise _moved(message)
        if message.place:
            return await self._store_there(key, message, parsed_place(message.place))
        if not message.is_resumed:
            raise InvalidInput(
                f"a batch of file {message.name[:80]!r} names no place: ask where the file goes"
            )
        return await self._store_resumed(key, message, self._routes.of(message.name))

    async def _store_there(self, key: str, message: Message, place: StreamPlace) -> str:
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
                producer=message.producer.hex(),
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

    async def _store_resumed(self, key: str, message: Message, route: Route) -> str:
        check_writer(self._gateway, key, route.project)
        batch = _batch(message)
        self._gateway.quotas.take(route.project, len(message.body))
        await self._gateway.placed_puts.put_resumed(
            route.project,
            route.logstore,
            batch,
            key=_key(message.name),
            producer=message.producer.hex(),
            sequence=message.sequence,
        )
        return await self._next_place(message.name)

    async def _next_place(self, name: str) -> str:
        """The batch is stored, so that nothing may fail any more: without a place, who needs one
        asks.
        """
        try:
            return str(await self._place(name, self._routes.of(name)))
        except RaftwoodError:
            return ""

    async def _place(self, name: str, route: Route) -> StreamPlace:
        shard = await self._gateway.placed_puts.shard(route.project, route.logstore, _key(name))
        return StreamPlace(route.project, route.logstore, shard.id, shard.log)


def check_writer(gateway: Gateway, key: str, project: str) -> None:
    """The access key may write to a project; without one, to all."""
    known = gateway.access.key(key)
    if known is None:
        raise PermissionDenied(f"key {key[:140]} was revoked: ask for another one")
    check_role(known, project or EVERYWHERE, Role.WRITER)


def _moved(message: Message) -> PlaceMoved:
    return PlaceMoved(
        f"file {message.name[:80]!r} goes elsewhere by now, and nothing was stored: ask where, and "
        "send the same again"
    )


def _key(name: str) -> str:
    return hash_key(name.encode())


def _batch(message: Message) -> Batch:
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
