"""Connections of simulated nodes: the same protocols as on a real loop, and the faults."""

import asyncio
import contextlib
import errno
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from raftwood.base.environment import Environment
from raftwood.testing import NetworkProfile, SimulatedLoop, Simulation, simulate
from raftwood.testing.sockets import SimulatedTransport, _Attempt

Scenario = Callable[[Simulation], Coroutine[Any, Any, Any]]


class Echo(asyncio.Protocol):
    transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)

    def pause_writing(self) -> None:
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        self.transport.resume_reading()


class BufferedEcho(asyncio.BufferedProtocol):
    transport: asyncio.Transport

    def __init__(self) -> None:
        self.buffer = bytearray(1000)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def get_buffer(self, sizehint: int) -> bytearray:
        assert sizehint
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.transport.write(bytes(self.buffer[:nbytes]))


async def stream_echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1000):
        writer.write(data)
        await writer.drain()
    writer.close()
    await writer.wait_closed()


async def start_echo(kind: str) -> Any:
    loop = asyncio.get_running_loop()
    if kind == "streams":
        return await asyncio.start_server(stream_echo, "127.0.0.1", 0)
    protocol = {"protocol": Echo, "buffered": BufferedEcho}[kind]
    return await loop.create_server(protocol, "127.0.0.1", 0)


async def echo_session(kind: str) -> bytes:
    """Runs on any loop."""
    server = await start_echo(kind)
    async with server:
        host, port = server.sockets[0].getsockname()[:2]
        assert port
        reader, writer = await asyncio.open_connection(host, port)
        received = bytearray()

        async def receive() -> None:
            while len(received) < 700_000:
                received.extend(await reader.read(65536))

        async with asyncio.TaskGroup() as group:
            group.create_task(receive())
            for number in range(70):
                writer.write(bytes([number]) * 5_000)
                writer.writelines([bytes([number]) * 2_000, b"x" * 3_000])
                await writer.drain()
        if kind != "streams":
            writer.close()
        else:
            writer.write_eof()
            assert await reader.read() == b""
            writer.close()
        await writer.wait_closed()
        await asyncio.sleep(0.1)
    return bytes(received)


EXPECTED = b"".join(bytes([n]) * 5_000 + bytes([n]) * 2_000 + b"x" * 3_000 for n in range(70))


@pytest.mark.parametrize("kind", ["streams", "protocol", "buffered"])
def test_echo_servers_run_alike_on_the_real_loop(kind: str) -> None:
    assert asyncio.run(echo_session(kind)) == EXPECTED


@pytest.mark.parametrize("kind", ["streams", "protocol", "buffered"])
def test_echo_servers_run_alike_on_the_simulated_loop(kind: str) -> None:
    profile = NetworkProfile(split_probability=0.5, short_read_probability=0.5)

    async def scenario(_: Simulation) -> bytes:
        return await echo_session(kind)

    assert simulate(3, scenario, network=profile).result == EXPECTED


def serve(kind: str = "protocol", port: int = 7000) -> Callable[[Environment], Any]:
    async def program(_: Environment) -> None:
        loop = asyncio.get_running_loop()
        if kind == "streams":
            await asyncio.start_server(stream_echo, "0.0.0.0", port)
        else:
            await loop.create_server(Echo, "0.0.0.0", port)
        await asyncio.sleep(1e6)

    return program


async def connected(simulation: Simulation) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    simulation.add_node("a").start(serve())
    await asyncio.sleep(0.1)
    return await asyncio.open_connection("a", 7000)


def test_a_name_leads_to_its_node_and_localhost_to_the_own_one() -> None:
    async def scenario(simulation: Simulation) -> None:
        simulation.add_node("a").start(serve())
        answers: list[str] = []

        async def client(_: Environment) -> None:
            for host in ("a", "localhost", "nobody"):
                try:
                    writer = (await asyncio.open_connection(host, 7000))[1]
                    answers.append(writer.get_extra_info("peername")[0])
                    writer.close()
                    await writer.wait_closed()
                except OSError as error:
                    answers.append(type(error).__name__)

        simulation.add_node("b").start(client)
        await asyncio.sleep(1)
        assert answers == ["a", "ConnectionRefusedError", "gaierror"]

    simulate(1, scenario)


