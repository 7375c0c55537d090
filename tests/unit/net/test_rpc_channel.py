"""A channel reconnects by itself and repeats nothing by itself."""

import asyncio
import itertools
import random

import pytest
from tests.kits.net.rpc import (
    CLIENT,
    CLUSTER,
    COUNT,
    ECHO,
    SERVER_CREDENTIALS,
    TELL,
    WAIT,
    Handlers,
    dial,
    serving,
)
from tests.kits.running import until
from tests.unit.net.conftest import Run

from raftwood.base.backoff import Backoff
from raftwood.base.errors import ConnectionLost, ShuttingDown, Unauthenticated, Unavailable
from raftwood.net import (
    Channel,
    ClientCredentials,
    Connection,
    Method,
    Secret,
    Server,
    TypedMethod,
)
from raftwood.net.handshake import Welcome

QUICK = Backoff(first_ms=5, longest_ms=20)


def test_a_channel_comes_back_after_its_server_does(run: Run) -> None:
    async def main() -> None:
        handlers = Handlers()
        server = Server(handlers.service, SERVER_CREDENTIALS, random.Random(1))
        port = await server.listen()
        async with Channel(lambda: dial(port), random.Random(4), QUICK) as channel:
            with pytest.raises(Unavailable):
                channel.call(ECHO, b"", 60_000)
            await channel.connected(60_000)
            call = channel.call(WAIT, b"", 60_000)
            await until(lambda: handlers.started == 1)
            await server.close(0)
            with pytest.raises((ConnectionLost, ShuttingDown)):
                await call
            await until(lambda: not channel.is_connected)
            with pytest.raises(Unavailable):
                channel.call(ECHO, b"", 60_000)
            again = Server(handlers.service, SERVER_CREDENTIALS, random.Random(1))
            await again.listen(port=port)
            await channel.connected(60_000)
            assert await channel.call(ECHO, b"back", 60_000) == b"back"
            assert len([item async for item in channel.stream(COUNT, b"3 1")]) == 3
            # The call that was lost was not sent again.
            assert handlers.started == 1
        await again.close(0)

    run(main())


def test_calls_on_a_draining_server_finish_beside_the_new_connection(run: Run) -> None:
    async def main() -> None:
        old, new = Handlers(), Handlers()
        first = Server(old.service, SERVER_CREDENTIALS, random.Random(1))
        port = await first.listen()
        async with Channel(lambda: dial(port), random.Random(4), QUICK) as channel:
            await channel.connected(60_000)
            call = channel.call(WAIT, b"old", 60_000)
            await until(lambda: old.started == 1)
            closing = asyncio.create_task(first.close(60_000))
            await until(lambda: not channel.is_connected)
            second = Server(new.service, SERVER_CREDENTIALS, random.Random(1))
            await second.listen(port=port)
            await channel.connected(60_000)
            assert await channel.call(ECHO, b"new", 60_000) == b"new"
            old.release.set()
            assert await call == b"old"
            await closing
        await second.close(0)

    run(main())


def test_a_channel_says_why_it_cannot_connect(in_virtual_time: Run) -> None:
    async def main() -> None:
        wrong = ClientCredentials(
            cluster_id=CLUSTER, identity=CLIENT, secret=Secret(b"a wrong secret of the client")
        )
        async with serving(Handlers().service) as (_, port):
            attempts = Channel(lambda: dial(port, credentials=wrong), random.Random(4), QUICK)
            async with attempts as channel:
                with pytest.raises(Unauthenticated):
                    await channel.connected(100)
                with pytest.raises(Unauthenticated):
                    channel.call(ECHO, b"", 60_000)
            # asyncio forgets a connection that it accepts in the turn in which its listener is
            # closed, and the last attempt may have come at any moment.
            await asyncio.sleep(0.05)

    in_virtual_time(main())


def test_attempts_are_spaced_by_bounded_backoff_with_jitter(in_virtual_time: Run) -> None:
    attempts: list[float] = []

    async def refuse() -> Connection:
        attempts.append(asyncio.get_running_loop().time())
        raise Unavailable("nobody")

    async def main() -> None:
        async with Channel(refuse, random.Random(4), QUICK):
            await asyncio.sleep(0.3)

    in_virtual_time(main())
    gaps = [later - earlier for earlier, later in itertools.pairwise(attempts)]
    assert 4 <= len(attempts) <= 40
    assert all(gap >= 0.002 for gap in gaps)
    source = random.Random(1)
    delays = [Backoff().delay_s(50, source) for _ in range(100)]
    assert all(2.5 <= delay <= 5 for delay in delays)
    assert max(delays) - min(delays) > 1


