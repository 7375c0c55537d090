"""A gateway in the test's process that serves its ways in on real ports, and what it stored."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from raftwood.base.errors import RaftwoodError
from raftwood.base.metrics import Metrics
from raftwood.loghub.batches import HEAD_BYTES, decode_head, decompress
from raftwood.loghub.log_groups import decode_log_group
from raftwood.loghub.model import AccessKey, AccessRole
from raftwood.loghub.server.gateway import Gateway
from raftwood.loghub.server.http import HttpFront, HttpRequest, HttpResponse, HttpRoute
from raftwood.loghub.server.listeners import SocketWays, http_groups
from raftwood.loghub.server.ways_in import records
from raftwood.loghub.server.ways_in.records import PackedLogGroup, RecordSection
from raftwood.loghub.server.ways_in.settings import WaysInSettings
from raftwood.loghub.settings import GatewaySettings
from raftwood.net.http_listener import HttpLimits, HttpListener
from tests.kits.loghub.streams import gateway_kit

PROJECT = "shop"
LOGSTORE = "app-logs"
NOW_NS = 1_800_000_000_000_000_000


class Stored(msgspec.Struct):
    """A record as a reader gets it."""

    time_ns: int
    contents: dict[str, str]
    tags: dict[str, str]
    source: str = ""


def pack(
    sections: Sequence[RecordSection], *, source: bytes = b"", bytes_max: int
) -> list[PackedLogGroup]:
    """All LogGroups at once, without the pauses between."""
    packed = records.pack(sections, source=source, bytes_max=bytes_max)
    return [each for each in packed if each is not None]


def read_group(body: bytes) -> list[Stored]:
    group = decode_log_group(body)
    tags = {tag.Key.decode(): tag.Value.decode() for tag in group.LogTags}
    return [
        Stored(
            log.Time * 1_000_000_000 + log.Time_ns,
            {each.Key.decode(): each.Value.decode() for each in log.Contents},
            tags,
            group.Source.decode(),
        )
        for log in group.Logs
    ]


def read_sections(sections: Iterable[RecordSection]) -> list[Stored]:
    """What a decoder made, as a reader would get it."""
    packed = pack(list(sections), bytes_max=1 << 20)
    return [record for group in packed for record in read_group(group.body)]


class NoSls:
    """SLS's own way in, for tests without it."""

    name = "sls"

    def find(self, method: str, path: str) -> HttpRoute | None:
        return HttpRoute("any", self._any) if (method, path) == ("GET", "/") else None

    async def _any(self, _: HttpRequest) -> HttpResponse:
        return HttpResponse(body=b'"SLS"')

    def authenticate(self, _: HttpRequest) -> None:
        return None

    def error_answer(self, error: RaftwoodError, _: HttpRequest) -> HttpResponse:
        return HttpResponse(status=error.http_status, body=b"{}")


class WaysInKit(msgspec.Struct):
    """`url` for HTTP; `writer` may write in the project, `reader` may not."""

    gateway: Gateway
    url: str
    writer: AccessKey
    reader: AccessKey
    sockets: SocketWays

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    @property
    def login(self) -> tuple[str, str]:
        return self.writer.id, self.writer.secret

    async def stored(self, logstore: str = LOGSTORE) -> list[Stored]:
        """All that stands in a logstore, shard by shard."""
        found = []
        streams = self.gateway.streams
        for shard in await streams.shards(PROJECT, logstore):
            start = await streams.cursor(PROJECT, logstore, shard.id, "begin")
            pulled = await streams.pull(PROJECT, logstore, shard.id, start)
            for batch in pulled.batches:
                head = decode_head(batch.data)
                body = memoryview(batch.data)[HEAD_BYTES:]
                raw = decompress(body, head.codec, raw_bytes=head.raw_bytes)
                records = read_group(bytes(raw))
                assert len(records) == head.records
                found += records
        return found

    async def stored_when(self, count: int) -> list[Stored]:
        """All that stands in the logstore, once there are so many records."""
        for _ in range(500):
            if len(found := await self.stored()) >= count:
                return found
            await asyncio.sleep(0.01)
        raise AssertionError(f"{len(found)} records of {count} were stored: {found[:3]}")


@asynccontextmanager
async def ways_in_kit(
    folder: Path,
    settings: WaysInSettings | None = None,
    limits: GatewaySettings | None = None,
) -> AsyncIterator[WaysInKit]:
    settings = settings or WaysInSettings(logstore=LOGSTORE)
    limits = limits or GatewaySettings()
    async with gateway_kit(folder, settings=limits) as kit:
        gateway = await kit.gateway()
        await gateway.catalog.create_project(PROJECT)
        await gateway.catalog.create_logstore(PROJECT, LOGSTORE)
        metrics = Metrics()
        groups = http_groups(kit.environment, gateway, settings, limits, sls=NoSls())
        front = HttpFront(kit.environment, groups, metrics=metrics)
        sockets = await SocketWays.start(kit.environment, gateway, settings, metrics=metrics)
        listener = await HttpListener.start(
            front, "127.0.0.1:0", HttpLimits(), explain=front.explain
        )
        try:
            yield WaysInKit(
                gateway,
                f"http://{listener.address}",
                await gateway.access.create({PROJECT: AccessRole.WRITER}),
                await gateway.access.create({PROJECT: AccessRole.READER}),
                sockets,
            )
        finally:
            await sockets.close()
            await listener.close()