def test_port_zero_gives_each_server_a_port_of_its_own() -> None:
    async def scenario(_: Simulation) -> None:
        loop = asyncio.get_running_loop()
        servers = [await loop.create_server(Echo, "127.0.0.1", 0) for _ in range(10)]
        assert len({server.sockets[0].getsockname()[1] for server in servers}) == 10
        for server in servers:
            server.close()
            await server.wait_closed()

    simulate(1, scenario)


def test_an_address_in_use_is_refused_until_it_is_closed() -> None:
    async def scenario(_: Simulation) -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(Echo, "127.0.0.1", 80)
        with pytest.raises(OSError, match="already in use") as caught:
            await loop.create_server(Echo, "0.0.0.0", 80)
        assert caught.value.errno == errno.EADDRINUSE
        server.close()
        async with await loop.create_server(Echo, "0.0.0.0", 80) as again:
            assert again.is_serving()
        assert not again.is_serving()
        assert again.sockets == ()

    simulate(1, scenario)


def test_a_server_that_does_not_serve_yet_refuses() -> None:
    async def scenario(_: Simulation) -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(Echo, "127.0.0.1", 80, start_serving=False)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", 80)
        await server.start_serving()
        writer = (await asyncio.open_connection("127.0.0.1", 80))[1]
        writer.close()
        await writer.wait_closed()
        server.close()
        await server.wait_closed()

    simulate(1, scenario)


@pytest.mark.parametrize(
    "options",
    [{"ssl": True}, {"sock": object()}, {"local_addr": ("a", 1)}, {"happy_eyeballs_delay": 0.2}],
)
def test_what_is_not_simulated_is_refused_when_connecting(options: dict[str, Any]) -> None:
    async def scenario(_: Simulation) -> None:
        await asyncio.get_running_loop().create_connection(Echo, "outside", 1, **options)

    with pytest.raises(NotImplementedError, match=next(iter(options))):
        simulate(1, scenario)


@pytest.mark.parametrize(
    "options", [{"ssl": object()}, {"sock": object()}, {"reuse_port": True}, {"invented": 1}]
)
def test_what_is_not_simulated_is_refused_when_serving(options: dict[str, Any]) -> None:
    async def scenario(_: Simulation) -> None:
        await asyncio.get_running_loop().create_server(Echo, "127.0.0.1", 1, **options)

    with pytest.raises(NotImplementedError, match=next(iter(options))):
        simulate(1, scenario)


def test_only_harmless_socket_options_are_taken() -> None:
    async def scenario(simulation: Simulation) -> None:
        _, writer = await connected(simulation)
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with pytest.raises(NotImplementedError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 1)
        writer.close()
        await writer.wait_closed()

    simulate(1, scenario)


def test_a_cut_goes_one_way_only() -> None:
    async def scenario(simulation: Simulation) -> None:
        arrived: dict[str, int] = {"a": 0, "b": 0}
        writers: dict[str, asyncio.StreamWriter] = {}

        async def count(name: str, reader: asyncio.StreamReader) -> None:
            while data := await reader.read(100):
                arrived[name] += len(data)

        async def server(_: Environment) -> None:
            async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                writers["a"] = writer
                await count("a", reader)

            await asyncio.start_server(accepted, "a", 7000)
            await asyncio.sleep(1e6)

        async def client(_: Environment) -> None:
            reader, writers["b"] = await asyncio.open_connection("a", 7000)
            await count("b", reader)

        simulation.add_node("a").start(server)
        await asyncio.sleep(0.1)
        simulation.add_node("b").start(client)
        await asyncio.sleep(0.1)
        simulation.network.cut(source="a", target="b")
        for writer in writers.values():
            writer.write(b"12345")
        await asyncio.sleep(5)
        assert arrived == {"a": 5, "b": 0}
        simulation.network.mend(source="a", target="b")
        await asyncio.sleep(1)
        assert arrived == {"a": 5, "b": 5}

    simulate(1, scenario)


