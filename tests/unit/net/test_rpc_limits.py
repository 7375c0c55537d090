"""Every bound, with the memory behind it."""

import asyncio

import pytest
from tests.kits.net.rpc import (
    COUNT,
    ECHO,
    HOLD,
    WAIT,
    Handlers,
    dial,
    raw_peer,
    serving,
)
from tests.kits.running import until
from tests.unit.net.conftest import Run

from raftwood.base.errors import DeadlineExceeded, Overloaded, Unauthenticated
from raftwood.net import ClientLimits, ServerLimits
from raftwood.net.frames import FrameKind, encode_frame
from raftwood.net.server import ServerConnection
from raftwood.net.wire_errors import decode_error


def test_reading_pauses_while_too_many_requests_are_under_way(run: Run) -> None:
    async def main() -> None:
        handlers = Handlers()
        limits = ServerLimits(requests_in_flight_max=10)
        async with serving(handlers.service, limits=limits) as (_, port), raw_peer(port) as peer:
            for number in range(1, 501):
                peer.request(HOLD, number)
            await until(lambda: len(handlers.held) == 10)
            await asyncio.sleep(0.03)
            assert len(handlers.held) == 10
            for done in range(500):
                await until(lambda done=done: len(handlers.held) > done)  # type: ignore[misc]
                assert len(handlers.held) <= done + 10
                handlers.held[done].reply(b"")
            answered = [await peer.frame() for _ in range(500)]
            assert [frame[2] for frame in answered if frame] == list(range(1, 501))

    run(main())


def test_request_bytes_under_way_are_bounded(run: Run) -> None:
    async def main() -> None:
        handlers = Handlers()
        limits = ServerLimits(bytes_in_flight_max=1 << 20)
        async with serving(handlers.service, limits=limits) as (_, port), raw_peer(port) as peer:
            for number in range(1, 200):
                peer.request(HOLD, number, bytes(100_000))
            await until(lambda: len(handlers.held) >= 11)
            await asyncio.sleep(0.05)
            assert sum(call.size for call in handlers.held) <= (1 << 20) + 100_000
            for done in range(199):
                await until(lambda done=done: len(handlers.held) > done)  # type: ignore[misc]
                handlers.held[done].reply(b"")

    run(main())


