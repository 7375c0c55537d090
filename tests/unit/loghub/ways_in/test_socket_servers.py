"""Syslog and Fluent on their ports: acks, handshakes, bounds, outages, an orderly end."""

import asyncio
import gzip
import hashlib
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import msgpack
import pytest

from raftwood.base.errors import InvalidInput, Unavailable
from raftwood.base.settings import Secret
from raftwood.loghub.server.streams import PutResult
from raftwood.loghub.server.ways_in import fluent_forward
from raftwood.loghub.server.ways_in import syslog as syslog_module
from raftwood.loghub.server.ways_in.fluent_forward import MessageReader
from raftwood.loghub.server.ways_in.settings import AllowedNetworks, WaysInSettings
from raftwood.loghub.server.ways_in.socket_server import SLICE_BYTES
from raftwood.net.listeners import BOUND_MIN
from tests.kits.loghub.certificates import Certificates
from tests.kits.loghub.ways_in import LOGSTORE, PROJECT, WaysInKit, ways_in_kit
from tests.kits.running import run, until
from tests.kits.turns import counting

LOCAL = ("127.0.0.0/8",)
KEY = Secret("the shared key")


def settings(**more: Any) -> WaysInSettings:
    given: dict[str, Any] = {
        "syslog_project": PROJECT,
        "syslog_logstore": LOGSTORE,
        "fluent_project": PROJECT,
        "fluent_logstore": LOGSTORE,
    }
    return WaysInSettings(**(given | more))


def syslog(**more: Any) -> WaysInSettings:
    return settings(syslog_listen="127.0.0.1:0", syslog_peers=LOCAL, **more)


def fluent(**more: Any) -> WaysInSettings:
    return settings(fluent_listen="127.0.0.1:0", **({"fluent_peers": LOCAL} | more))


class Peer:
    """A client's end of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._unpacker = msgpack.Unpacker()

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    def message(self, *parts: Any) -> None:
        self.send(msgpack.packb(parts))

    async def answer(self) -> Any:
        """The next msgpack value."""
        async with asyncio.timeout(60):
            while True:
                for value in self._unpacker:
                    return value
                data = await self._reader.read(1000)
                assert data, "the connection ended"
                self._unpacker.feed(data)

    async def is_cut(self) -> bool:
        """Whether the other side ends it within a moment; what it sends before is skipped."""
        try:
            async with asyncio.timeout(60):
                while await self._reader.read(1000):
                    pass
        except ConnectionError:
            return True
        return True


@asynccontextmanager
async def connected(port: int, tls: ssl.SSLContext | None = None) -> AsyncIterator[Peer]:
    name = "localhost" if tls else None
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls, server_hostname=name)
    try:
        yield Peer(reader, writer)
    finally:
        writer.transport.abort()
        await asyncio.sleep(0)


def port_of(kit: WaysInKit) -> int:
    return (kit.sockets.fluent.ports + kit.sockets.syslog.ports)[0]


class FailingPuts:
    """Stands before a gateway's puts: some fail, and none goes on before `gate` is open."""

    def __init__(self, kit: WaysInKit, *errors: Exception) -> None:
        self._put = kit.gateway.streams.put
        self._errors = list(errors)
        self.gate = asyncio.Event()
        self.gate.set()
        self.begun = asyncio.Event()
        self.calls = 0
        kit.gateway.streams.put = self.put  # type: ignore[method-assign]

    async def put(self, *arguments: Any, **named: Any) -> PutResult:
        self.calls += 1
        self.begun.set()
        await self.gate.wait()
        if self._errors:
            raise self._errors.pop(0)
        return await self._put(*arguments, **named)


# Fluent's acks