@pytest.mark.parametrize("both_ways", [True, False])
def test_a_partition_that_lasts_ends_the_connection_at_its_sender(both_ways: bool) -> None:
    async def scenario(simulation: Simulation) -> float:
        reader, writer = await connected(simulation)
        if both_ways:
            simulation.network.partition(["a"], ["outside"])
        else:
            simulation.network.cut(source="a", target="outside")
        began = simulation.now
        writer.write(b"anybody there?")
        with pytest.raises(TimeoutError):
            await reader.read(1)
        writer.close()
        with pytest.raises(TimeoutError):
            await writer.wait_closed()
        return simulation.now - began

    assert 14 < simulate(1, scenario).result < 18


def test_connecting_through_a_partition_times_out_and_works_after_healing() -> None:
    async def scenario(simulation: Simulation) -> None:
        simulation.add_node("a").start(serve())
        await asyncio.sleep(0.1)
        simulation.network.partition(["a"], ["outside"])
        with pytest.raises(TimeoutError, match="timed out"):
            await asyncio.open_connection("a", 7000)
        simulation.network.heal()
        _, writer = await asyncio.open_connection("a", 7000)
        writer.close()
        await writer.wait_closed()

    simulate(1, scenario)


def test_a_killed_node_resets_its_connections_at_once() -> None:
    async def scenario(simulation: Simulation) -> None:
        reader, writer = await connected(simulation)
        simulation.machines["a"].kill()
        began = simulation.now
        with pytest.raises(ConnectionResetError):
            await reader.read(1)
        assert simulation.now - began < 0.1
        writer.close()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("a", 7000)

    simulate(1, scenario)


def test_a_node_without_power_says_nothing_until_it_is_back() -> None:
    async def scenario(simulation: Simulation) -> None:
        reader, writer = await connected(simulation)
        a = simulation.machines["a"]
        a.power_off()
        writer.write(b"hello")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await reader.read(1)
        with pytest.raises(TimeoutError):
            await asyncio.open_connection("a", 7000)
        a.start()
        # The new kernel does not know the connection.
        with pytest.raises(ConnectionResetError):
            await reader.read(1)
        writer.close()

    simulate(1, scenario)


