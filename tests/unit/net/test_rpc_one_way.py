"""One-way messages: what is handed on, what closes the connection, and what bounds them."""

import asyncio
import itertools
import random
from collections.abc import Callable

import pytest
from tests.kits.net.rpc import (
    CLIENT,
    COUNT,
    ECHO,
    HOLD,
    SERVER_CREDENTIALS,
    TELL,
    WAIT,
    Handlers,
    dial,
    raw_peer,
    raw_server,
    serving,
)
from tests.kits.running import until
from tests.unit.net.conftest import Run

from raftwood.base.errors import (
    Conflict,
    ConnectionLost,
    InternalError,
    InvalidInput,
    ProtocolError,
    RaftwoodError,
    TooLarge,
)
from raftwood.base.files import Buffer
from raftwood.net import ClientLimits, Identity, Method, Payload, ServerLimits
from raftwood.net.frames import FrameDecoder, FrameKind, encode_frame
from raftwood.net.handshake import PeerLimits, ServerHandshake
from raftwood.net.wire_errors import decode_error

OPERATORS_TELL = Method(21, "operators-tell", roles=("operator",))


def one_way(method: Method, payload: bytes = b"") -> bytes:
    return encode_frame(FrameKind.ONE_WAY, method=method.number, payload=payload)


@pytest.mark.parametrize("size", [0, 1, 100, 8_192, 8_193, 32_736, 32_737, 1 << 20, 8 << 20])
def test_a_message_of_any_size_arrives_with_who_sent_it(run: Run, size: int) -> None:
    async def main() -> None:
        listener = Handlers()
        async with (
            serving(listener.service) as (_, port),
            await dial(port) as connection,
        ):
            payload = random.Random(size).randbytes(size)
            third = size // 3
            shapes: list[Buffer | list[Buffer]] = [
                payload,
                bytearray(payload),
                memoryview(payload),
                [payload],
                [payload[:third], b"", bytearray(payload[third:])],
                [memoryview(payload)[:7], memoryview(payload)[7:]],
                [payload[at : at + 5_000] for at in range(0, size, 5_000)],
            ]
            for shape in shapes:
                assert connection.send(TELL, shape)
            await until(lambda: len(listener.told) == len(shapes))
            assert all(told == (CLIENT, payload) for told in listener.told)
            assert connection.requests_under_way == 0

    run(main())


def test_large_buffers_are_not_copied_on_their_way_to_the_transport(run: Run) -> None:
    async def main() -> None:
        listener = Handlers()
        async with serving(listener.service) as (_, port), await dial(port) as connection:
            large = bytes(1 << 16)
            written: list[Buffer] = []
            write_out = connection._write_out

            def record() -> None:
                written.extend(connection._out)
                write_out()

            connection._write_out = record  # type: ignore[method-assign]
            connection.send(TELL, [b"head", large, b"middle", b"more", large])
            connection.send(TELL, large)
            assert sum(part is large for part in written) == 3
            await until(lambda: len(listener.told) == 2)

    run(main())


def test_messages_and_calls_share_a_connection_in_order(run: Run) -> None:
    async def main() -> None:
        listener = Handlers()
        async with serving(listener.service) as (_, port), await dial(port) as connection:
            for number in range(2_000):
                assert connection.send(TELL, b"%d" % number)
            assert await connection.call(ECHO, b"after", 60_000) == b"after"
            assert [told[1] for told in listener.told] == [b"%d" % n for n in range(2_000)]

    run(main())