def test_a_chunk_is_acked_once_it_is_durable(tmp_path: Path) -> None:
    async def main() -> None:
        async with ways_in_kit(tmp_path, fluent()) as kit, connected(port_of(kit)) as peer:
            puts = FailingPuts(kit)
            puts.gate.clear()
            packed = msgpack.packb([1_700_000_000, {"n": 1}])
            peer.message("a", packed, {"chunk": "c1"})
            peer.message("b", gzip.compress(packed), {"chunk": "c2", "compressed": "gzip"})
            peer.message("b", [[1_700_000_000, {"n": 1}]], {})
            ack = asyncio.create_task(peer.answer())
            await asyncio.sleep(0.05)
            assert not ack.done()
            assert await kit.stored() == []
            puts.gate.set()
            assert await ack == {"ack": "c1"}
            assert await peer.answer() == {"ack": "c2"}
            stored = await kit.stored_when(3)
        found = [each.tags.get("tag") or each.contents["__tag__:tag"] for each in stored]
        assert found == ["a", "b", "b"]

    run(main())


def test_a_chunk_that_cannot_be_stored_is_not_acked(tmp_path: Path) -> None:
    async def main() -> None:
        async with ways_in_kit(tmp_path, fluent(put_ms=100)) as kit:
            FailingPuts(kit, *(Unavailable("no quorum") for _ in range(1_000)))
            async with connected(port_of(kit)) as peer:
                peer.message("a", 1_700_000_000, {"n": 1}, {"chunk": "c1"})
                assert await peer.is_cut()
            assert await kit.stored() == []

    run(main())


def test_an_outage_that_passes_is_waited_for(tmp_path: Path) -> None:
    async def main() -> None:
        async with ways_in_kit(tmp_path, fluent()) as kit:
            puts = FailingPuts(kit, Unavailable("no quorum"), Unavailable("no quorum"))
            async with connected(port_of(kit)) as peer:
                peer.message("a", 1_700_000_000, {"n": 1}, {"chunk": "c1"})
                assert await peer.answer() == {"ack": "c1"}
            assert puts.calls == 3
            assert len(await kit.stored()) == 1

    run(main())


def test_what_came_before_a_bad_message_is_stored(tmp_path: Path) -> None:
    async def main() -> None:
        async with ways_in_kit(tmp_path, fluent()) as kit:
            async with connected(port_of(kit)) as peer:
                peer.message("a", 1_700_000_000, {"n": 1}, {"chunk": "c1"})
                peer.message("a")
                peer.message("a", 1_700_000_000, {"n": 2}, {"chunk": "c2"})
                assert await peer.answer() == {"ack": "c1"}
                assert await peer.is_cut()
            assert len(await kit.stored()) == 1

    run(main())


# Fluent's handshake


def digest(salt: bytes, name: str, nonce: bytes, key: str) -> str:
    return hashlib.sha512(salt + name.encode() + nonce + key.encode()).hexdigest()


async def ping(peer: Peer, key: str) -> bytes:
    kind, options = await peer.answer()
    assert kind == "HELO"
    assert options["keepalive"] is True
    nonce: bytes = options["nonce"]
    peer.message("PING", "me", b"salt", digest(b"salt", "me", nonce, key), "", "")
    return nonce


def test_the_shared_key_lets_in(tmp_path: Path) -> None:
    async def main() -> None:
        given = fluent(fluent_peers=(), fluent_shared_key=KEY)
        async with ways_in_kit(tmp_path, given) as kit, connected(port_of(kit)) as peer:
            nonce = await ping(peer, KEY.reveal())
            # Right behind, before it was answered.
            peer.message("a", 1_700_000_000, {"n": 1}, {"chunk": "c1"})
            kind, is_in, reason, name, proof = await peer.answer()
            assert (kind, is_in, reason) == ("PONG", True, "")
            assert proof == digest(b"salt", name, nonce, KEY.reveal())
            assert await peer.answer() == {"ack": "c1"}
            assert len(await kit.stored()) == 1

    run(main())