@pytest.mark.parametrize("moment", [None, *range(40)])
def test_connecting_that_is_cancelled_leaves_no_connection(
    moment: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, while and (None) just when the connection comes about."""
    established = _Attempt._established

    async def dial(_: Environment) -> None:
        task = asyncio.create_task(asyncio.open_connection("a", 7000))

        def cancelled_at_once(attempt: _Attempt, transport: SimulatedTransport) -> None:
            established(attempt, transport)
            task.cancel()

        if moment is None:
            monkeypatch.setattr(_Attempt, "_established", cancelled_at_once)
            await asyncio.wait([task])
        else:
            await asyncio.sleep(moment * 0.0001)
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            (await task)[1].transport.abort()

    async def scenario(simulation: Simulation) -> None:
        _, writer = await connected(simulation)
        writer.transport.abort()
        simulation.add_node("b").start(dial)
        await asyncio.sleep(1)
        assert len(simulation.network.transports) == 0

    simulate(1, scenario)


def test_a_reset_hits_both_ends() -> None:
    async def scenario(simulation: Simulation) -> None:
        reader, writer = await connected(simulation)
        assert simulation.network.reset("a", "outside") == 2
        with pytest.raises(ConnectionResetError):
            await reader.read(1)
        writer.close()

    simulate(1, scenario)


def test_a_stalled_link_delays_and_loses_nothing() -> None:
    async def scenario(simulation: Simulation) -> float:
        reader, writer = await connected(simulation)
        simulation.network.stall(source="outside", target="a", seconds=7)
        began = simulation.now
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        writer.close()
        await writer.wait_closed()
        return simulation.now - began

    assert 7 < simulate(1, scenario).result < 7.1


class Flow(asyncio.Protocol):
    """Notes when it is told to stop and to go on."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.events: list[tuple[str, int]] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def pause_writing(self) -> None:
        self.events.append(("pause", self.transport.get_write_buffer_size()))

    def resume_writing(self) -> None:
        self.events.append(("resume", self.transport.get_write_buffer_size()))

    def connection_lost(self, exc: Exception | None) -> None:
        self.events.append(("lost", 0 if exc is None else 1))


class Sink(asyncio.Protocol):
    """Reads only when told."""

    transport: asyncio.Transport
    received = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.pause_reading()

    def data_received(self, data: bytes) -> None:
        self.received += len(data)


async def flow(simulation: Simulation) -> tuple[Flow, Sink]:
    sink = Sink()

    async def program(_: Environment) -> None:
        await asyncio.get_running_loop().create_server(lambda: sink, "a", 7000)
        await asyncio.sleep(1e6)

    simulation.add_node("a").start(program)
    await asyncio.sleep(0.1)
    loop = asyncio.get_running_loop()
    _, protocol = await loop.create_connection(Flow, "a", 7000)
    await asyncio.sleep(0.1)
    return protocol, sink


def test_a_reader_that_pauses_makes_the_writers_buffer_grow_to_its_water_marks() -> None:
    async def scenario(simulation: Simulation) -> None:
        protocol, sink = await flow(simulation)
        transport = protocol.transport
        transport.set_write_buffer_limits(high=5_000, low=1_000)
        assert transport.get_write_buffer_limits() == (1_000, 5_000)
        transport.write(bytes(10_000))
        await asyncio.sleep(1)
        assert transport.get_write_buffer_size() == 0
        transport.write(bytes(5_000))
        assert protocol.events == []
        transport.write(b"x")
        assert protocol.events == [("pause", 5_001)]
        await asyncio.sleep(1)
        sink.transport.resume_reading()
        await asyncio.sleep(1)
        assert [name for name, _ in protocol.events] == ["pause", "resume"]
        assert protocol.events[1][1] <= 1_000
        assert sink.received == 15_001
        transport.abort()
        await asyncio.sleep(1)
        assert protocol.events[-1] == ("lost", 0)

    simulate(1, scenario, network=NetworkProfile(socket_buffer_bytes=10_000))


def test_the_kernel_of_a_paused_node_takes_a_bounded_amount() -> None:
    async def scenario(simulation: Simulation) -> None:
        protocol, sink = await flow(simulation)
        sink.transport.resume_reading()
        simulation.machines["a"].pause()
        protocol.transport.write(bytes(30_000))
        await asyncio.sleep(60)
        assert protocol.transport.get_write_buffer_size() == 20_000
        assert sink.received == 0
        simulation.machines["a"].resume()
        await asyncio.sleep(1)
        assert sink.received == 30_000
        protocol.transport.close()
        await asyncio.sleep(1)

    simulate(1, scenario, network=NetworkProfile(socket_buffer_bytes=10_000))


def test_close_flushes_before_the_connection_is_lost() -> None:
    async def scenario(simulation: Simulation) -> None:
        protocol, sink = await flow(simulation)
        protocol.transport.write(bytes(100_000))
        protocol.transport.close()
        await asyncio.sleep(1)
        assert ("lost", 0) not in protocol.events
        sink.transport.resume_reading()
        await asyncio.sleep(1)
        assert protocol.events[-1] == ("lost", 0)
        assert sink.received == 100_000

    simulate(1, scenario, network=NetworkProfile(socket_buffer_bytes=10_000))


async def write_after_close() -> None:
    """Runs on any loop: a closed transport drops what is written, one after its EOF refuses it."""
    async with await asyncio.start_server(stream_echo, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()[:2]
        for ends in (False, True):
            reader, writer = await asyncio.open_connection(host, port)
            if ends:
                writer.write_eof()
            writer.close()
            if ends:
                with pytest.raises(RuntimeError, match="write_eof"):
                    writer.write(b"too late")
            else:
                writer.write(b"too late")
            await writer.wait_closed()
            assert await reader.read() == b""
        await asyncio.sleep(0.1)


def test_a_closed_transport_drops_what_is_written_as_a_real_one_does() -> None:
    asyncio.run(write_after_close())
    simulate(1, lambda _: write_after_close())


def test_a_failing_protocol_costs_its_connection_and_is_reported() -> None:
    class Failing(Echo):
        def data_received(self, data: bytes) -> None:
            raise ValueError(f"broken by {data!r}")

    async def scenario(_: Simulation) -> list[str]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulatedLoop)
        server = await loop.create_server(Failing, "127.0.0.1", 7000)
        reader, writer = await asyncio.open_connection("127.0.0.1", 7000)
        writer.write(b"x")
        with pytest.raises(ConnectionResetError):
            await reader.read()
        writer.close()
        server.close()
        errors = list(loop.errors)
        loop.errors.clear()
        return errors

    assert "broken" in simulate(1, scenario).result[0]


def test_writes_travel_in_pieces_and_together() -> None:
    sizes: list[int] = []

    class Sizes(Echo):
        def data_received(self, data: bytes) -> None:
            sizes.append(len(data))

    async def scenario(simulation: Simulation) -> None:
        async def program(_: Environment) -> None:
            await asyncio.get_running_loop().create_server(Sizes, "a", 7000)
            await asyncio.sleep(1e6)

        simulation.add_node("a").start(program)
        await asyncio.sleep(0.1)
        _, writer = await asyncio.open_connection("a", 7000)
        for _ in range(200):
            writer.write(bytes(100))
            await asyncio.sleep(0.00001)
        await asyncio.sleep(1)
        writer.close()
        await writer.wait_closed()

    simulate(1, scenario, network=NetworkProfile(split_probability=0.3, short_read_probability=0.3))
    assert sum(sizes) == 20_000
    assert min(sizes) < 100 < max(sizes)


def test_delay_spikes_happen_as_often_as_asked() -> None:
    async def scenario(simulation: Simulation) -> int:
        reader, writer = await connected(simulation)
        slow = 0
        for _ in range(200):
            began = simulation.now
            writer.write(b"x")
            await reader.readexactly(1)
            slow += simulation.now - began > 0.05
        writer.close()
        await writer.wait_closed()
        return slow

    assert simulate(1, scenario).result == 0
    assert 10 < simulate(1, scenario, network=NetworkProfile(spike_probability=0.1)).result < 90


@pytest.mark.parametrize("seed", range(10))
def test_bytes_arrive_whole_and_in_order_through_short_faults(seed: int) -> None:
    profile = NetworkProfile(
        split_probability=0.3,
        short_read_probability=0.3,
        spike_probability=0.05,
        socket_buffer_bytes=5_000,
    )

    async def scenario(simulation: Simulation) -> None:
        reader, writer = await connected(simulation)
        source = simulation.loop.random_of("test")
        sent = source.randbytes(200_000)

        async def disturb() -> None:
            for _ in range(10):
                await asyncio.sleep(source.random())
                ends = source.sample(["a", "outside"], 2)
                simulation.network.cut(source=ends[0], target=ends[1])
                simulation.network.stall(source=ends[1], target=ends[0], seconds=source.random())
                await asyncio.sleep(3 * source.random())
                simulation.network.heal()

        async def send() -> None:
            for start in range(0, len(sent), 3_000):
                writer.write(sent[start : start + 3_000])
                await writer.drain()
                await asyncio.sleep(source.random() / 5)

        async with asyncio.TaskGroup() as group:
            group.create_task(disturb())
            group.create_task(send())
            assert await reader.readexactly(len(sent)) == sent
        writer.close()
        await writer.wait_closed()

    simulate(seed, scenario, network=profile)


def test_a_connection_that_breaks_before_it_is_taken_is_lost_for_its_protocol_too() -> None:
    async def scenario(simulation: Simulation) -> None:
        await connected_and_dropped(simulation)
        protocol = Flow()
        ends = list(simulation.network.transports)
        ends[0].break_off(ConnectionResetError())
        await asyncio.sleep(0.1)
        ends[0].attach(protocol)
        await asyncio.sleep(0.1)
        assert protocol.events == [("lost", 1)]

    async def connected_and_dropped(simulation: Simulation) -> None:
        simulation.add_node("a").start(serve())
        await asyncio.sleep(0.1)
        loop = asyncio.get_running_loop()
        await loop.create_connection(Flow, "a", 7000)

    simulate(1, scenario)