@pytest.mark.parametrize(
    "method", [Method(77, "unknown"), OPERATORS_TELL, ECHO, WAIT, COUNT], ids=lambda m: m.name
)
def test_a_message_nobody_may_take_closes_the_connection(run: Run, method: Method) -> None:
    async def main() -> None:
        listener = Handlers()
        listener.service.one_way(OPERATORS_TELL, lambda *told: listener.told.append(told))
        async with serving(listener.service) as (server, port):
            async with raw_peer(port) as peer:
                peer.send(one_way(method) + one_way(TELL))
                frame = await peer.frame()
                assert frame is not None
                assert frame[:3] == (FrameKind.ERROR, 0, 0)
                error = decode_error(frame[4])
                assert type(error) is ProtocolError
                assert str(method.number) in error.message
                assert await peer.frame() is None
            connection = await dial(port)
            assert connection.send(method, b"")
            await connection.wait_closed()
            assert connection.why_unusable is not None
            assert "takes no one-way messages" in connection.why_unusable.message
            assert not connection.send(TELL, b"")
            await until(lambda: server.connection_count == 0)
            assert listener.told == []

    run(main())


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (Conflict("an older message came later"), Conflict),
        (ProtocolError("unreadable"), ProtocolError),
        (ZeroDivisionError(), InternalError),
    ],
)
def test_a_handler_that_raises_closes_the_connection_and_says_why(
    run: Run, raised: Exception, expected: type[RaftwoodError]
) -> None:
    async def main() -> None:
        def fail(_peer: Identity, _payload: Payload) -> None:
            raise raised

        listener = Handlers()
        failing = Method(30, "failing")
        listener.service.one_way(failing, fail)
        async with serving(listener.service) as (_, port), raw_peer(port) as peer:
            peer.send(one_way(failing) + one_way(TELL))
            frame = await peer.frame()
            assert frame is not None
            error = decode_error(frame[4])
            assert type(error) is expected
            assert error.message == str(raised) or expected is InternalError
            assert await peer.frame() is None
            assert listener.told == []

    run(main())


def test_a_call_of_a_one_way_method_is_refused_and_the_connection_stands(run: Run) -> None:
    async def main() -> None:
        listener = Handlers()
        async with serving(listener.service) as (_, port), await dial(port) as connection:
            with pytest.raises(InvalidInput, match="never answered"):
                await connection.call(TELL, b"", 60_000)
            assert connection.send(TELL, b"still here")
            await until(lambda: listener.told == [(CLIENT, b"still here")])

    run(main())


def test_a_message_before_the_handshake_is_not_heard(run: Run) -> None:
    async def main() -> None:
        listener = Handlers()
        async with (
            serving(listener.service) as (_, port),
            raw_peer(port, authenticated=False) as peer,
        ):
            peer.send(one_way(TELL))
            frame = await peer.frame()
            assert frame is not None
            assert type(decode_error(frame[4])) is ProtocolError
            assert await peer.frame() is None
            assert listener.told == []

    run(main())


def test_a_message_above_the_servers_frame_limit_is_not_sent(run: Run) -> None:
    async def main() -> None:
        listener = Handlers()
        limits = ServerLimits(frame_bytes_max=1_000)
        async with (
            serving(listener.service, limits=limits) as (_, port),
            await dial(port) as connection,
        ):
            for payload in (bytes(1_001), [bytes(500), bytes(501)]):
                with pytest.raises(TooLarge):
                    connection.send(TELL, payload)
            assert connection.send(TELL, [bytes(500), bytes(500)])
            await until(lambda: listener.told == [(CLIENT, bytes(1_000))])

    run(main())


def test_messages_are_heard_while_requests_are_at_their_limit(run: Run) -> None:
    async def main() -> None:
        listener = Handlers()
        limits = ServerLimits(requests_in_flight_max=1)
        async with (
            serving(listener.service, limits=limits) as (_, port),
            await dial(port) as connection,
        ):
            held = connection.call(HOLD, b"", 60_000)
            await until(lambda: len(listener.held) == 1)
            assert connection.send(TELL, b"now")
            await until(lambda: listener.told == [(CLIENT, b"now")])
            listener.held[0].reply(b"")
            await held

    run(main())


def test_messages_behind_a_request_beyond_the_limit_come_once_reading_resumes(run: Run) -> None:
    async def main() -> None:
        listener = Handlers()
        limits = ServerLimits(requests_in_flight_max=1)
        async with serving(listener.service, limits=limits) as (_, port), raw_peer(port) as peer:
            for number in (1, 2, 3):
                peer.request(HOLD, number)
            await until(lambda: len(listener.held) == 1)
            await asyncio.sleep(0.02)
            for number in range(100):
                peer.send(one_way(TELL, b"%d" % number + bytes(10_000)))
            await asyncio.sleep(0.02)
            assert listener.told == []
            for done in range(3):
                await until(lambda done=done: len(listener.held) > done)  # type: ignore[misc]
                listener.held[done].reply(b"")
            await until(lambda: len(listener.told) == 100)

    run(main())