def test_over_tls_fluent_is_the_same(tmp_path: Path) -> None:
    async def main() -> None:
        files = Certificates(tmp_path)
        given = settings(fluent_tls_listen="127.0.0.1:0", fluent_shared_key=KEY, **files.server)
        async with ways_in_kit(tmp_path, given) as kit:
            tls = files.client(has_certificate=False)
            async with connected(port_of(kit), tls) as peer:
                await ping(peer, KEY.reveal())
                assert (await peer.answer())[:2] == ["PONG", True]
                peer.message("a", 1_700_000_000, {"n": 1}, {"chunk": "c1"})
                assert await peer.answer() == {"ack": "c1"}
        given = settings(fluent_tls_listen="127.0.0.1:0", **files.server, **files.authorities)
        async with ways_in_kit(tmp_path / "other", given) as kit:
            tls = files.client(has_certificate=True)
            async with connected(port_of(kit), tls) as peer:
                peer.message("a", 1_700_000_000, {"n": 1}, {"chunk": "c1"})
                assert await peer.answer() == {"ack": "c1"}

    run(main())


def test_another_key_does_not_let_in(tmp_path: Path) -> None:
    async def main() -> None:
        given = fluent(fluent_peers=(), fluent_shared_key=KEY)
        async with ways_in_kit(tmp_path, given) as kit:
            async with connected(port_of(kit)) as peer:
                await ping(peer, "another key")
                peer.message("a", 1_700_000_000, {"n": 1}, {"chunk": "c1"})
                kind, is_in, *_ = await peer.answer()
                assert (kind, is_in) == ("PONG", False)
                assert await peer.is_cut()
            async with connected(port_of(kit)) as peer:
                peer.message("a", 1_700_000_000, {"n": 1}, {"chunk": "c1"})
                assert await peer.is_cut()
            async with connected(port_of(kit)) as peer:
                peer.send(b"\xdc\xff\xff" * 10)
                assert await peer.is_cut()
            assert await kit.stored() == []

    run(main())