def test_a_client_that_does_not_read_bounds_the_servers_memory(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions: list[ServerConnection] = []
    made = ServerConnection.connection_made

    def connection_made(self: ServerConnection, transport: asyncio.BaseTransport) -> None:
        sessions.append(self)
        made(self, transport)

    monkeypatch.setattr(ServerConnection, "connection_made", connection_made)

    async def main() -> None:
        answered = 0

        def answer(call: object, _payload: object) -> None:
            nonlocal answered
            answered += 1
            call.reply(bytes(100_000))  # type: ignore[attr-defined]

        def unsent() -> int:
            (session,) = sessions
            assert session._transport is not None
            return session._transport.get_write_buffer_size() + session._out_bytes

        handlers = Handlers()
        handlers.service._entries[ECHO.number].handler = answer
        limits = ServerLimits(unsent_bytes_max=1 << 20)
        async with serving(handlers.service, limits=limits) as (_, port), raw_peer(port) as peer:
            peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
            for number in range(1, 2_001):
                peer.request(ECHO, number)
            await until(lambda: sessions[0]._reading_is_paused)
            assert answered < 1_500
            assert unsent() <= (1 << 20) + 200_000
            peer.writer.transport.resume_reading()  # type: ignore[attr-defined]
            for number in range(1, 2_001):
                frame = await peer.frame()
                assert frame is not None
                assert (frame[2], len(frame[4])) == (number, 100_000)
                assert unsent() <= (1 << 20) + 200_000

    run(main())


def test_a_request_that_expired_in_the_backlog_is_not_carried_out(in_virtual_time: Run) -> None:
    async def main() -> None:
        handlers = Handlers()
        limits = ServerLimits(requests_in_flight_max=1)
        async with serving(handlers.service, limits=limits) as (_, port), raw_peer(port) as peer:
            peer.request(HOLD, 1)
            peer.send(
                encode_frame(FrameKind.REQUEST, method=HOLD.number, request_id=2, argument=20)
            )
            peer.send(encode_frame(FrameKind.REQUEST, method=HOLD.number, request_id=3))
            await until(lambda: len(handlers.held) == 1)
            await asyncio.sleep(0.05)
            handlers.held[0].reply(b"")
            await until(lambda: len(handlers.held) == 2)
            assert handlers.held[1].request_id == 3
            await peer.frame()
            late = await peer.frame()
            assert late is not None
            assert late[2] == 2
            assert type(decode_error(late[4])) is DeadlineExceeded

    in_virtual_time(main())


def test_a_cancel_is_heard_while_requests_wait_in_the_backlog(run: Run) -> None:
    async def main() -> None:
        handlers = Handlers()
        limits = ServerLimits(requests_in_flight_max=1)
        async with serving(handlers.service, limits=limits) as (_, port), raw_peer(port) as peer:
            # In one segment, since reading pauses after the first request.
            peer.send(
                b"".join(
                    encode_frame(FrameKind.REQUEST, method=HOLD.number, request_id=number)
                    for number in (1, 2, 3)
                )
                + encode_frame(FrameKind.CANCEL, request_id=2)
                + encode_frame(FrameKind.CANCEL, request_id=1)
            )
            await until(lambda: len(handlers.held) == 2)
            assert [call.request_id for call in handlers.held] == [1, 3]
            assert [call.is_open for call in handlers.held] == [False, True]

    run(main())


def test_a_client_waits_beyond_its_bound_and_then_refuses(run: Run) -> None:
    async def main() -> None:
        handlers = Handlers()
        limits = ClientLimits(requests_in_flight_max=4, requests_waiting_max=6)
        async with (
            serving(handlers.service) as (_, port),
            await dial(port, limits=limits) as connection,
        ):
            calls = [connection.call(HOLD, b"%d" % number, 60_000) for number in range(10)]
            with pytest.raises(Overloaded):
                connection.call(HOLD, b"", 60_000)
            await until(lambda: len(handlers.held) == 4)
            await asyncio.sleep(0.02)
            assert len(handlers.held) == 4
            calls[5].cancel()
            for done in range(9):
                await until(lambda done=done: len(handlers.held) > done)  # type: ignore[misc]
                handlers.held[done].reply(b"ok")
            await asyncio.gather(*calls[:5], *calls[6:])
            assert connection.requests_under_way == 0

    run(main())


def test_bytes_waiting_at_the_client_are_bounded(run: Run) -> None:
    async def main() -> None:
        handlers = Handlers()
        limits = ClientLimits(bytes_in_flight_max=1_000, bytes_waiting_max=1_000)
        async with (
            serving(handlers.service) as (_, port),
            await dial(port, limits=limits) as connection,
        ):
            # One request may exceed the bound where nothing else is under way.
            calls = [connection.call(HOLD, bytes(1_500), 60_000)]
            calls.append(connection.call(HOLD, bytes(900), 60_000))
            with pytest.raises(Overloaded):
                connection.call(HOLD, bytes(101), 60_000)
            await until(lambda: len(handlers.held) == 1)
            handlers.held[0].reply(b"")
            await until(lambda: len(handlers.held) == 2)
            handlers.held[1].reply(b"")
            await asyncio.gather(*calls)

    run(main())


def test_a_call_that_expires_while_it_waits_is_never_sent(in_virtual_time: Run) -> None:
    async def main() -> None:
        handlers = Handlers()
        limits = ClientLimits(requests_in_flight_max=1)
        async with (
            serving(handlers.service) as (_, port),
            await dial(port, limits=limits) as connection,
        ):
            first = connection.call(HOLD, b"", 60_000)
            second = connection.call(HOLD, b"", 30)
            with pytest.raises(DeadlineExceeded):
                await second
            await until(lambda: len(handlers.held) == 1)
            handlers.held[0].reply(b"")
            await first
            await connection.call(ECHO, b"", 60_000)
            assert len(handlers.held) == 1

    in_virtual_time(main())


def test_a_client_keeps_below_the_servers_limit(run: Run) -> None:
    async def main() -> None:
        handlers = Handlers()
        limits = ServerLimits(requests_in_flight_max=3)
        async with (
            serving(handlers.service, limits=limits) as (_, port),
            await dial(port) as connection,
        ):
            calls = [connection.call(HOLD, b"", 60_000) for _ in range(5)]
            await until(lambda: len(handlers.held) == 3)
            for done in range(5):
                await until(lambda done=done: len(handlers.held) > done)  # type: ignore[misc]
                handlers.held[done].reply(b"")
            await asyncio.gather(*calls)

    run(main())


def test_tasks_of_a_server_are_bounded(run: Run) -> None:
    async def main() -> None:
        handlers = Handlers()
        limits = ServerLimits(handler_tasks_max=2)
        async with (
            serving(handlers.service, limits=limits) as (server, port),
            await dial(port) as connection,
        ):
            calls = [connection.call(WAIT, b"", 60_000) for _ in range(3)]
            with pytest.raises(Overloaded):
                await calls[2]
            assert server.task_count == 2
            handlers.release.set()
            await asyncio.gather(*calls[:2])
            assert await connection.call(WAIT, b"room again", 60_000) == b"room again"

    run(main())


def test_connections_beyond_the_cap_are_refused_and_room_is_made_again(run: Run) -> None:
    async def main() -> None:
        limits = ServerLimits(connections_max=2)
        async with serving(Handlers().service, limits=limits) as (server, port):
            first, second = await dial(port), await dial(port)
            with pytest.raises(Overloaded):
                await dial(port)
            await first.close()
            await until(lambda: server.connection_count == 1)
            async with await dial(port) as third:
                assert await third.call(ECHO, b"in", 60_000) == b"in"
            await second.close()

    run(main())


def test_a_handshake_must_be_finished_in_time(in_virtual_time: Run) -> None:
    async def main() -> None:
        limits = ServerLimits(handshake_timeout_ms=40)
        async with (
            serving(Handlers().service, limits=limits) as (server, port),
            raw_peer(port, authenticated=False) as peer,
        ):
            frame = await peer.frame()
            assert frame is not None
            assert type(decode_error(frame[4])) is Unauthenticated
            assert await peer.frame() is None
            await until(lambda: server.connection_count == 0)

    in_virtual_time(main())


def test_a_client_at_the_servers_limit_is_still_heard(in_virtual_time: Run) -> None:
    async def main() -> None:
        handlers = Handlers()
        server_limits = ServerLimits(requests_in_flight_max=3, bytes_in_flight_max=3_000)
        client_limits = ClientLimits(ping_interval_ms=20, ping_timeout_ms=60)
        async with (
            serving(handlers.service, limits=server_limits) as (_, port),
            await dial(port, limits=client_limits) as connection,
        ):
            calls = [connection.call(HOLD, bytes(1_000), 60_000) for _ in range(4)]
            await until(lambda: len(handlers.held) == 3)
            # Pings are answered meanwhile, and a cancellation makes room for the fourth.
            await asyncio.sleep(0.2)
            calls[0].cancel()
            await until(lambda: len(handlers.held) == 4)
            assert not handlers.held[0].is_open
            for call in handlers.held[1:]:
                call.reply(b"")
            await asyncio.gather(*calls[1:])

    in_virtual_time(main())


def test_a_stream_with_a_large_request_is_refused_and_blocks_nothing(run: Run) -> None:
    async def main() -> None:
        handlers = Handlers()
        limits = ServerLimits(bytes_in_flight_max=1_000)
        async with serving(handlers.service, limits=limits) as (_, port), raw_peer(port) as peer:
            peer.request(COUNT, 1, b"9 9" + b" " * 998)
            peer.request(ECHO, 2)
            refused, answered = await peer.frame(), await peer.frame()
            assert refused is not None
            assert type(decode_error(refused[4])) is Overloaded
            assert answered is not None
            assert answered[:3] == (FrameKind.RESPONSE, 0, 2)

    run(main())