def test_a_draining_server_drops_messages(run: Run) -> None:
    async def main() -> None:
        listener = Handlers()
        async with serving(listener.service) as (server, port), raw_peer(port) as peer:
            connection = await dial(port)
            call = connection.call(WAIT, b"done", 60_000)
            await until(lambda: listener.started == 1)
            closing = asyncio.create_task(server.close(60_000))
            await until(lambda: not connection.is_usable)
            assert not connection.send(TELL, b"too late")
            peer.send(one_way(TELL, b"too late") + one_way(Method(77, "unknown")))
            peer.request(ECHO, 1)
            kinds = [frame[0] for frame in (await peer.frame(), await peer.frame()) if frame]
            assert kinds == [FrameKind.GOAWAY, FrameKind.ERROR]
            assert listener.told == []
            listener.release.set()
            assert await call == b"done"
            peer.writer.close()
            await closing

    run(main())


def test_messages_alone_keep_a_connection_from_being_idle(in_virtual_time: Run) -> None:
    async def main() -> None:
        listener = Handlers()
        limits = ServerLimits(idle_timeout_ms=80, ping_interval_ms=20, ping_timeout_ms=60)
        async with serving(listener.service, limits=limits) as (_, port):
            connection = await dial(
                port, limits=ClientLimits(ping_interval_ms=20, ping_timeout_ms=60)
            )
            for _ in range(30):
                assert connection.send(TELL, b"")
                await asyncio.sleep(0.01)
            await connection.wait_closed()

    in_virtual_time(main())


def deaf_server(released: asyncio.Event) -> Callable[..., object]:
    """Shakes hands, then takes no bytes until it is released."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        decoder = FrameDecoder()
        limits = PeerLimits(16 << 20, 9, 1 << 20, 9)
        handshake = ServerHandshake(SERVER_CREDENTIALS, random.Random(1), limits)
        while handshake.peer is None:
            for frame in decoder.feed(await reader.read(1 << 16)):
                writer.write(handshake.received(frame))
        await released.wait()
        while await reader.read(1 << 20):
            pass

    return handle


@pytest.mark.parametrize("size", [1_000, 100_000, 8 << 20])
@pytest.mark.parametrize("limit", [1 << 20, 32 << 20])
def test_what_a_deaf_server_leaves_unsent_is_bounded(run: Run, size: int, limit: int) -> None:
    async def main() -> None:
        released = asyncio.Event()
        async with raw_server(deaf_server(released)) as port:  # type: ignore[arg-type]
            connection = await dial(port, limits=ClientLimits(unsent_bytes_max=limit))
            payload = bytes(size)

            def unsent() -> int:
                assert connection._transport is not None
                return connection._transport.get_write_buffer_size() + connection._out_bytes

            for sent in itertools.count():
                if sent % 100 == 0:
                    await asyncio.sleep(0)
                if not connection.send(TELL, payload):
                    break
            assert limit <= unsent() <= limit + size + 100
            assert connection.is_usable
            released.set()
            await until(lambda: connection.send(TELL, payload))
            await connection.close()

    run(main())


def test_a_server_that_takes_no_bytes_is_given_up_although_messages_are_added(
    in_virtual_time: Run,
) -> None:
    async def main() -> None:
        released = asyncio.Event()
        async with raw_server(deaf_server(released)) as port:  # type: ignore[arg-type]
            limits = ClientLimits(ping_interval_ms=30, ping_timeout_ms=60)
            connection = await dial(port, limits=limits)
            connection.send(TELL, bytes(12 << 20))
            while connection.send(TELL, b"a heartbeat"):  # noqa: ASYNC110  nobody tells
                await asyncio.sleep(0.002)
            assert isinstance(connection.why_unusable, ConnectionLost)
            assert "takes no bytes" in connection.why_unusable.message

    in_virtual_time(main())