def test_a_closed_channel_says_so(run: Run) -> None:
    async def main() -> None:
        async with serving(Handlers().service) as (server, port):
            channel = Channel(lambda: dial(port), random.Random(4), QUICK)
            channel.start()
            await channel.connected(60_000)
            await channel.close()
            with pytest.raises(ShuttingDown):
                await channel.connected(60_000)
            await until(lambda: server.connection_count == 0)

    run(main())


def test_connecting_that_is_cancelled_in_its_last_moment_leaves_no_connection(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with serving(Handlers().service) as (server, port):
            dialling = asyncio.create_task(dial(port))
            original = Connection._welcomed

            def welcomed(connection: Connection, welcome: Welcome) -> None:
                original(connection, welcome)
                dialling.cancel()

            monkeypatch.setattr(Connection, "_welcomed", welcomed)
            with pytest.raises(asyncio.CancelledError):
                await dialling
            await until(lambda: server.connection_count == 0)

    run(main())


def test_structs_travel_through_a_channel(run: Run) -> None:
    async def double(_call: object, number: int) -> int:
        return number * 2

    async def main() -> None:
        handlers = Handlers()
        method = TypedMethod(30, "double", request=int, response=int)
        handlers.service.typed(method, double)
        async with (
            serving(handlers.service) as (_, port),
            Channel(lambda: dial(port), random.Random(4), QUICK) as channel,
        ):
            await channel.connected(60_000)
            assert await channel.ask(method, 21, 60_000) == 42

    run(main())


def test_a_channel_tells_of_each_connect_and_loss(run: Run) -> None:
    async def main() -> None:
        heard: list[tuple[bool, bool]] = []
        handlers = Handlers()
        server = Server(handlers.service, SERVER_CREDENTIALS, random.Random(1))
        port = await server.listen()
        channel = Channel(
            lambda: dial(port),
            random.Random(4),
            QUICK,
            on_change=lambda is_connected: heard.append((is_connected, channel.is_connected)),
        )
        async with channel:
            await until(lambda: heard == [(True, True)])
            await server.close(0)
            await until(lambda: heard == [(True, True), (False, False)])
            # Attempts that fail change nothing.
            await asyncio.sleep(0.03)
            assert len(heard) == 2
            second = Server(handlers.service, SERVER_CREDENTIALS, random.Random(1))
            await second.listen(port=port)
            await until(lambda: heard[2:] == [(True, True)])
        assert len(heard) == 3
        await second.close(0)

    run(main())


def test_a_channel_tells_once_that_nobody_listens_any_more(run: Run) -> None:
    async def main() -> None:
        gone: list[int] = []
        handlers = Handlers()
        server = Server(handlers.service, SERVER_CREDENTIALS, random.Random(1))
        port = await server.listen()
        connections: list[Connection] = []

        async def connect() -> Connection:
            connections.append(await dial(port))
            return connections[-1]

        channel = Channel(connect, random.Random(4), QUICK, on_gone=lambda: gone.append(1))
        async with channel:
            await channel.connected(60_000)
            # A connection that is lost alone is made anew, and says nothing of the server.
            await connections[0].close()
            await until(lambda: len(connections) == 2 and channel.is_connected)
            assert not gone
            await server.close(0)
            await until(lambda: len(gone) == 1)
            await asyncio.sleep(0.05)
            assert len(gone) == 1
            again = Server(handlers.service, SERVER_CREDENTIALS, random.Random(1))
            await again.listen(port=port)
            await channel.connected(60_000)
            await again.close(0)
            await until(lambda: len(gone) == 2)

    run(main())


def test_a_message_through_a_channel_without_connection_is_lost(run: Run) -> None:
    async def main() -> None:
        handlers = Handlers()
        server = Server(handlers.service, SERVER_CREDENTIALS, random.Random(1))
        port = await server.listen()
        async with Channel(lambda: dial(port), random.Random(4), QUICK) as channel:
            assert not channel.send(TELL, b"not connected yet")
            await channel.connected(60_000)
            assert channel.send(TELL, [b"in ", b"parts"])
            await until(lambda: handlers.told == [(CLIENT, b"in parts")])
            await server.close(0)
            await until(lambda: not channel.is_connected)
            assert not channel.send(TELL, b"connected no more")

    run(main())


def test_methods_show_their_name() -> None:
    assert repr(Method(1, "echo")) == "Method(1, 'echo')"
