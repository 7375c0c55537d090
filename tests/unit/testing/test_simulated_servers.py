"""Servers and transports at their edges: shutting down, half-made connections, broken protocols."""

import asyncio
import errno
from typing import Any

import pytest

from raftwood.base.environment import Environment
from raftwood.base.files import DataSync, Open, Write, perform
from raftwood.testing import (
    DISK_ERRORS,
    FaultInjector,
    NetworkProfile,
    Simulation,
    SwarmProfile,
    simulate,
)


class Quiet(asyncio.Protocol):
    """Keeps its connection and notes how it ended."""

    transport: asyncio.Transport
    lost: BaseException | str | None = "no"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = exc


async def quiet_server(simulation: Simulation, **options: Any) -> list[Quiet]:
    accepted: list[Quiet] = []

    def factory() -> Quiet:
        accepted.append(Quiet())
        return accepted[-1]

    async def program(_: Environment) -> None:
        await asyncio.get_running_loop().create_server(factory, "a", 7000, **options)
        await asyncio.sleep(1e6)

    simulation.add_node("a").start(program)
    await asyncio.sleep(0.1)
    return accepted


async def connect() -> Quiet:
    _, protocol = await asyncio.get_running_loop().create_connection(Quiet, "a", 7000)
    return protocol


def test_a_server_serves_until_it_is_cancelled() -> None:
    async def scenario(_: Simulation) -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(Quiet, "127.0.0.1", 7000, start_serving=False)
        task = asyncio.create_task(server.serve_forever())
        await asyncio.sleep(1)
        assert server.is_serving()
        with pytest.raises(RuntimeError, match="already being awaited"):
            await server.serve_forever()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not server.is_serving()
        with pytest.raises(RuntimeError, match="is closed"):
            await server.serve_forever()

    simulate(1, scenario)


def test_closing_a_server_ends_its_serve_forever() -> None:
    async def scenario(_: Simulation) -> None:
        server = await asyncio.get_running_loop().create_server(Quiet, "127.0.0.1", 7000)
        task = asyncio.create_task(server.serve_forever())
        await asyncio.sleep(1)
        server.close()
        server.close()
        with pytest.raises(asyncio.CancelledError):
            await task

    simulate(1, scenario)


def test_wait_closed_waits_for_the_connections() -> None:
    async def scenario(simulation: Simulation) -> float:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(Quiet, "127.0.0.1", 7000)
        transport, _ = await loop.create_connection(Quiet, "127.0.0.1", 7000)
        await asyncio.sleep(0.1)
        loop.call_later(5, transport.close)
        server.close()
        await server.wait_closed()
        return simulation.now

    assert 5 < simulate(1, scenario).result < 5.2


def test_a_server_binds_only_to_its_own_node() -> None:
    async def scenario(simulation: Simulation) -> None:
        simulation.add_node("a")
        loop = asyncio.get_running_loop()
        with pytest.raises(OSError, match="not an address") as caught:
            await loop.create_server(Quiet, "a", 7000)
        assert caught.value.errno == errno.EADDRNOTAVAIL
        with pytest.raises(NotImplementedError, match="one name"):
            await loop.create_server(Quiet, ["a", "b"], 7000)
        with pytest.raises(ValueError, match="port"):
            await loop.create_connection(Quiet, "a")

    simulate(1, scenario)


def test_a_full_backlog_lets_connects_time_out() -> None:
    async def scenario(simulation: Simulation) -> None:
        accepted = await quiet_server(simulation, backlog=2)
        simulation.machines["a"].pause()
        connections = [await connect() for _ in range(2)]
        with pytest.raises(TimeoutError):
            await connect()
        assert accepted == []
        simulation.machines["a"].resume()
        await asyncio.sleep(0.1)
        assert len(accepted) == 2
        connections.append(await connect())
        for connection in connections:
            connection.transport.close()
        await asyncio.sleep(0.1)

    simulate(1, scenario)


def test_a_connect_that_is_given_up_is_reset_at_the_server() -> None:
    async def scenario(simulation: Simulation) -> None:
        accepted = await quiet_server(simulation)
        task = asyncio.create_task(connect())
        await simulation.wait_until(lambda: bool(accepted), every_s=0.0001)
        task.cancel()
        await asyncio.sleep(1)
        assert isinstance(accepted[0].lost, ConnectionResetError)

    simulate(1, scenario)


@pytest.mark.parametrize("way", ["kill", "power_off"])
def test_a_client_that_dies_while_it_connects_is_heard_of_only_if_it_has_power(way: str) -> None:
    async def scenario(simulation: Simulation) -> None:
        accepted = await quiet_server(simulation)

        async def client(_: Environment) -> None:
            await connect()
            raise AssertionError("connected")

        b = simulation.add_node("b")
        b.start(client)
        await simulation.wait_until(lambda: bool(accepted), every_s=0.0001)
        getattr(b, way)()
        await asyncio.sleep(60)
        if way == "kill":
            assert isinstance(accepted[0].lost, ConnectionResetError)
        else:
            assert accepted[0].lost == "no"

    simulate(1, scenario)


