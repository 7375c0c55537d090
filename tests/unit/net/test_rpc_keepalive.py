"""Silence, death and idleness of peers."""

import asyncio
import random
import time

import pytest
from tests.kits.net.rpc import (
    ECHO,
    HOLD,
    SERVER_CREDENTIALS,
    WAIT,
    Handlers,
    dial,
    raw_peer,
    raw_server,
    serving,
)
from tests.kits.running import until
from tests.unit.net.conftest import Run

from raftwood.base.errors import ConnectionLost
from raftwood.net import ClientLimits, ServerLimits
from raftwood.net.frames import FrameDecoder, FrameKind, encode_frame
from raftwood.net.handshake import PeerLimits, ServerHandshake

QUICK = ServerLimits(ping_interval_ms=30, ping_timeout_ms=60)


def test_an_idle_connection_is_kept_alive_by_pings(in_virtual_time: Run) -> None:
    async def main() -> None:
        limits = ClientLimits(ping_interval_ms=20, ping_timeout_ms=60)
        async with (
            serving(Handlers().service, limits=QUICK) as (_, port),
            await dial(port, limits=limits) as connection,
        ):
            await asyncio.sleep(0.25)
            assert await connection.call(ECHO, b"alive", 60_000) == b"alive"

    in_virtual_time(main())


def test_a_process_that_stood_still_does_not_take_its_peer_for_dead(run: Run) -> None:
    async def main() -> None:
        limits = ClientLimits(ping_interval_ms=50, ping_timeout_ms=100)
        async with (
            serving(Handlers().service, limits=QUICK) as (_, port),
            await dial(port, limits=limits) as connection,
        ):
            for _ in range(3):
                time.sleep(0.4)  # noqa: ASYNC251  as if it were stopped
                assert await connection.call(ECHO, b"alive", 60_000) == b"alive"

    run(main())


def test_a_long_call_outlives_the_ping_timeout(in_virtual_time: Run) -> None:
    async def main() -> None:
        handlers = Handlers()
        limits = ClientLimits(ping_interval_ms=20, ping_timeout_ms=60)
        async with (
            serving(handlers.service, limits=QUICK) as (_, port),
            await dial(port, limits=limits) as connection,
        ):
            call = connection.call(WAIT, b"done", 60_000)
            await asyncio.sleep(0.25)
            handlers.release.set()
            assert await call == b"done"

    in_virtual_time(main())


def test_the_server_drops_a_dead_client_and_its_work(in_virtual_time: Run) -> None:
    async def main() -> None:
        handlers = Handlers()
        async with (
            serving(handlers.service, limits=QUICK) as (server, port),
            raw_peer(port) as peer,
        ):
            peer.request(WAIT, 1)
            await until(lambda: handlers.started == 1)
            frame = await peer.frame()
            assert frame is not None
            assert frame[0] == FrameKind.PING
            await until(lambda: server.connection_count == 0)
            await until(lambda: handlers.cancelled == 1)

    in_virtual_time(main())


def test_the_client_notices_a_dead_server(in_virtual_time: Run) -> None:
    async def fall_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        decoder = FrameDecoder()
        handshake = ServerHandshake(
            SERVER_CREDENTIALS, random.Random(1), PeerLimits(1 << 20, 9, 1 << 20, 9)
        )
        while handshake.peer is None:
            for frame in decoder.feed(await reader.read(1 << 16)):
                writer.write(handshake.received(frame))
        while await reader.read(1 << 16):
            pass

    async def main() -> None:
        limits = ClientLimits(ping_interval_ms=30, ping_timeout_ms=50)
        async with raw_server(fall_silent) as port:
            connection = await dial(port, limits=limits)
            with pytest.raises(ConnectionLost, match="silent"):
                await connection.call(ECHO, b"", 60_000)
            await connection.wait_closed()

    in_virtual_time(main())


def test_a_frame_that_trickles_in_is_given_up(in_virtual_time: Run) -> None:
    async def main() -> None:
        limits = ServerLimits(ping_interval_ms=30, ping_timeout_ms=500, frame_timeout_ms=80)
        async with (
            serving(Handlers().service, limits=limits) as (server, port),
            raw_peer(port) as peer,
        ):
            data = encode_frame(
                FrameKind.REQUEST, method=ECHO.number, request_id=1, payload=bytes(100)
            )
            for byte in data[:-1]:
                peer.send(bytes([byte]))
                await asyncio.sleep(0.005)
                if server.connection_count == 0:
                    break
            await until(lambda: server.connection_count == 0)

    in_virtual_time(main())


def test_a_client_that_takes_no_bytes_is_given_up(in_virtual_time: Run) -> None:
    async def main() -> None:
        handlers = Handlers()
        limits = ServerLimits(ping_interval_ms=30, ping_timeout_ms=50, unsent_bytes_max=1 << 16)
        async with (
            serving(handlers.service, limits=limits) as (server, port),
            raw_peer(port) as peer,
        ):
            peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
            for number in range(1, 100):
                peer.request(ECHO, number, bytes(200_000))
            await until(lambda: server.connection_count == 0)

    in_virtual_time(main())


def test_a_connection_without_requests_is_closed_and_one_at_work_is_not(
    in_virtual_time: Run,
) -> None:
    async def main() -> None:
        handlers = Handlers()
        limits = ServerLimits(idle_timeout_ms=80, ping_interval_ms=20, ping_timeout_ms=60)
        async with serving(handlers.service, limits=limits) as (server, port):
            idle, busy = await dial(port), await dial(port)
            call = busy.call(HOLD, b"", 60_000)
            await until(lambda: server.connection_count == 1)
            await idle.wait_closed()
            with pytest.raises(ConnectionLost):
                idle.call(ECHO, b"", 60_000)
            handlers.held[0].reply(b"kept")
            assert await call == b"kept"
            await until(lambda: server.connection_count == 0)
            await busy.wait_closed()

    in_virtual_time(main())
