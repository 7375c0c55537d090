"""A gateway's receiver as a whole: over the network to logstores and plain files, by datagrams too,
and the ring's configuration."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import trustme
from tests.kits.clogs.receiver import Shipper
from tests.kits.loghub.memory_logs import MemoryLogs
from tests.kits.loghub.streams import values_of
from tests.kits.ports import free_ports
from tests.kits.running import run, until

from raftwood.base.compression import Codec, compress
from raftwood.base.configuration import compose
from raftwood.base.errors import (
    InvalidConfiguration,
    InvalidInput,
    NotFound,
    PermissionDenied,
    RaftwoodError,
    Unavailable,
)
from raftwood.base.log_group_codec import encode_record
from raftwood.base.metrics import Metrics
from raftwood.clogs.configuration import LogServer, RingConfiguration, decode_configuration
from raftwood.clogs.configuration_store import ConfigurationStore
from raftwood.clogs.frames import ClogsMessage, MessageType
from raftwood.clogs.lines import encode_lines
from raftwood.clogs.wire import (
    CLUSTER,
    CONFIGURATION,
    KEY_ROLE,
    ConfigurationAnswer,
    ConfigurationRequest,
    encode_datagram,
)
from raftwood.disk.real_environment import real_environment
from raftwood.loghub.batches import HEAD_BYTES
from raftwood.loghub.model import AccessKey, AccessRole
from raftwood.metastore.file_store import FileMetaStore
from raftwood.net import ClientCredentials, ClientTls, Identity, Secret, TlsFiles, connect
from raftwood.server.gateway import GatewayServer
from raftwood.server.receiver import lines_of
from raftwood.server.settings import Settings

PRODUCER = bytes(range(16))
UDP_SECRET = "a secret of datagrams"


@asynccontextmanager
async def gateway(folder: Path, *flags: str) -> AsyncIterator[tuple[GatewayServer, AccessKey]]:
    given = (
        f"gateway.listen=127.0.0.1:{free_ports(1)[0]}",
        "gateway.http_listen=",
        "clogs.listen=127.0.0.1:0",
        "clogs.project=p",
        "clogs.logstore=s",
        *flags,
    )
    data = f"clogs.udp_secret = '{UDP_SECRET}'".encode()
    settings = compose(Settings, data=data, file="test.toml", flags=given).settings
    async with AsyncExitStack() as stack:
        environment = stack.enter_context(real_environment())
        store = await FileMetaStore.open(environment, str(folder / "metastore"))
        stack.push_async_callback(store.close)
        server = await GatewayServer.start(
            environment, settings, store, MemoryLogs(), metrics=Metrics()
        )
        stack.push_async_callback(server.close)
        await server.gateway.catalog.create_project("p")
        await server.gateway.catalog.create_logstore("p", "s", shard_count=1)
        yield server, await server.gateway.access.create({"p": AccessRole.WRITER})


@asynccontextmanager
async def shipper(
    server: GatewayServer, key: AccessKey, *, tls: ClientTls | None = None
) -> AsyncIterator[Shipper]:
    credentials = ClientCredentials(
        cluster_id=CLUSTER,
        identity=Identity(role=KEY_ROLE, node_id=key.id),
        secret=Secret(key.secret.encode()),
    )
    host, _, port = server.clogs_address.rpartition(":")
    async with await connect(host, int(port), credentials, random.Random(1), tls=tls) as connection:
        yield Shipper(connection)


def message(sequence: int, place: str, *lines: str, codec: Codec = Codec.LZ4) -> ClogsMessage:
    raw = encode_lines([line.encode() for line in lines], time_ns=1_700_000_000_000_000_000)
    return ClogsMessage(
        type=MessageType.DATA,
        name="/var/log/a.log",
        producer=PRODUCER,
        sequence=sequence,
        count=len(lines),
        raw_bytes=len(raw),
        codec=codec,
        place=place,
        body=compress(raw, codec),
    )


async def stored(server: GatewayServer) -> list[str]:
    streams = server.gateway.streams
    first = await streams.cursor("p", "s", 0, "begin")
    pulled = await streams.pull("p", "s", 0, first)
    return [value for each in pulled.batches for value in values_of(bytes(each.data[HEAD_BYTES:]))]


LOCATE = ClogsMessage(type=MessageType.LOCATE, name="/var/log/a.log")


def test_lines_get_from_a_connection_into_the_logstore_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as (server, key), shipper(server, key) as sender:
            place = (await sender.send(LOCATE)).place
            for _ in range(2):
                ack = await sender.send(message(1, place, "one", "two", codec=Codec.NONE))
                assert (ack.sequence, ack.place) == (1, place)
            assert await stored(server) == ["one", "two"]
            with pytest.raises(InvalidInput, match="names no place"):
                await sender.send(message(2, "", "three"))

    run(main())


def test_where_the_gateway_has_a_certificate_shippers_use_tls(tmp_path: Path) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    key_file, certificate, authorities = (
        str(tmp_path / name) for name in ("key.pem", "certificate.pem", "authorities.pem")
    )
    issued.private_key_pem.write_to_path(key_file)
    issued.cert_chain_pems[0].write_to_path(certificate)
    authority.cert_pem.write_to_path(authorities)

    async def main() -> None:
        flags = (f"tls.certificate={certificate}", f"tls.key={key_file}")
        async with gateway(tmp_path, *flags, f"tls.authorities={authorities}") as (server, key):
            tls = ClientTls(TlsFiles(authorities=authorities))
            async with shipper(server, key, tls=tls) as sender:
                assert (await sender.send(LOCATE)).place
            with pytest.raises(RaftwoodError):
                async with shipper(server, key):
                    pass

    run(main())


@pytest.mark.parametrize("store", ["files", "both"])
def test_lines_are_written_to_plain_files_where_the_settings_say_so(
    tmp_path: Path, store: str
) -> None:
    flags = (f"clogs.store={store}", f"clogs.files_folder={tmp_path / 'files'}")

    async def main() -> None:
        async with gateway(tmp_path, *flags) as (server, key), shipper(server, key) as sender:
            place = (await sender.send(LOCATE)).place
            for _ in range(2):
                await sender.send(message(1, place, "one", "two", codec=Codec.NONE))
            await sender.send(message(2, place, "three", codec=Codec.NONE))
            found = (tmp_path / "files" / "%2Fvar" / "log" / "a.log").read_text()
            assert found == "one\ntwo\nthree\n"
            in_logstore = ["one", "two", "three"] if store == "both" else []
            assert await stored(server) == in_logstore
            reader = await server.gateway.access.create({"p": AccessRole.READER})
            async with shipper(server, reader) as other:
                for each in (LOCATE, message(3, place, "four")):
                    with pytest.raises(PermissionDenied):
                        await other.send(each)
            assert (tmp_path / "files" / "%2Fvar" / "log" / "a.log").read_text() == found

    run(main())


def test_files_without_a_route_take_a_writer_of_every_project(tmp_path: Path) -> None:
    flags = ("clogs.store=files", f"clogs.files_folder={tmp_path / 'files'}", "clogs.project=")

    async def main() -> None:
        parts = gateway(tmp_path, *flags, "clogs.logstore=")
        async with parts as (server, key), shipper(server, key) as sender:
            with pytest.raises(PermissionDenied, match="in every project"):
                await sender.send(LOCATE)
            everywhere = await server.gateway.access.create({"*": AccessRole.WRITER})
            async with shipper(server, everywhere) as other:
                place = (await other.send(LOCATE)).place
                await other.send(message(1, place, "one"))

    run(main())


def test_lines_come_by_datagrams_too(tmp_path: Path) -> None:
    async def main() -> None:
        key_id = "RWNOBODY"
        flags = [
            "clogs.udp_listen=127.0.0.1:0",
            f"clogs.udp_access_key={key_id}",
        ]
        async with gateway(tmp_path, *flags) as (server, key):
            receiver = server._receiver
            assert receiver is not None
            assert receiver._datagrams is not None
            host, _, port = receiver.udp_address.rpartition(":")
            transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
                asyncio.DatagramProtocol, remote_addr=(host, int(port))
            )
            try:
                datagram = encode_datagram(message(1, "", "one"), UDP_SECRET.encode())
                figures = receiver._receiver.figures
                transport.sendto(datagram)
                await until(lambda: figures.dropped_datagrams == 1)  # nobody has that key
                receiver._datagrams._key = key.id
                for number in range(1, 4):
                    transport.sendto(datagram)
                    await until(lambda: figures.batches == number)  # noqa: B023
            finally:
                transport.close()
            assert await _count(server) == 1

    run(main())


async def _count(server: GatewayServer) -> int:
    streams = server.gateway.streams
    first = await streams.cursor("p", "s", 0, "begin")
    return len((await streams.pull("p", "s", 0, first)).batches)


async def configuration(
    sender: Shipper, *, wait_ms: int = 0, known: ConfigurationAnswer | None = None
) -> ConfigurationAnswer:
    version, digest = (0, "") if known is None else (known.version, known.digest)
    request = CONFIGURATION.encode(
        ConfigurationRequest("default", version=version, digest=digest, wait_ms=wait_ms)
    )
    answer = await sender.connection.call(CONFIGURATION, request, timeout_ms=60_000)
    return CONFIGURATION.decode_response(answer)


def test_a_receiver_tells_the_rings_configuration(tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as (server, key), shipper(server, key) as sender:
            with pytest.raises(NotFound):
                await configuration(sender)
            waiting = asyncio.create_task(configuration(sender, wait_ms=60_000))
            ring = RingConfiguration((LogServer("127.0.0.1", 7290),))
            made = await ConfigurationStore(server.gateway.metadata.store, "default").set(ring)
            async with asyncio.timeout(60):
                answer = await waiting
            assert (answer.version, answer.digest) == (made.version, made.digest)
            assert decode_configuration(answer.text) == ring
            waiting = asyncio.create_task(configuration(sender, wait_ms=60_000, known=answer))
            await asyncio.sleep(0.05)
            assert not waiting.done()
            # The end does not wait for whoever waits.
            async with asyncio.timeout(60):
                await server.close()
                with pytest.raises(Unavailable):
                    await waiting

    run(main())


def test_an_address_that_is_taken_is_told(tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as (server, _):
            taken = f"clogs.listen={server.clogs_address}"
            with pytest.raises(Unavailable, match=r"set clogs\.listen and clogs\.udp_listen"):
                async with gateway(tmp_path / "other", taken):
                    pass

    run(main())


def test_without_an_address_shippers_are_not_served(tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway(tmp_path, "clogs.listen=") as (server, _):
            assert server.clogs_address == ""

    run(main())


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["clogs.listen=h:70000"], "port above 65535"),
        (["clogs.project=p"], "belong together"),
        (["clogs.store=both"], "files_folder; give both"),
        (["clogs.files_folder=/f"], "files_folder; give both"),
        (["clogs.udp_listen=h:1"], "without listen"),
        (["clogs.listen=h:1", "clogs.udp_listen=h:1"], "without udp_secret"),
        (
            ["clogs.listen=h:1", "clogs.udp_listen=h:1", "clogs.udp_access_key=RW"],
            "of 16 characters or more",
        ),
        (["clogs.routes=*=p"], "clogs.routes"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(flags: list[str], text: str) -> None:
    with pytest.raises(InvalidConfiguration, match=text):
        compose(Settings, flags=flags)


def test_a_record_as_a_line_is_its_message_and_then_its_other_fields() -> None:
    records: list[dict[str, str]] = [
        {"message": "one"},
        {"level": "info", "message": "two\n at"},
        {"a": "1", "b": "é"},
        {},
    ]
    raw = b"".join(encode_record(each, 1_700_000_000_000_000_000) for each in records)
    for codec in Codec:
        message = ClogsMessage(
            type=MessageType.DATA,
            name="a",
            raw_bytes=len(raw),
            codec=codec,
            body=compress(raw, codec),
        )
        assert lines_of(message).decode() == "one\ntwo\n at level=info\na=1 b=é\n\n"


def test_what_cannot_be_written_as_lines_is_refused() -> None:
    with pytest.raises(InvalidInput, match="format 2"):
        lines_of(ClogsMessage(type=MessageType.DATA, format=2))
    with pytest.raises(InvalidInput, match="no LogGroup"):
        lines_of(ClogsMessage(type=MessageType.DATA, raw_bytes=1, body=b"\xff"))