def test_a_connection_waiting_at_a_server_that_closes_is_reset() -> None:
    async def scenario(_: Simulation) -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(Quiet, "127.0.0.1", 7000)

        async def close() -> None:
            await asyncio.sleep(0.00002)
            server.close()

        async with asyncio.TaskGroup() as group:
            group.create_task(close())
            transport, protocol = await loop.create_connection(Quiet, "127.0.0.1", 7000)
            await asyncio.sleep(0.1)
        if protocol.lost == "no":
            transport.close()
            await asyncio.sleep(0.1)

    simulate(1, scenario)


class BrokenBuffer(asyncio.BufferedProtocol):
    def get_buffer(self, sizehint: int) -> bytearray:
        return bytearray(max(0, sizehint))


class BrokenEnd(asyncio.Protocol):
    def eof_received(self) -> bool:
        raise ValueError("broken at the end")


class BrokenStart(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        raise ValueError(f"broken at the start of {transport.is_closing()}")


@pytest.mark.parametrize(
    ("factory", "message"),
    [(BrokenBuffer, "empty buffer"), (BrokenEnd, "at the end"), (BrokenStart, "at the start")],
)
def test_a_protocol_that_breaks_costs_only_its_connection(
    factory: type[asyncio.BaseProtocol], message: str
) -> None:
    async def scenario(simulation: Simulation) -> list[str]:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(factory, "127.0.0.1", 7000)
        transport, protocol = await loop.create_connection(Quiet, "127.0.0.1", 7000)
        transport.write(b"x")
        transport.write_eof()
        await asyncio.sleep(0.1)
        assert isinstance(protocol.lost, ConnectionResetError)
        server.close()
        await server.wait_closed()
        errors, simulation.loop.errors = simulation.loop.errors, []
        return errors

    (error,) = simulate(1, scenario).result
    assert message in error


def test_a_protocol_that_breaks_in_flow_control_is_reported_and_goes_on() -> None:
    class BrokenFlow(Quiet):
        def pause_writing(self) -> None:
            raise ValueError("cannot pause")

    async def scenario(simulation: Simulation) -> list[str]:
        accepted = await quiet_server(simulation)
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_connection(BrokenFlow, "a", 7000)
        await asyncio.sleep(0.1)
        accepted[0].transport.pause_reading()
        transport.write(bytes(200_000))
        accepted[0].transport.resume_reading()
        await asyncio.sleep(1)
        assert transport.get_write_buffer_size() == 0
        transport.close()
        await asyncio.sleep(0.1)
        errors, simulation.loop.errors = simulation.loop.errors, []
        return errors

    (error,) = simulate(1, scenario, network=NetworkProfile(socket_buffer_bytes=1000)).result
    assert "cannot pause" in error


def test_a_transport_refuses_what_asyncio_refuses() -> None:
    async def scenario(simulation: Simulation) -> None:
        accepted = await quiet_server(simulation)
        transport = (await connect()).transport
        with pytest.raises(TypeError, match="bytes-like"):
            transport.write("text")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="must be >="):
            transport.set_write_buffer_limits(high=1, low=2)
        transport.set_write_buffer_limits(low=10)
        assert transport.get_write_buffer_limits() == (10, 40)
        transport.set_write_buffer_limits(0)
        assert transport.get_write_buffer_limits() == (0, 0)
        transport.set_write_buffer_limits()
        assert transport.get_write_buffer_limits() == (16 * 1024, 64 * 1024)
        assert transport.is_reading()
        assert transport.can_write_eof()
        assert isinstance(transport.get_protocol(), Quiet)
        assert transport.get_extra_info("sockname")[0] == "outside"
        assert transport.get_extra_info("nothing", 7) == 7
        transport.write_eof()
        transport.write_eof()
        with pytest.raises(RuntimeError, match="after write_eof"):
            transport.write(b"x")
        await asyncio.sleep(0.1)
        # By default a protocol closes when its peer has no more to say.
        assert accepted[0].lost is None
        transport.close()
        transport.write_eof()
        transport.abort()
        transport.abort()
        await asyncio.sleep(0.1)
        assert transport.is_closing()

    simulate(1, scenario)


def test_a_process_that_ends_itself_after_a_disk_error_is_started_again() -> None:
    starts: list[float] = []

    async def scenario(simulation: Simulation) -> dict[str, int]:
        async def program(environment: Environment) -> None:
            starts.append(simulation.now)
            try:
                await perform(environment.files, Open("/data/file", create=True))
                while True:
                    await perform(environment.files, Write("/data/file", 0, [b"x"]))
                    await perform(environment.files, DataSync("/data/file"))
                    await asyncio.sleep(0.01)
            except OSError as error:
                environment.end_process(str(error))

        machine = simulation.add_node("a")
        machine.start(program)
        profile = SwarmProfile(seed=1, every_s=dict.fromkeys(DISK_ERRORS, 3.0))
        injector = FaultInjector(simulation, profile)
        await injector.run(until=60)
        await asyncio.sleep(5)
        assert machine.running
        return injector.counts

    counts = simulate(1, scenario).result
    assert counts["sync_error"] > 5
    assert counts["write_error"] > 5
    assert len(starts) > 10