def test_who_only_looks_whether_the_port_is_open_is_no_problem(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def main() -> None:
        given = fluent(fluent_peers=(), fluent_shared_key=KEY)
        async with ways_in_kit(tmp_path, given) as kit:
            for data in (b"", b"\x96"):
                _, writer = await asyncio.open_connection("127.0.0.1", port_of(kit))
                writer.write(data)
                writer.close()
                await writer.wait_closed()
                await asyncio.sleep(0.05)
                told = capsys.readouterr()
                assert ("handshake" in told.out + told.err) is bool(data)

    run(main())


def test_a_stranger_is_not_let_in(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def main() -> None:
        given = fluent(fluent_peers=("10.0.0.0/8",))
        async with ways_in_kit(tmp_path, given) as kit:
            for _ in range(3):
                async with connected(port_of(kit)) as peer:
                    peer.message("a", 1_700_000_000, {"n": 1})
                    assert await peer.is_cut()
            assert await kit.stored() == []
        told = capsys.readouterr()
        assert (told.out + told.err).count("connection refused") == 1

    run(main())


# Bounds


@pytest.mark.parametrize(
    ("given", "data"),
    [
        (syslog(syslog_message_bytes_max=500), b"<1>" + b"x" * 500),
        (syslog(syslog_message_bytes_max=500), b"501 <1>"),
        (fluent(fluent_message_bytes_max=2_000), b"\x93\xa1a\xc6\x00\x00\x08\x00"),
        (fluent(fluent_message_bytes_max=64 << 20, buffers_bytes_max=1 << 20),
         b"\x93\xa1a\xc6\x02\x00\x00\x00" + bytes(2 << 20)),
        (fluent(idle_ms=100), b""),
        (syslog(idle_ms=100), b"<1>unfinished"),
    ],
    ids=["line", "count", "message", "all buffers", "idle", "unfinished"],
)  # fmt: skip
def test_a_peer_that_takes_too_much_is_cut(
    tmp_path: Path, given: WaysInSettings, data: bytes
) -> None:
    async def main() -> None:
        async with ways_in_kit(tmp_path, given) as kit, connected(port_of(kit)) as peer:
            peer.send(data)
            assert await peer.is_cut()

    run(main())


def test_a_peer_that_does_not_read_its_acks_is_cut(tmp_path: Path) -> None:
    async def main() -> None:
        async with ways_in_kit(tmp_path, fluent(idle_ms=200)) as kit:
            with socket.create_connection(("127.0.0.1", port_of(kit))) as peer:
                peer.setblocking(False)
                loop = asyncio.get_running_loop()
                message = msgpack.packb(["a", 1_700_000_000, {}, {"chunk": "c" * 1_000}])
                with pytest.raises(ConnectionError):
                    async with asyncio.timeout(60):
                        while True:
                            await loop.sock_sendall(peer, message * 1_000)

    run(main())


def test_an_event_with_too_many_keys_is_left_out_and_its_chunk_acked(tmp_path: Path) -> None:
    async def main() -> None:
        async with ways_in_kit(tmp_path, fluent()) as kit, connected(port_of(kit)) as peer:
            large = {f"key {number}": number for number in range(5_000)}
            events = [[1_700_000_000, large], [1_700_000_000, {"message": "small"}]]
            peer.message("tag", events, {"chunk": "c"})
            assert await peer.answer() == {"ack": "c"}
            (stored,) = await kit.stored()
            assert stored.contents == {"message": "small"}

    run(main())


def test_connections_above_the_limit_are_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with ways_in_kit(tmp_path, syslog(connections_max=2)) as kit:
            port = port_of(kit)
            async with connected(port) as first, connected(port) as second:
                first.send(b"<1>a\n")
                second.send(b"<1>b\n")
                await kit.stored_when(2)
                async with connected(port) as third:
                    assert await third.is_cut()
                first.send(b"<1>c\n")
                await kit.stored_when(3)

    run(main())


@pytest.mark.parametrize("way", ["syslog", "fluent"])
def test_connections_that_send_nothing_do_not_keep_senders_out(tmp_path: Path, way: str) -> None:
    async def main() -> None:
        given = (
            syslog(connections_max=20)
            if way == "syslog"
            else fluent(connections_max=20, fluent_shared_key=KEY, fluent_peers=())
        )
        async with AsyncExitStack() as stack, ways_in_kit(tmp_path, given) as kit:
            port = port_of(kit)
            silent = [await stack.enter_async_context(connected(port)) for _ in range(40)]
            async with connected(port) as sender:
                if way == "syslog":
                    sender.send(b"<1>hello\n")
                    await kit.stored_when(1)
                else:
                    assert (await sender.answer())[0] == "HELO"
            assert await silent[0].is_cut()

    run(main())


@pytest.mark.parametrize("way", ["syslog", "fluent"])
def test_handshakes_that_stall_do_not_keep_senders_out(tmp_path: Path, way: str) -> None:
    async def main() -> None:
        files = Certificates(tmp_path)
        given = settings(
            **{f"{way}_tls_listen": "127.0.0.1:0"},
            connections_max=20,
            **files.server,
            **files.authorities,
        )
        async with AsyncExitStack() as stack, ways_in_kit(tmp_path, given) as kit:
            port = port_of(kit)
            silent = [await stack.enter_async_context(connected(port)) for _ in range(40)]
            assert await silent[0].is_cut()
            server = kit.sockets.syslog if way == "syslog" else kit.sockets.fluent
            assert server._admission.unauthenticated_count == BOUND_MIN
            async with connected(port, files.client(has_certificate=True)) as sender:
                if way == "syslog":
                    sender.send(b"<1>hello\n")
                else:
                    sender.message("a", 1_700_000_000, {"n": 1}, {"chunk": "c1"})
                    assert await sender.answer() == {"ack": "c1"}
                await kit.stored_when(1)

    run(main())


@pytest.mark.parametrize("by", ["key", "certificate"])
def test_who_has_logged_in_is_not_displaced_though_it_has_sent_nothing(
    tmp_path: Path, by: str
) -> None:
    async def main() -> None:
        files = Certificates(tmp_path)
        given = (
            fluent(connections_max=20, fluent_shared_key=KEY, fluent_peers=())
            if by == "key"
            else settings(
                fluent_listen="127.0.0.1:0",
                fluent_tls_listen="127.0.0.1:0",
                fluent_peers=("127.0.0.1",),
                connections_max=20,
                **files.server,
                **files.authorities,
            )
        )
        async with AsyncExitStack() as stack, ways_in_kit(tmp_path, given) as kit:
            ports = kit.sockets.fluent.ports
            tls = None if by == "key" else files.client(has_certificate=True)
            sender = await stack.enter_async_context(connected(ports[-1], tls))
            if by == "key":
                await ping(sender, KEY.reveal())
                assert (await sender.answer())[:2] == ["PONG", True]
            strangers = [await stack.enter_async_context(connected(ports[0])) for _ in range(30)]
            assert await strangers[0].is_cut()
            sender.message("a", 1_700_000_000, {"n": 1}, {"chunk": "c1"})
            assert await sender.answer() == {"ack": "c1"}

    run(main())


def test_a_sender_that_is_too_fast_waits_and_its_messages_share_puts(tmp_path: Path) -> None:
    async def main() -> None:
        async with ways_in_kit(tmp_path, syslog()) as kit, connected(port_of(kit)) as peer:
            puts = FailingPuts(kit)
            puts.gate.clear()
            peer.send(b"<1>first\n")
            await asyncio.sleep(0.02)
            for number in range(1_000):
                peer.send(b"<1>%d\n" % number)
            await asyncio.sleep(0.02)
            assert puts.calls == 1
            puts.gate.set()
            stored = await kit.stored_when(1_001)
            assert puts.calls <= 5
        assert [each.contents["message"] for each in stored[1:]] == [
            str(number) for number in range(1_000)
        ]

    run(main())


@pytest.mark.parametrize(
    ("given", "module", "message"),
    [
        (syslog(), syslog_module, b"<1>a\n"),
        (fluent(), fluent_forward, msgpack.packb(["a", 1_700_000_000, {}])),
    ],
    ids=["syslog", "fluent"],
)
def test_connections_take_turns_in_decoding(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    given: WaysInSettings,
    module: ModuleType,
    message: bytes,
) -> None:
    decoded, count = 0, 5_000
    decode_message = module.decode_message

    def spy(*arguments: Any, **named: Any) -> Any:
        nonlocal decoded
        decoded += 1
        return decode_message(*arguments, **named)

    monkeypatch.setattr(module, "decode_message", spy)
    # A turn has two halves of so many slices, and a slice more each at the most.
    most_allowed = 10 * (1 + SLICE_BYTES // (len(message) + 99))

    async def main() -> None:
        async with ways_in_kit(tmp_path, given) as kit, AsyncExitStack() as stack:
            peers = [await stack.enter_async_context(connected(port_of(kit))) for _ in range(3)]
            async with counting(lambda: decoded) as most:
                for peer in peers:
                    peer.send(message * count)
                await until(lambda: decoded == 3 * count)
            assert most.in_a_turn <= most_allowed < count
            assert len(await kit.stored_when(3 * count)) == 3 * count

    run(main())


def test_a_turn_looks_at_so_many_values_of_a_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scanned, count = 0, 500_000
    scan = MessageReader._scan

    def spy(reader: MessageReader, values_max: int) -> int:
        nonlocal scanned
        found = scan(reader, values_max)
        scanned += found
        return found

    monkeypatch.setattr(MessageReader, "_scan", spy)

    async def main() -> None:
        async with ways_in_kit(tmp_path, fluent()) as kit, connected(port_of(kit)) as peer:
            async with counting(lambda: scanned) as most:
                peer.send(b"\xdd" + count.to_bytes(4, "big") + b"\x01" * count)
                await until(lambda: scanned == count + 1)
            # The first slice of what was read, and the next one, which then waits for its turn.
            assert most.in_a_turn <= 10 * 8_192 < 256 << 10

    run(main())


def test_what_was_read_is_stored_before_the_end(tmp_path: Path) -> None:
    async def main() -> None:
        async with ways_in_kit(tmp_path, syslog()) as kit, connected(port_of(kit)) as peer:
            puts = FailingPuts(kit)
            puts.gate.clear()
            peer.send(b"<1>a\n")
            await puts.begun.wait()
            closing = asyncio.create_task(kit.sockets.close())
            await asyncio.sleep(0.02)
            assert not closing.done()
            puts.gate.set()
            await closing
            assert len(await kit.stored()) == 1

    run(main())


def test_a_logstore_that_is_missing_closes_the_connection(tmp_path: Path) -> None:
    async def main() -> None:
        given = syslog(syslog_logstore="missing")
        async with ways_in_kit(tmp_path, given) as kit, connected(port_of(kit)) as peer:
            peer.send(b"<1>a\n")
            assert await peer.is_cut()

    run(main())


def test_records_that_fit_nowhere_are_dropped_alone(tmp_path: Path) -> None:
    async def main() -> None:
        async with ways_in_kit(tmp_path, fluent()) as kit, connected(port_of(kit)) as peer:
            events = [[1_700_000_000, {"text": text}] for text in ("a", "x" * (5 << 20), "b")]
            peer.message("a", events, {"chunk": "c"})
            assert await peer.answer() == {"ack": "c"}
            assert [each.contents["text"] for each in await kit.stored()] == ["a", "b"]

    run(main())


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    async def main() -> None:
        async with ways_in_kit(tmp_path / "a", syslog()) as kit:
            taken = f"127.0.0.1:{port_of(kit)}"
            with pytest.raises(Unavailable, match=taken):
                async with ways_in_kit(tmp_path / "b", settings(
                    syslog_listen=taken, syslog_peers=LOCAL
                )):  # fmt: skip
                    pass

    run(main())


# Who is let in, in settings


@pytest.mark.parametrize(
    "given",
    [
        {"syslog_listen": "127.0.0.1:0"},
        {"syslog_udp_listen": "127.0.0.1:0"},
        {"fluent_listen": "127.0.0.1:0"},
        {"syslog_listen": "127.0.0.1:0", "client_authorities": "file"},
        {"syslog_tls_listen": "127.0.0.1:0", "certificate": "file", "key": "file"},
        {"syslog_tls_listen": "127.0.0.1:0", "syslog_peers": LOCAL},
        {"syslog_listen": "127.0.0.1:0", "syslog_peers": LOCAL, "syslog_project": ""},
        {"syslog_peers": ("nowhere",)},
        {"fluent_peers": ("10.0.0.1/8",)},
        {"fluent_listen": "127.0.0.1:65536", "fluent_peers": LOCAL},
    ],
)
def test_settings_that_would_let_nobody_or_anybody_in_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(
        ValueError, match=r"nobody|certificate and key|_project|network|host bits|65535"
    ):
        settings(**given)


@pytest.mark.parametrize(
    ("host", "is_in"),
    [
        ("10.1.2.3", True),
        ("::ffff:10.1.2.3", True),
        ("11.1.2.3", False),
        ("fd00::1%eth0", True),
        ("fe80::1", False),
        ("", False),
        ("localhost", False),
    ],
)
def test_a_peer_is_known_by_its_network(host: str, is_in: bool) -> None:
    assert (host in AllowedNetworks(("10.0.0.0/8", "fd00::/8"))) is is_in
    assert host not in AllowedNetworks(())


def test_invalid_input_is_not_waited_for(tmp_path: Path) -> None:
    async def main() -> None:
        async with ways_in_kit(tmp_path, syslog()) as kit:
            puts = FailingPuts(kit, InvalidInput("never"))
            async with connected(port_of(kit)) as peer:
                peer.send(b"<1>a\n")
                assert await peer.is_cut()
            assert puts.calls == 1

    run(main())
