"""What shippers send as plain files, alone or beside logstores."""

from typing import Final

from raftwood.app.clogs_sink import Routes, StreamSink, check_writer
from raftwood.base.errors import InvalidInput
from raftwood.clogs.frames import Message
from raftwood.clogs.receiver.file_sink import FileSink
from raftwood.loghub.batches import Format
from raftwood.loghub.compression import decompress
from raftwood.loghub.log_groups import decode_log_group
from raftwood.loghub.server.gateway import Gateway

MESSAGE: Final = b"message"


def lines_of(message: Message) -> bytes:
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

    async def store(self, key: str, message: Message) -> str:
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

    async def store(self, key: str, message: Message) -> str:
        # Where only one of them has it in the end it comes again, and each knows what it has. The
        # stream is first, for it sees to rights and quotas.
        place = await self._streams.store(key, message)
        await self._files.store(key, message)
        return place
