"""Calls over a real socket: answers, errors, deadlines, cancellation, roles."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from tests.kits.net.rpc import (
    CLUSTER,
    COUNT,
    ECHO,
    HOLD,
    OPERATOR,
    SECRETS,
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
    ConnectionLost,
    DeadlineExceeded,
    InternalError,
    InvalidInput,
    InvariantViolated,
    NotFound,
    NotLeader,
    OutOfRange,
    PermissionDenied,
    ProtocolError,
    RaftwoodError,
    TooLarge,
    Unauthenticated,
    Unavailable,
    error_class,
)
from raftwood.net import (
    Call,
    ClientCredentials,
    ClientLimits,
    Identity,
    Method,
    Payload,
    Secret,
    ServerLimits,
    Service,
    TypedMethod,
)
from raftwood.net.frames import FrameKind, encode_frame
from raftwood.net.wire_errors import decode_error


class Sum(msgspec.Struct):
    numbers: list[int]


ADD = TypedMethod(10, "add", request=Sum, response=int)
OPERATE = Method(11, "operate", roles=("operator",))
FAIL = Method(12, "fail")
CRASH = Method(13, "crash")
CRASH_TASK = Method(14, "crash-task")
UNKNOWN = Method(99, "unknown")


def test_a_caller_learns_who_leads(run: Run) -> None:
    async def main() -> None:
        def follow(_call: Call, _payload: Payload) -> None:
            raise NotLeader("node 3 leads", leader=3)

        service = Service()
        service.fast(FAIL, follow)
        async with serving(service) as (_, port), await dial(port) as connection:
            with pytest.raises(NotLeader) as caught:
                await connection.call(FAIL, b"", 60_000)
            assert caught.value.leader == 3

    run(main())


@pytest.mark.parametrize("size", [0, 1, 100, 9_000, 32_736, 32_737, 65_536, 3 << 20])
def test_a_payload_of_any_size_is_echoed(run: Run, size: int) -> None:
    async def main() -> None:
        async with (
            serving(Handlers().service) as (_, port),
            await dial(port) as connection,
        ):
            payload = bytes(range(256)) * (size // 256) + bytes(size % 256)
            assert await connection.call(ECHO, payload, 60_000) == payload
            assert await connection.call(ECHO, memoryview(payload), 60_000) == payload

    run(main())


def test_pipelined_calls_get_their_own_answers(run: Run) -> None:
    async def main() -> None:
        async with (
            serving(Handlers().service) as (_, port),
            await dial(port) as connection,
        ):
            sizes = [number * 37 % 50_000 for number in range(300)]
            answers = await asyncio.gather(
                *(connection.call(ECHO, bytes(size), 60_000) for size in sizes)
            )
            assert [len(answer) for answer in answers] == sizes

    run(main())


def test_answers_may_come_in_another_order(run: Run) -> None:
    async def main() -> None:
        handlers = Handlers()
        async with serving(handlers.service) as (_, port), await dial(port) as connection:
            first = connection.call(HOLD, b"1", 60_000)
            second = connection.call(HOLD, b"2", 60_000)
            await until(lambda: len(handlers.held) == 2)
            handlers.held[1].reply(b"second")
            assert await second == b"second"
            assert not first.done()
            handlers.held[0].reply(b"first")
            handlers.held[0].reply(b"again: ignored")
            assert await first == b"first"

    run(main())


def test_structs_travel_through_typed_methods(run: Run) -> None:
    async def add(_call: Call, request: Sum) -> int:
        return sum(request.numbers)

    async def main() -> None:
        service = Service()
        service.typed(ADD, add)
        async with serving(service) as (_, port), await dial(port) as connection:
            assert await connection.ask(ADD, Sum([1, 2, 3]), 60_000) == 6
            with pytest.raises(InvalidInput, match="add"):
                await connection.call(ADD, b"\xc1", 60_000)

    run(main())


def test_an_answer_that_is_not_of_the_type_is_a_protocol_error() -> None:
    with pytest.raises(ProtocolError):
        ADD.decode_response(b"\xa1x")


@pytest.mark.parametrize("method", [FAIL, CRASH, CRASH_TASK])
def test_a_failing_handler_answers_and_the_connection_survives(
    run: Run, method: Method, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_call: Call, _payload: Payload) -> None:
        raise OutOfRange("10 to 20 are stored")

    def crash(_call: Call, _payload: Payload) -> None:
        raise ValueError("private detail")

    async def crash_task(_call: Call, _payload: Payload) -> bytes:
        raise ValueError("private detail")

    async def main() -> None:
        handlers = Handlers()
        handlers.service.fast(FAIL, fail)
        handlers.service.fast(CRASH, crash)
        handlers.service.task(CRASH_TASK, crash_task)
        expected = OutOfRange if method is FAIL else InternalError
        async with serving(handlers.service) as (_, port), await dial(port) as connection:
            with pytest.raises(expected) as failure:
                await connection.call(method, b"", 60_000)
            assert "private detail" not in failure.value.message
            assert await connection.call(ECHO, b"alive", 60_000) == b"alive"

    run(main())
    assert ("private detail" in capsys.readouterr().err) is (method is not FAIL)


def test_each_error_class_comes_out_as_itself(run: Run) -> None:
    classes: list[type[RaftwoodError]] = []

    def collect(root: type[RaftwoodError]) -> None:
        for child in root.__subclasses__():
            if error_class(child.code) is child:
                classes.append(child)
            collect(child)

    collect(RaftwoodError)

    def fail(_call: Call, payload: Payload) -> None:
        raise error_class(bytes(payload).decode())("as told")

    async def main() -> None:
        service = Service()
        service.fast(FAIL, fail)
        async with serving(service) as (_, port), await dial(port) as connection:
            for cls in classes:
                with pytest.raises(cls, match="as told") as failure:
                    await connection.call(FAIL, cls.code.encode(), 60_000)
                assert type(failure.value) is cls

    run(main())
    assert len(classes) > 20


def test_an_unknown_method_is_not_found(run: Run) -> None:
    async def main() -> None:
        async with (
            serving(Handlers().service) as (_, port),
            await dial(port) as connection,
        ):
            with pytest.raises(NotFound, match="99"):
                await connection.call(UNKNOWN, b"", 60_000)

    run(main())


def test_a_method_is_only_for_its_roles_and_handlers_learn_the_peer(run: Run) -> None:
    async def main() -> None:
        service = Service()
        service.fast(OPERATE, lambda call, _: call.reply(str(call.peer).encode()))
        operator = ClientCredentials(
            cluster_id=CLUSTER, identity=OPERATOR, secret=SECRETS[OPERATOR]
        )
        async with (
            serving(service) as (_, port),
            await dial(port) as connection,
            await dial(port, credentials=operator) as privileged,
        ):
            with pytest.raises(PermissionDenied, match="operate"):
                await connection.call(OPERATE, b"", 60_000)
            assert await privileged.call(OPERATE, b"", 60_000) == b"operator/o1"
            assert connection.server == Identity(role="node", node_id="n1")

    run(main())


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"secret": Secret(b"another secret of the client")}, Unauthenticated),
        ({"cluster_id": "other"}, Unauthenticated),
        ({"identity": OPERATOR}, Unauthenticated),
        ({"server": OPERATOR}, Unauthenticated),
    ],
)
def test_a_client_that_is_refused_learns_why(
    run: Run, changes: dict[str, Any], expected: type[RaftwoodError]
) -> None:
    async def main() -> None:
        values = {
            "cluster_id": CLUSTER,
            "identity": Identity(role="client", node_id="c1"),
            "secret": SECRETS[Identity(role="client", node_id="c1")],
            **changes,
        }
        async with serving(Handlers().service) as (server, port):
            with pytest.raises(expected):
                await dial(port, credentials=ClientCredentials(**values))
            await until(lambda: server.connection_count == 0)

    run(main())


def test_nothing_is_served_before_the_handshake(run: Run) -> None:
    async def main() -> None:
        async with (
            serving(Handlers().service) as (_, port),
            raw_peer(port, authenticated=False) as peer,
        ):
            peer.request(ECHO, 1, b"let me in")
            frame = await peer.frame()
            assert frame is not None
            assert frame[0] == FrameKind.ERROR
            assert type(decode_error(frame[4])) is ProtocolError
            assert await peer.frame() is None

    run(main())


def test_a_large_frame_before_the_handshake_ends_the_connection(run: Run) -> None:
    async def main() -> None:
        async with (
            serving(Handlers().service) as (_, port),
            raw_peer(port, authenticated=False) as peer,
        ):
            peer.send(encode_frame(FrameKind.HELLO, argument=1, payload=bytes(1_025)))
            frame = await peer.frame()
            assert frame is not None
            assert "limit is 1024" in decode_error(frame[4]).message
            assert await peer.frame() is None

    run(main())


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        encode_frame(FrameKind.RESPONSE, request_id=1),
        encode_frame(200),
        encode_frame(FrameKind.REQUEST | 0x100, method=1, request_id=1),
        encode_frame(FrameKind.REQUEST, method=HOLD.number, request_id=5) * 2,
        encode_frame(FrameKind.REQUEST, method=COUNT.number, request_id=5, payload=b"9 9") * 2,
    ],
)
def test_a_peer_that_breaks_the_protocol_is_told_and_disconnected(run: Run, data: bytes) -> None:
    async def main() -> None:
        async with serving(Handlers().service) as (server, port), raw_peer(port) as peer:
            peer.send(data)
            frame = await peer.frame()
            assert frame is not None
            assert type(decode_error(frame[4])) is ProtocolError
            assert await peer.frame() is None
            await until(lambda: server.connection_count == 0 and server.task_count == 0)

    run(main())


def test_a_call_without_an_answer_raises_at_its_deadline(in_virtual_time: Run) -> None:
    async def main() -> None:
        handlers = Handlers()
        async with serving(handlers.service) as (server, port), await dial(port) as connection:
            loop = asyncio.get_running_loop()
            began = loop.time()
            late = connection.call(WAIT, b"", 60)
            later = connection.call(WAIT, b"", 120)
            with pytest.raises(DeadlineExceeded):
                await late
            assert loop.time() - began == pytest.approx(0.06)
            with pytest.raises(DeadlineExceeded):
                await later
            assert loop.time() - began == pytest.approx(0.12)
            await until(lambda: handlers.cancelled == 2 and server.task_count == 0)
            assert connection.requests_under_way == 0

    in_virtual_time(main())


def test_the_server_gives_up_at_the_deadline_even_if_the_client_is_silent(
    in_virtual_time: Run,
) -> None:
    async def main() -> None:
        handlers = Handlers()
        async with serving(handlers.service) as (server, port), raw_peer(port) as peer:
            peer.send(
                encode_frame(FrameKind.REQUEST, method=WAIT.number, request_id=1, argument=30)
                + encode_frame(FrameKind.REQUEST, method=HOLD.number, request_id=2, argument=30)
            )
            for _ in range(2):
                frame = await peer.frame()
                assert frame is not None
                assert type(decode_error(frame[4])) is DeadlineExceeded
            await until(lambda: handlers.cancelled == 1 and server.task_count == 0)
            assert not handlers.held[0].is_open
            handlers.held[0].reply(b"too late")
            peer.request(ECHO, 3)
            frame = await peer.frame()
            assert frame is not None
            assert frame[:3] == (FrameKind.RESPONSE, 0, 3)

    in_virtual_time(main())


def test_a_call_without_time_or_too_large_is_not_sent(run: Run) -> None:
    async def main() -> None:
        async with (
            serving(Handlers().service, limits=ServerLimits(frame_bytes_max=1_000)) as (_, port),
            await dial(port) as connection,
        ):
            with pytest.raises(DeadlineExceeded):
                connection.call(ECHO, b"", 0)
            with pytest.raises(InvalidInput):
                connection.call(ECHO, b"", 1 << 33)
            with pytest.raises(TooLarge, match="1000"):
                connection.call(ECHO, bytes(1_001), 60_000)
            assert len(await connection.call(ECHO, bytes(1_000), 60_000)) == 1_000

    run(main())


def test_an_answer_above_the_clients_limit_is_an_error_and_not_a_broken_connection(
    run: Run,
) -> None:
    async def main() -> None:
        service = Service()
        service.fast(ECHO, lambda call, payload: call.reply(bytes(int(bytes(payload)))))
        limits = ClientLimits(frame_bytes_max=1_000)
        async with serving(service) as (_, port), await dial(port, limits=limits) as connection:
            with pytest.raises(TooLarge):
                await connection.call(ECHO, b"1001", 60_000)
            assert len(await connection.call(ECHO, b"1000", 60_000)) == 1_000

    run(main())


def test_cancelling_a_call_cancels_its_handler(run: Run) -> None:
    async def main() -> None:
        handlers = Handlers()
        async with serving(handlers.service) as (server, port), await dial(port) as connection:
            call = connection.call(WAIT, b"", 60_000)
            held = connection.call(HOLD, b"", 60_000)
            await until(lambda: handlers.started == 1 and len(handlers.held) == 1)
            call.cancel()
            held.cancel()
            await until(lambda: handlers.cancelled == 1 and not handlers.held[0].is_open)
            # The handler has run its last step; its task is forgotten in the turn after.
            await until(lambda: server.task_count == 0)
            assert connection.requests_under_way == 0
            assert await connection.call(ECHO, b"alive", 60_000) == b"alive"

    run(main())


def test_cancelling_the_waiting_task_cancels_the_call(in_virtual_time: Run) -> None:
    async def main() -> None:
        handlers = Handlers()
        async with serving(handlers.service) as (_, port), await dial(port) as connection:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await connection.call(WAIT, b"", 60_000)
            await until(lambda: handlers.cancelled == 1)

    in_virtual_time(main())


def test_an_answer_that_crosses_its_cancellation_is_ignored(run: Run) -> None:
    async def main() -> None:
        async with (
            serving(Handlers().service) as (_, port),
            await dial(port) as connection,
        ):
            for _ in range(20):
                call = connection.call(ECHO, b"", 60_000)
                await asyncio.sleep(0)
                call.cancel()
                assert await connection.call(ECHO, b"next", 60_000) == b"next"

    run(main())


def test_a_lost_connection_fails_its_calls_and_cancels_their_handlers(run: Run) -> None:
    async def main() -> None:
        handlers = Handlers()
        async with serving(handlers.service) as (server, port), await dial(port) as connection:
            calls = [connection.call(WAIT, b"", 60_000) for _ in range(3)]
            stream = connection.stream(COUNT, b"1000000 1000")
            await until(lambda: handlers.started == 3)
            connection.abandon()
            for call in calls:
                with pytest.raises(ConnectionLost):
                    await call
            with pytest.raises(ConnectionLost):
                async for _ in stream:
                    pass
            with pytest.raises(ConnectionLost):
                connection.call(ECHO, b"", 60_000)
            await until(lambda: handlers.cancelled == 3 and server.task_count == 0)
            await until(lambda: handlers.stream_closed and server.connection_count == 0)

    run(main())


def test_no_server_is_unavailable(run: Run) -> None:
    async def main() -> None:
        async with serving(Handlers().service) as (_, port):
            pass
        with pytest.raises(Unavailable, match=str(port)):
            await dial(port)

    run(main())


def test_a_server_that_does_not_answer_is_unavailable_in_time(in_virtual_time: Run) -> None:
    async def silent(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        while await reader.read(1024):
            pass

    async def main() -> None:
        async with raw_server(silent) as port:
            with pytest.raises(Unavailable, match="50 ms"):
                await dial(port, limits=ClientLimits(connect_timeout_ms=50))

    in_virtual_time(main())


@pytest.mark.parametrize(
    "answer",
    [b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", b"", encode_frame(FrameKind.PONG)],
)
def test_something_that_is_no_server_is_not_mistaken_for_one(run: Run, answer: bytes) -> None:
    async def other(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1024)
        writer.write(answer)

    async def main() -> None:
        async with raw_server(other) as port:
            with pytest.raises((ConnectionLost, ProtocolError)):
                await dial(port)

    run(main())


def test_methods_have_one_number_each() -> None:
    service = Service()
    handler: Callable[[Call, Payload], None] = lambda call, payload: call.reply(payload)  # noqa: E731
    service.fast(ECHO, handler)
    with pytest.raises(InvariantViolated):
        service.fast(Method(1, "other"), handler)
    with pytest.raises(InvariantViolated):
        Method(1 << 16, "large")
