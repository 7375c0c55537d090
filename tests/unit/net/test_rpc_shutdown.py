"""An orderly end: GOAWAY, what is under way is finished, nothing new begins."""

import asyncio
import socket

import pytest
from tests.kits.net.rpc import ECHO, WAIT, Handlers, dial, raw_peer, serving
from tests.kits.running import until
from tests.unit.net.conftest import Run

from raftwood.base.errors import ConnectionLost, ShuttingDown, Unavailable
from raftwood.net.frames import FrameKind
from raftwood.net.wire_errors import decode_error


def test_a_closing_server_finishes_what_is_under_way(run: Run) -> None:
    async def main() -> None:
        handlers = Handlers()
        async with serving(handlers.service) as (server, port):
            connection = await dial(port)
            call = connection.call(WAIT, b"finished", 60_000)
            await until(lambda: handlers.started == 1)
            closing = asyncio.create_task(server.close(60_000))
            await until(lambda: not connection.is_usable)
            with pytest.raises(ShuttingDown):
                connection.call(ECHO, b"", 60_000)
            with pytest.raises(Unavailable):
                await dial(port)
            assert not call.done()
            handlers.release.set()
            assert await call == b"finished"
            await closing
            assert server.connection_count == 0
            await connection.wait_closed()

    run(main())


def test_idle_clients_leave_at_once_when_the_server_closes(in_virtual_time: Run) -> None:
    async def main() -> None:
        async with serving(Handlers().service) as (server, port):
            connections = [await dial(port) for _ in range(3)]
            loop = asyncio.get_running_loop()
            began = loop.time()
            await server.close(60_000)
            assert loop.time() - began < 1.0
            for connection in connections:
                await connection.wait_closed()

    in_virtual_time(main())


def test_a_new_request_to_a_draining_server_is_told_so(run: Run) -> None:
    async def main() -> None:
        handlers = Handlers()
        async with serving(handlers.service) as (server, port), raw_peer(port) as peer:
            peer.request(WAIT, 1)
            await until(lambda: handlers.started == 1)
            closing = asyncio.create_task(server.close(60_000))
            frame = await peer.frame()
            assert frame is not None
            assert frame[0] == FrameKind.GOAWAY
            peer.request(ECHO, 2)
            frame = await peer.frame()
            assert frame is not None
            assert frame[2] == 2
            assert type(decode_error(frame[4])) is ShuttingDown
            handlers.release.set()
            frame = await peer.frame()
            assert frame is not None
            assert frame[:3] == (FrameKind.RESPONSE, 0, 1)
            await closing

    run(main())


def test_what_does_not_finish_in_time_is_cut(in_virtual_time: Run) -> None:
    async def main() -> None:
        handlers = Handlers()
        async with serving(handlers.service) as (server, port):
            connection = await dial(port)
            call = connection.call(WAIT, b"", 60_000)
            await until(lambda: handlers.started == 1)
            await server.close(30)
            assert (server.task_count, server.connection_count) == (0, 0)
            assert handlers.cancelled == 1
            # It may have been carried out, which `ShuttingDown` would deny.
            with pytest.raises(ConnectionLost):
                await call
            await connection.wait_closed()

    in_virtual_time(main())


def test_a_server_closes_in_order_when_its_own_task_is_cancelled(run: Run) -> None:
    async def main() -> None:
        handlers = Handlers()
        async with serving(handlers.service) as (server, port):
            connection = await dial(port)
            call = connection.call(WAIT, b"", 60_000)
            await until(lambda: handlers.started == 1)

            async def serve() -> None:
                try:
                    await asyncio.get_running_loop().create_future()
                finally:
                    await server.close(30)
                    closed.append((server.task_count, server.connection_count))

            closed: list[tuple[int, int]] = []
            task = asyncio.create_task(serve())
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert closed == [(0, 0)]
            with pytest.raises((ShuttingDown, ConnectionLost)):
                await call
            await connection.wait_closed()

    run(main())


def test_closing_a_connection_fails_its_calls(run: Run) -> None:
    async def main() -> None:
        handlers = Handlers()
        async with serving(handlers.service) as (server, port):
            connection = await dial(port)
            call = connection.call(WAIT, b"", 60_000)
            await connection.close()
            with pytest.raises(ConnectionLost):
                await call
            await connection.close()
            await until(lambda: server.connection_count == 0 and server.task_count == 0)

    run(main())


@pytest.mark.parametrize("turns", range(5))
def test_a_connection_accepted_as_the_server_closes_is_closed_too(run: Run, turns: int) -> None:
    async def main() -> None:
        async with serving(Handlers().service) as (server, port):
            with socket.create_connection(("127.0.0.1", port), timeout=60) as peer:
                for _ in range(turns):
                    await asyncio.sleep(0)
                await server.close(0)
                # The kernel may have to say so where nobody had accepted it yet.
                try:
                    while peer.recv(4096):
                        pass
                except ConnectionResetError:
                    pass

    run(main())
