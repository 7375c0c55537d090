"""Streamed responses: order, errors, cancellation, and a slow reader that bounds the server."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.kits.net.rpc import COUNT, ECHO, Handlers, dial, raw_peer, serving
from tests.kits.running import until
from tests.unit.net.conftest import Run

from raftwood.base.errors import (
    DeadlineExceeded,
    InternalError,
    NotFound,
    Overloaded,
    ProtocolError,
    TooLarge,
)
from raftwood.net import Call, ClientLimits, Method, Payload, ServerLimits, Service
from raftwood.net.client import Stream
from raftwood.net.frames import HEADER_BYTES, FrameKind, encode_frame

NUMBERS = Method(20, "numbers")


def test_items_arrive_in_order_and_the_stream_ends(run: Run) -> None:
    async def numbers(_call: Call, payload: Payload) -> AsyncIterator[bytes]:
        for number in range(int(bytes(payload))):
            yield b"%d" % number

    async def main() -> None:
        service = Service()
        service.stream(NUMBERS, numbers)
        async with serving(service) as (server, port), await dial(port) as connection:
            for count in (0, 1, 1_000):
                items = [bytes(item) async for item in connection.stream(NUMBERS, b"%d" % count)]
                assert items == [b"%d" % number for number in range(count)]
            assert connection.requests_under_way == 0
            await until(lambda: server.task_count == 0)

    run(main())


@pytest.mark.parametrize("size", [0, 1_000, 100_000])
def test_a_slow_reader_bounds_what_the_server_produces(run: Run, size: int) -> None:
    window = 64 << 10

    async def main() -> None:
        handlers = Handlers()
        limits = ClientLimits(stream_window_bytes=window)
        async with (
            serving(handlers.service) as (_, port),
            await dial(port, limits=limits) as connection,
        ):
            total = 20_000 if size == 0 else 2_000
            async with connection.stream(COUNT, b"%d %d" % (total, size)) as items:
                await until(lambda: handlers.produced > 0)
                await asyncio.sleep(0.05)
                # The window, the item that overdrew it, and the one in the handler's hand.
                most = window // (size + HEADER_BYTES) + 2
                assert handlers.produced <= most
                assert items.buffered_bytes <= window + size + HEADER_BYTES
                read = 0
                async for item in items:
                    assert len(item) == size
                    read += 1
                    assert handlers.produced <= read + most
                assert read == total
            # Other calls go on beside a stream.
            assert await connection.call(ECHO, b"x", 60_000) == b"x"

    run(main())


def test_a_stream_that_fails_gives_its_items_and_then_the_error(run: Run) -> None:
    async def fail(_call: Call, payload: Payload) -> AsyncIterator[bytes]:
        yield b"one"
        if payload == b"known":
            raise NotFound("two is missing")
        raise ValueError("private")

    async def main() -> None:
        service = Service()
        service.stream(NUMBERS, fail)
        async with serving(service) as (_, port), await dial(port) as connection:
            for payload, expected in ((b"known", NotFound), (b"", InternalError)):
                stream = connection.stream(NUMBERS, payload)
                assert await anext(stream) == b"one"
                with pytest.raises(expected):
                    await anext(stream)

    run(main())


def test_leaving_a_stream_stops_the_server(run: Run) -> None:
    async def main() -> None:
        handlers = Handlers()
        async with serving(handlers.service) as (server, port), await dial(port) as connection:
            async with connection.stream(COUNT, b"1000000 10000") as items:
                async for _ in items:
                    break
            await until(lambda: handlers.stream_closed and server.task_count == 0)
            assert handlers.produced < 1_000
            assert connection.requests_under_way == 0

    run(main())


def test_a_stream_has_a_deadline_if_it_is_given_one(in_virtual_time: Run) -> None:
    async def forever(_call: Call, _payload: Payload) -> AsyncIterator[bytes]:
        yield b"first"
        await asyncio.Event().wait()

    async def main() -> None:
        service = Service()
        service.stream(NUMBERS, forever)
        async with serving(service) as (server, port), await dial(port) as connection:
            stream = connection.stream(NUMBERS, timeout_ms=40)
            assert await anext(stream) == b"first"
            with pytest.raises(DeadlineExceeded):
                await anext(stream)
            await until(lambda: server.task_count == 0)

    in_virtual_time(main())


def test_streams_of_a_connection_are_bounded_on_both_sides(run: Run) -> None:
    async def main() -> None:
        handlers = Handlers()
        limits = ServerLimits(streams_max=2)
        async with serving(handlers.service, limits=limits) as (_, port):
            async with await dial(port) as connection:
                streams = [connection.stream(COUNT, b"100000 10000") for _ in range(2)]
                with pytest.raises(Overloaded):
                    connection.stream(COUNT, b"1 1")
                streams[0].close()
                assert len([item async for item in connection.stream(COUNT, b"3 1")]) == 3
            async with raw_peer(port) as peer:
                for number in (1, 2, 3):
                    peer.request(COUNT, number, b"9 9")
                frame = await peer.frame()
                assert frame is not None
                assert (frame[0], frame[2]) == (FrameKind.ERROR, 3)

    run(main())


def test_an_item_above_the_clients_limit_fails_the_stream_only(run: Run) -> None:
    async def main() -> None:
        limits = ClientLimits(frame_bytes_max=1_000)
        async with (
            serving(Handlers().service) as (_, port),
            await dial(port, limits=limits) as connection,
        ):
            with pytest.raises(TooLarge):
                async for _ in connection.stream(COUNT, b"1 1001"):
                    pass
            assert await connection.call(ECHO, b"x", 60_000) == b"x"

    run(main())


def test_a_client_that_never_grants_credit_gets_nothing(run: Run) -> None:
    async def main() -> None:
        handlers = Handlers()
        async with serving(handlers.service) as (_, port), raw_peer(port) as peer:
            peer.request(COUNT, 1, b"100 100")
            peer.request(ECHO, 2)
            frame = await peer.frame()
            assert frame is not None
            assert frame[2] == 2
            await until(lambda: handlers.produced > 0)
            await asyncio.sleep(0.02)
            assert handlers.produced == 1
            peer.send(encode_frame(FrameKind.CREDIT, request_id=1, argument=1))
            frame = await peer.frame()
            assert frame is not None
            assert frame[0] == FrameKind.STREAM_ITEM
            await until(lambda: handlers.produced > 1)
            await asyncio.sleep(0.02)
            assert handlers.produced == 2

    run(main())


def test_a_server_that_ignores_credit_breaks_the_protocol() -> None:
    stream = Stream(100, lambda _: None, lambda: None)
    stream.push(bytes(100))
    with pytest.raises(ProtocolError):
        stream.push(b"")
