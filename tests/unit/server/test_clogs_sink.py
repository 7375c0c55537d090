"""What shippers send goes into logstores by the names of files, each batch once, whatever happens
to shards meanwhile."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from tests.kits.loghub.streams import GatewayKit, gateway_kit, log_group, values_of
from tests.kits.running import run

from raftwood.base.errors import InvalidInput, NotFound, PermissionDenied, Unavailable
from raftwood.clogs.errors import PlaceMoved
from raftwood.clogs.file_sink import PLACE as FILES_PLACE
from raftwood.clogs.frames import ClogsMessage, MessageType
from raftwood.clogs.receiver_settings import ClogsSettings, parsed_routes
from raftwood.loghub.batches import HEAD_BYTES
from raftwood.loghub.errors import BatchTooLarge, LogstoreNotFound, ProjectNotFound, QuotaExceeded
from raftwood.loghub.model import AccessRole, Logstore, Shard
from raftwood.loghub.server.gateway import Gateway
from raftwood.loghub.server.metadata import logstore_key
from raftwood.loghub.settings import GatewaySettings
from raftwood.loghub.shards import hash_key
from raftwood.logservice.client.append_pipeline import producer_key
from raftwood.server import receiver
from raftwood.server.receiver import Routes, StreamSink, parsed_place

PRODUCER = bytes(range(16))
NAME = "/var/log/app.log"
SETTINGS = ClogsSettings(project="p", logstore="s")


class SinkKit(msgspec.Struct):
    kit: GatewayKit
    gateway: Gateway
    sink: StreamSink
    key: str

    async def locate(self, name: str = NAME) -> str:
        return await self.sink.locate(self.key, name)

    async def store(self, message: ClogsMessage) -> str:
        return await self.sink.store(self.key, message)

    async def stored(self) -> list[str]:
        """The values of all batches that can be read, shard by shard."""
        found: list[str] = []
        streams = self.gateway.streams
        for shard in await streams.shards("p", "s"):
            position: int = await streams.cursor("p", "s", shard.id, "begin")
            end = await streams.cursor("p", "s", shard.id, "end")
            while position < end:
                pulled = await streams.pull("p", "s", shard.id, position)
                for batch in pulled.batches:
                    found += values_of(bytes(batch.data[HEAD_BYTES:]))
                position = pulled.next
        return found

    async def split(self) -> None:
        """The shard that has the file."""
        _, shard = await self.gateway.placed_puts.shard("p", "s", hash_key(NAME.encode()))
        await self.gateway.streams.split("p", "s", shard.id)


@asynccontextmanager
async def sink_kit(
    folder: Path, *, settings: GatewaySettings | None = None
) -> AsyncIterator[SinkKit]:
    async with gateway_kit(folder, settings=settings) as kit:
        gateway = await kit.gateway()
        await gateway.catalog.create_project("p")
        await gateway.catalog.create_logstore("p", "s", shard_count=1)
        sink = StreamSink(gateway, Routes(parsed_routes(SETTINGS)))
        yield SinkKit(kit, gateway, sink, (await kit.admin()).id)


def check(body: Callable[[SinkKit], Awaitable[None]], folder: Path) -> None:
    async def main() -> None:
        async with sink_kit(folder) as kit:
            await body(kit)

    run(main())


def message(
    sequence: int, *values: str, place: str = "", is_resumed: bool = False, name: str = NAME
) -> ClogsMessage:
    batch = log_group(*(values or (f"line {sequence}",)))
    return ClogsMessage(
        type=MessageType.DATA,
        name=name,
        producer=PRODUCER,
        sequence=sequence,
        count=batch.records,
        raw_bytes=batch.raw_bytes,
        is_resumed=is_resumed,
        place=place,
        body=batch.body,
    )


def test_a_batch_that_is_sent_again_is_stored_once(tmp_path: Path) -> None:
    async def body(kit: SinkKit) -> None:
        place = await kit.locate()
        for sequence in (1, 2, 2, 1, 3):
            assert await kit.store(message(sequence, place=place)) == place
        assert await kit.stored() == ["line 1", "line 2", "line 3"]

    check(body, tmp_path)


def test_logs_know_a_shippers_producer_as_release_0_1_0_named_it(tmp_path: Path) -> None:
    async def body(kit: SinkKit) -> None:
        place = await kit.locate()
        await kit.store(message(1, place=place))
        await kit.store(message(2, is_resumed=True))
        log = kit.kit.logs.logs[parsed_place(place).log]  # type: ignore[attr-defined]
        (name,) = {producer for producer, _ in log._known}
        assert name == b"000102030405060708090a0b0c0d0e0f"
        assert producer_key(name).hex() == "df4ef938f733e92001225b5f829b56cb"

    check(body, tmp_path)


def test_a_files_place_is_looked_up_again_only_where_its_logstore_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_up: list[str] = []

    async def body(kit: SinkKit) -> None:
        puts = kit.gateway.placed_puts
        shard = puts.shard

        async def counted(project: str, logstore: str, key: str) -> tuple[Logstore, Shard]:
            looked_up.append(key)
            return await shard(project, logstore, key)

        monkeypatch.setattr(puts, "shard", counted)
        place = await kit.locate()
        for sequence in range(1, 4):
            assert await kit.store(message(sequence, place=place)) == place
        assert len(looked_up) == 1
        await kit.gateway.streams.split("p", "s", 0)
        for _ in range(2):
            place = await kit.store(message(3, place=place))
        assert len(looked_up) == 2
        monkeypatch.setattr(receiver, "PLACES_MAX", 1)
        for name in ("a", "b", "a", NAME):
            first = await kit.locate(name)
            assert await kit.store(message(4, place=first, name=name)) == first
        assert len(looked_up) == 6

    check(body, tmp_path)


def test_a_place_is_the_same_at_every_gateway(tmp_path: Path) -> None:
    async def body(kit: SinkKit) -> None:
        other = StreamSink(await kit.kit.gateway(), Routes(parsed_routes(SETTINGS)))
        place = await kit.locate()
        assert await other.locate(kit.key, NAME) == place
        await kit.store(message(1, place=place))
        await other.store(kit.key, message(1, place=place))
        assert await kit.stored() == ["line 1"]

    check(body, tmp_path)


def test_a_batch_stored_before_a_split_is_acknowledged_after_it_with_the_next_place(
    tmp_path: Path,
) -> None:
    async def body(kit: SinkKit) -> None:
        place = await kit.locate()
        await kit.store(message(1, place=place))
        await kit.split()
        following = await kit.store(message(1, place=place))
        assert following == await kit.locate() != place
        await kit.store(message(2, place=following))
        assert await kit.stored() == ["line 1", "line 2"]

    check(body, tmp_path)


def test_a_late_copy_that_names_an_old_place_is_refused_and_never_stored(tmp_path: Path) -> None:
    async def body(kit: SinkKit) -> None:
        place = await kit.locate()
        await kit.split()
        with pytest.raises(PlaceMoved, match="nothing was stored"):
            await kit.store(message(1, place=place))
        following = await kit.locate()
        await kit.store(message(1, place=following))
        with pytest.raises(PlaceMoved):
            await kit.store(message(1, place=place))
        assert await kit.stored() == ["line 1"]

    check(body, tmp_path)


def test_a_gateway_that_has_not_heard_of_a_split_finds_out_and_tells_the_next_place(
    tmp_path: Path,
) -> None:
    async def body(kit: SinkKit) -> None:
        late = await kit.kit.gateway()
        sink = StreamSink(late, Routes(parsed_routes(SETTINGS)))
        place = await sink.locate(kit.key, NAME)
        stale = late.metadata.copy(logstore_key("p", "s"), Logstore)
        await late.metadata.close()  # it hears of nothing any more
        await kit.split()
        assert stale is not None
        late.metadata._copies[logstore_key("p", "s")] = (stale, 1)
        assert await sink.locate(kit.key, NAME) == place
        with pytest.raises(PlaceMoved):
            await sink.store(kit.key, message(1, place=place))
        assert await sink.locate(kit.key, NAME) == await kit.locate() != place
        late.metadata._copies[logstore_key("p", "s")] = (stale, 1)
        await sink.store(kit.key, message(1, place=await kit.locate()))
        assert await kit.stored() == ["line 1"]

    check(body, tmp_path)


async def _merge(kit: SinkKit) -> None:
    """All shards that can be written, until one is left."""
    streams = kit.gateway.streams
    while True:
        shards = [each for each in await streams.shards("p", "s") if each.ends_at is None]
        if len(shards) == 1:
            return
        shards.sort(key=lambda shard: shard.begin)
        await streams.merge("p", "s", shards[0].id)


@pytest.mark.parametrize("was_sent", [True, False])
@pytest.mark.parametrize("steps", ["", "s", "ss", "sm", "sms", "ssm"])
def test_a_resumed_batch_is_found_wherever_its_key_went(
    tmp_path: Path, steps: str, was_sent: bool
) -> None:
    async def body(kit: SinkKit) -> None:
        await kit.store(message(1, place=await kit.locate()))
        if was_sent:
            await kit.store(message(2, place=await kit.locate()))
        for step in steps:
            await (kit.split() if step == "s" else _merge(kit))
        for _ in range(2):
            following = await kit.store(message(2, is_resumed=True))
            assert following == await kit.locate()
        await kit.store(message(3, place=following))
        assert await kit.stored() == ["line 1", "line 2", "line 3"]

    check(body, tmp_path)


@pytest.mark.parametrize("stored_after", [1, 2])
def test_a_resumed_batch_is_found_in_the_middle_of_its_keys_way(
    tmp_path: Path, stored_after: int
) -> None:
    async def body(kit: SinkKit) -> None:
        for step in range(1, 4):
            await kit.split()
            if step == stored_after:
                await kit.store(message(7, place=await kit.locate()))
        await kit.store(message(7, is_resumed=True))
        assert await kit.stored() == ["line 7"]

    check(body, tmp_path)


def test_a_resumed_batch_meets_splits_that_this_gateway_has_not_heard_of(tmp_path: Path) -> None:
    async def body(kit: SinkKit) -> None:
        late = await kit.kit.gateway()
        sink = StreamSink(late, Routes(parsed_routes(SETTINGS)))
        stale = late.metadata.copy(logstore_key("p", "s"), Logstore)
        await late.metadata.close()
        await kit.split()
        await kit.store(message(1, place=await kit.locate()))
        await kit.split()
        assert stale is not None
        late.metadata._copies[logstore_key("p", "s")] = (stale, 1)
        await sink.store(kit.key, message(1, is_resumed=True))
        await sink.store(kit.key, message(2, is_resumed=True))
        assert await kit.stored() == ["line 1", "line 2"]

    check(body, tmp_path)


def test_a_resumed_batch_is_stored_though_an_old_shard_was_deleted(tmp_path: Path) -> None:
    async def body(kit: SinkKit) -> None:
        await kit.split()
        await kit.gateway.streams.delete_shard("p", "s", 0)
        await kit.store(message(1, is_resumed=True))
        assert await kit.stored() == ["line 1"]

    check(body, tmp_path)


def test_where_an_old_log_cannot_be_found_a_resumed_batch_waits(tmp_path: Path) -> None:
    async def body(kit: SinkKit) -> None:
        place = await kit.locate()
        await kit.store(message(1, place=place))
        await kit.split()
        logs = kit.kit.logs
        hidden = parsed_place(place).log
        kept = logs.logs.pop(hidden)  # type: ignore[attr-defined]
        for each in (message(1, is_resumed=True), message(1, place=place)):
            with pytest.raises(Unavailable, match="cannot be found, though"):
                await kit.store(each)
        logs.logs[hidden] = kept  # type: ignore[attr-defined]
        await kit.store(message(1, is_resumed=True))
        assert await kit.stored() == ["line 1"]

    check(body, tmp_path)


def test_a_logstore_that_was_made_anew_has_other_places(tmp_path: Path) -> None:
    async def body(kit: SinkKit) -> None:
        place = await kit.locate()
        await kit.store(message(1, place=place))
        await kit.gateway.catalog.delete_logstore("p", "s")
        with pytest.raises(LogstoreNotFound):
            await kit.store(message(2, place=place))
        await kit.gateway.catalog.create_logstore("p", "s", shard_count=1)
        with pytest.raises(PlaceMoved):
            await kit.store(message(2, place=place))
        await kit.store(message(2, place=await kit.locate()))
        assert await kit.stored() == ["line 2"]

    check(body, tmp_path)


def test_a_batch_that_names_a_deleted_shard_goes_elsewhere(tmp_path: Path) -> None:
    async def body(kit: SinkKit) -> None:
        place = await kit.locate()
        await kit.split()
        await kit.gateway.streams.delete_shard("p", "s", 0)
        with pytest.raises(PlaceMoved):
            await kit.store(message(1, place=place))
        assert await kit.stored() == []

    check(body, tmp_path)


def test_without_a_place_a_batch_is_stored_only_if_it_is_resumed(tmp_path: Path) -> None:
    async def body(kit: SinkKit) -> None:
        with pytest.raises(InvalidInput, match="names no place"):
            await kit.store(message(1))
        assert await kit.stored() == []

    check(body, tmp_path)


@pytest.mark.parametrize(
    "text",
    ["p", "p/s/0", "p/s/x/loghub-" + "0" * 24, "p/s/0/log", "p/../0/loghub-" + "0" * 24, "/" * 3],
)
def test_a_place_that_nobody_gave_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        parsed_place(text)


def test_a_place_of_another_logstores_log_is_refused(tmp_path: Path) -> None:
    async def body(kit: SinkKit) -> None:
        await kit.gateway.catalog.create_logstore("p", "t", shard_count=1)
        (other,) = await kit.gateway.streams.shards("p", "t")
        with pytest.raises(PlaceMoved):
            await kit.store(message(1, place=f"p/s/0/{other.log}"))
        assert await kit.stored() == []

    check(body, tmp_path)


def test_the_key_needs_the_role_of_a_writer_where_a_batch_goes(tmp_path: Path) -> None:
    async def body(kit: SinkKit) -> None:
        place = await kit.locate()
        access = kit.gateway.access
        reader = (await access.create({"p": AccessRole.READER})).id
        stranger = (await access.create({"q": AccessRole.ADMIN})).id
        writer = (await access.create({"p": AccessRole.WRITER})).id
        sink = kit.sink
        for each in (message(1, place=place), message(1, is_resumed=True)):
            with pytest.raises(PermissionDenied, match="takes the role writer"):
                await sink.store(reader, each)
            with pytest.raises(ProjectNotFound):
                await sink.store(stranger, each)
            with pytest.raises(PermissionDenied, match="was revoked"):
                await sink.store("RWnone", each)
        with pytest.raises(PermissionDenied):
            await sink.locate(reader, NAME)
        with pytest.raises(ProjectNotFound):
            await sink.locate(stranger, NAME)
        assert await kit.stored() == []
        await sink.store(writer, message(1, place=await sink.locate(writer, NAME)))
        assert await kit.stored() == ["line 1"]

    check(body, tmp_path)


def test_a_projects_quota_holds_for_shippers_too(tmp_path: Path) -> None:
    async def main() -> None:
        settings = GatewaySettings(write_requests_per_s_max=1)
        async with sink_kit(tmp_path, settings=settings) as kit:
            place = await kit.locate()
            with pytest.raises(QuotaExceeded):
                for sequence in range(1, 10):
                    await kit.store(message(sequence, place=place))

    run(main())


def test_a_batch_above_the_gateways_limits_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with sink_kit(tmp_path, settings=GatewaySettings(raw_bytes_max=1 << 10)) as kit:
            with pytest.raises(BatchTooLarge):
                await kit.store(message(1, "x" * 2000, place=await kit.locate()))
            with pytest.raises(InvalidInput, match="format 9"):
                unknown = msgspec.structs.replace(message(1, place=await kit.locate()), format=9)
                await kit.store(unknown)

    run(main())


def test_a_files_name_picks_the_logstore_by_the_first_route_that_fits() -> None:
    settings = ClogsSettings(
        project="p",
        logstore="rest",
        routes=("/var/log/nginx/*=web/access", "*.audit=p/audit", "*=x=p/odd"),
    )
    routes = Routes(parsed_routes(settings))
    found = {
        name: f"{routes.of(name).project}/{routes.of(name).logstore}"
        for name in ("/var/log/nginx/a/b.log", "a.audit", "/var/log/nginx/x.audit", "b", "a=x")
    }
    assert list(found.values()) == [
        "web/access",
        "p/audit",
        "web/access",
        "p/rest",
        "p/odd",
    ]
    with pytest.raises(NotFound, match=r"goes to no logstore: set clogs\.project"):
        Routes([]).of("a")


def test_a_place_is_kept_to_though_the_routes_have_changed(tmp_path: Path) -> None:
    async def body(kit: SinkKit) -> None:
        place = await kit.locate()
        await kit.store(message(1, place=place))
        await kit.gateway.catalog.create_logstore("p", "t", shard_count=1)
        changed = ClogsSettings(project="p", logstore="t")
        sink = StreamSink(kit.gateway, Routes(parsed_routes(changed)))
        assert (await sink.store(kit.key, message(1, place=place))).startswith("p/t/0/")
        none = StreamSink(kit.gateway, Routes([]))
        assert await none.store(kit.key, message(1, place=place)) == ""
        assert await kit.stored() == ["line 1"]

    check(body, tmp_path)


def test_a_place_among_plain_files_is_asked_for_again(tmp_path: Path) -> None:
    async def body(kit: SinkKit) -> None:
        with pytest.raises(PlaceMoved):
            await kit.store(message(1, place=FILES_PLACE))
        await kit.store(message(1, place=await kit.locate()))
        assert await kit.stored() == ["line 1"]

    check(body, tmp_path)


def test_a_batch_for_a_deleted_logstore_goes_where_the_file_is_routed_by_now(
    tmp_path: Path,
) -> None:
    async def body(kit: SinkKit) -> None:
        catalog = kit.gateway.catalog
        await catalog.create_logstore("p", "old", shard_count=1)
        before = ClogsSettings(project="p", logstore="old")
        sink = StreamSink(kit.gateway, Routes(parsed_routes(before)))
        place = await sink.locate(kit.key, NAME)
        await sink.store(kit.key, message(1, place=place))
        await catalog.delete_logstore("p", "old")
        with pytest.raises(LogstoreNotFound):
            await sink.store(kit.key, message(2, place=place))
        with pytest.raises(PlaceMoved):
            await kit.store(message(2, place=place))
        await kit.store(message(2, place=await kit.locate()))
        assert await kit.stored() == ["line 2"]

    check(body, tmp_path)
