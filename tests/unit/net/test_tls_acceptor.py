"""Connections amid a TLS handshake count: the oldest make room, and none outlives its listener."""

import asyncio
import contextlib
import errno
import os
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.kits.net.rpc import CLIENT, CLUSTER, ECHO, NODE, OPERATOR, Handlers, dial, serving
from tests.kits.running import until
from tests.unit.net.conftest import Run
from tests.unit.net.test_rpc_tls import Files

from raftwood.base.errors import Overloaded, Unavailable
from raftwood.base.settings import ConnectionSettings
from raftwood.net import ClientCredentials, ClientTls, ServerLimits, ServerTls, tls_acceptor
from raftwood.net.http_listener import HttpLimits, HttpListener
from raftwood.net.listeners import BOUND_MIN

BY_CERTIFICATE = ClientCredentials(cluster_id=CLUSTER, identity=CLIENT)
FOREVER_MS = 3_600_000
HELLO_BEGINS = b"\x16\x03\x01\x02\x00\x01"


@pytest.fixture
def files(tmp_path: Path) -> Files:
    made = Files(tmp_path)
    for identity in (NODE, CLIENT, OPERATOR):
        made.issue(identity)
    return made


@contextlib.asynccontextmanager
async def stalled(port: int, count: int) -> AsyncIterator[list[asyncio.StreamReader]]:
    """Connections amid a handshake: some say nothing, some a part of the first message."""
    opened = []
    for number in range(count):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        if number % 2:
            writer.write(HELLO_BEGINS)
        opened.append((reader, writer))
    try:
        yield [reader for reader, _ in opened]
    finally:
        for _, writer in opened:
            writer.transport.abort()
        await asyncio.sleep(0)


async def end_of(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(60):
        try:
            return await reader.read()
        except ConnectionError:
            return b""


@pytest.mark.parametrize("does_close", [False, True])
def test_handshakes_that_stall_do_not_keep_clients_of_rpc_out(
    run: Run, files: Files, does_close: bool
) -> None:
    async def main() -> None:
        limits = ServerLimits(connections_max=24, handshake_timeout_ms=FOREVER_MS)
        tls = ServerTls(files.of(NODE))
        theirs = ClientTls(files.of(CLIENT))
        async with serving(Handlers().service, limits=limits, tls=tls) as (server, port):
            known = await dial(port, credentials=BY_CERTIFICATE, tls=theirs)
            async with stalled(port, 40) as readers:
                assert await end_of(readers[0]) == b"", "the oldest goes, without a word"
                await until(lambda: server.admission.count == 1 + BOUND_MIN)
                assert server.admission.unauthenticated_count == BOUND_MIN
                async with await dial(port, credentials=BY_CERTIFICATE, tls=theirs) as late:
                    assert await late.call(ECHO, b"late", 60_000) == b"late"
                assert await known.call(ECHO, b"known", 60_000) == b"known"
                assert server.admission.dropped["unauthenticated"] >= 40 - BOUND_MIN
                if does_close:
                    await known.close()
                    await server.close()
                    assert [await end_of(reader) for reader in readers] == [b""] * 40
                    assert server.admission.count == 0
            await known.close()
            await until(lambda: server.admission.count == 0)

    run(main())


def test_handshakes_that_stall_do_not_keep_clients_of_http_out(run: Run, files: Files) -> None:
    async def hello(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"hello"})

    async def main() -> None:
        context = ssl.create_default_context(cafile=files.authorities)
        limits = HttpLimits(connections_max=24, request_ms=FOREVER_MS)
        tls = ServerTls(files.of(NODE, trusting=False)).context
        listener = await HttpListener.start(hello, "127.0.0.1:0", limits, tls=tls)
        port = int(listener.address.rpartition(":")[2])
        async with stalled(port, 40) as readers:
            assert await end_of(readers[0]) == b""
            assert listener.admission.count == BOUND_MIN
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", port, ssl=context, server_hostname="localhost"
            )
            writer.write(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            assert (await end_of(reader)).endswith(b"hello\r\n0\r\n\r\n")
            writer.close()
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                await writer.wait_closed()
            await listener.close()
            assert [await end_of(reader) for reader in readers] == [b""] * 40
            assert listener.admission.count == 0

    run(main())


def test_a_newcomer_without_room_hears_so_after_its_handshake(
    run: Run, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        limits = ServerLimits(
            connections_max=40, connections=ConnectionSettings(address_percent=50)
        )
        tls, theirs = ServerTls(files.of(NODE)), ClientTls(files.of(CLIENT))
        async with (
            contextlib.AsyncExitStack() as stack,
            serving(Handlers().service, limits=limits, tls=tls) as (server, port),
        ):
            for _ in range(20):
                connection = await dial(port, credentials=BY_CERTIFICATE, tls=theirs)
                await stack.enter_async_context(connection)
            with pytest.raises(Overloaded, match="address_percent"):
                await dial(port, credentials=BY_CERTIFICATE, tls=theirs)
            monkeypatch.setattr(tls_acceptor, "REFUSED_MAX", 0)
            with pytest.raises(Unavailable):
                await dial(port, credentials=BY_CERTIFICATE, tls=theirs)
            assert server.admission.count == 20
            assert not server._acceptors[0].refused

    run(main())


def test_a_handshake_still_has_its_time(run: Run, files: Files) -> None:
    async def main() -> None:
        limits = ServerLimits(handshake_timeout_ms=50)
        tls = ServerTls(files.of(NODE))
        async with (
            serving(Handlers().service, limits=limits, tls=tls) as (server, port),
            stalled(port, 2) as readers,
        ):
            assert [await end_of(reader) for reader in readers] == [b""] * 2
            await until(lambda: server.admission.count == 0)

    run(main())


def test_a_connection_for_which_no_descriptor_is_left_ends_and_counts_no_more(
    run: Run, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(_descriptor: int) -> int:
        raise OSError(errno.EMFILE, "too many open files")

    async def main() -> None:
        tls, theirs = ServerTls(files.of(NODE)), ClientTls(files.of(CLIENT))
        async with serving(Handlers().service, tls=tls) as (server, port):
            with monkeypatch.context() as patch:
                patch.setattr(os, "dup", none_left)
                async with stalled(port, 2) as readers:
                    assert [await end_of(reader) for reader in readers] == [b""] * 2
            assert server.admission.count == 0
            async with await dial(port, credentials=BY_CERTIFICATE, tls=theirs) as late:
                assert await late.call(ECHO, b"late", 60_000) == b"late"

    run(main())


def test_no_socket_is_left_whatever_becomes_of_a_handshake(run: Run, files: Files) -> None:
    async def main() -> None:
        tls = ServerTls(files.of(NODE))
        async with serving(Handlers().service, tls=tls) as (server, port):
            before = len(os.listdir("/proc/self/fd"))
            async with stalled(port, 4):
                await until(lambda: server.admission.count == 4)
            for said in (b"GET / HTTP/1.1\r\n\r\n", HELLO_BEGINS):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(said)
                plain = writer.get_extra_info("socket")
                if said == HELLO_BEGINS:
                    plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                else:
                    await end_of(reader)
                writer.transport.abort()
            await until(lambda: server.admission.count == 0)
            await until(lambda: len(os.listdir("/proc/self/fd")) == before)
            assert not server._acceptors[0].tasks

    run(main())
