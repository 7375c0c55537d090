"""A file that changes under a client."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from raftwood.base.environment import Environment
from raftwood.base.files import Open, Rename, Truncate, Unlink, Write, perform
from raftwood.clogs.configuration import (
    RingConfiguration,
    VersionedConfiguration,
    encode_configuration,
)
from raftwood.clogs.configuration_sources import LOOK_S, FileConfigurationSource
from raftwood.disk.real_environment import real_environment
from raftwood.testing import Simulation, simulate
from tests.kits.clogs.rings import ring, versioned

PATH = "/ring.json"
A, B = ring("a"), ring("a", "b")


async def write(environment: Environment, data: bytes, path: str = PATH) -> None:
    await perform(
        environment.files,
        Open(path, create=True),
        Truncate(path, 0),
        Write(path, 0, [data]),
    )


async def write_ring(environment: Environment, configuration: RingConfiguration) -> None:
    await write(environment, encode_configuration(configuration))


async def following(changes: AsyncIterator[VersionedConfiguration]) -> VersionedConfiguration:
    async with asyncio.timeout(3 * LOOK_S):
        return await anext(changes)


async def is_quiet(changes: AsyncIterator[VersionedConfiguration]) -> bool:
    try:
        async with asyncio.timeout(5 * LOOK_S):
            await anext(changes)
    except TimeoutError:
        return True
    return False


def test_the_present_file_is_told_at_once_and_others_soon() -> None:
    async def scenario(simulation: Simulation) -> None:
        environment = simulation.environment
        await write_ring(environment, A)
        source = FileConfigurationSource(environment, PATH)
        changes = source.changes()
        loop = asyncio.get_running_loop()
        began = loop.time()
        assert await following(changes) == versioned(1, A)
        assert loop.time() - began < 0.1
        await write_ring(environment, B)
        assert await following(changes) == versioned(2, B)
        # Back to the first: another version, since versions are compared.
        await write_ring(environment, A)
        assert await following(changes) == versioned(3, A)
        await source.close()
        with pytest.raises(StopAsyncIteration):
            await anext(changes)

    simulate(1, scenario)


def test_versions_in_the_file_count_and_may_go_back() -> None:
    async def scenario(simulation: Simulation) -> None:
        environment = simulation.environment
        source = FileConfigurationSource(environment, "/ring.toml")
        text = b'version = %d\n[[servers]]\nhost = "10.0.0.1"\nport = 9097\nname = "a"\n'
        await write(environment, text % 9, "/ring.toml")
        changes = source.changes()
        assert await following(changes) == versioned(9, A)
        await write(environment, text % 8, "/ring.toml")
        assert await following(changes) == versioned(8, A)
        # Somebody forgot to give it another version: the digest shows it.
        await write(environment, text.replace(b'"a"', b'"b"') % 8, "/ring.toml")
        assert (await following(changes)).configuration.servers[0].name == "b"
        await source.close()

    simulate(1, scenario)


def test_the_last_good_one_stays_and_a_bad_file_is_told_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def scenario(simulation: Simulation) -> None:
        environment = simulation.environment
        await write_ring(environment, A)
        source = FileConfigurationSource(environment, PATH)
        changes = source.changes()
        await following(changes)
        await write(environment, b'{"servers": []}')
        await asyncio.sleep(10 * LOOK_S)
        await write(environment, b'{"servers": [{"host": "h", "port": 0}]}')
        await asyncio.sleep(10 * LOOK_S)
        await perform(environment.files, Unlink(PATH))
        await asyncio.sleep(10 * LOOK_S)
        await write_ring(environment, B)
        assert await following(changes) == versioned(2, B)
        await source.close()

    simulate(1, scenario)
    lines = [line for line in capsys.readouterr().err.splitlines() if "kept=" in line]
    assert len(lines) == 3
    assert "the ring has 0 servers: name 1 to 4096" in lines[0]
    assert "kept=version 1" in lines[0].replace("'", "")
    assert "port" in lines[1]
    assert "there is no such file" in lines[2]


def test_a_file_that_comes_later_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    async def scenario(simulation: Simulation) -> None:
        source = FileConfigurationSource(simulation.environment, PATH)
        changes = source.changes()
        assert await is_quiet(changes)
        changes = source.changes()
        await write_ring(simulation.environment, A)
        assert await following(changes) == versioned(1, A)
        await source.close()

    simulate(1, scenario)
    assert capsys.readouterr().err.count("there is no such file") == 1


def test_other_white_space_is_no_change() -> None:
    async def scenario(simulation: Simulation) -> None:
        environment = simulation.environment
        await write_ring(environment, A)
        source = FileConfigurationSource(environment, PATH)
        changes = source.changes()
        await following(changes)
        await write(environment, encode_configuration(A) + b"\n\n")
        assert await is_quiet(changes)
        await source.close()

    simulate(1, scenario)


def test_a_file_that_is_still_being_written_is_not_taken() -> None:
    head = b'[[servers]]\nhost = "10.0.0.1"\nport = 9097\nname = "a"\n'
    half = head + head.replace(b"9097", b"9098").replace(b'"a"', b'"b"')
    whole = half + head.replace(b"9097", b"9099").replace(b'"a"', b'"c"')

    told: list[int] = []

    async def scenario(simulation: Simulation) -> None:
        environment = simulation.environment
        path = "/ring.toml"
        await write(environment, head, path)
        source = FileConfigurationSource(environment, path)

        async def listen() -> None:
            told.extend([len(each.configuration.servers) async for each in source.changes()])

        listening = asyncio.create_task(listen())
        for step in range(40):
            await asyncio.sleep(0.9 + step / 37)
            await write(environment, half, path)
            await asyncio.sleep(0.2)
            await write(environment, whole, path)
            await asyncio.sleep(3 * LOOK_S)
            await write(environment, head, path)
            await asyncio.sleep(3 * LOOK_S)
        await source.close()
        await listening

    simulate(1, scenario)
    assert set(told) == {1, 3}
    assert len(told) == 81


def test_a_file_that_is_replaced_by_another_one_is_read(tmp_path: Path) -> None:
    """On a real disk: whoever keeps a descriptor would read the old one for ever."""
    path = tmp_path / "ring.json"
    path.write_bytes(encode_configuration(A))

    async def main() -> None:
        with real_environment() as environment:
            source = FileConfigurationSource(environment, str(path))
            changes = source.changes()
            assert await following(changes) == versioned(1, A)
            beside = tmp_path / "ring.json.new"
            beside.write_bytes(encode_configuration(B))
            beside.rename(path)
            assert await following(changes) == versioned(2, B)
            await source.close()

    asyncio.run(main())


def test_many_follow_one_source() -> None:
    async def scenario(simulation: Simulation) -> None:
        environment = simulation.environment
        await write_ring(environment, A)
        source = FileConfigurationSource(environment, PATH)
        one, two = source.changes(), source.changes()
        assert await following(one) == await following(two) == versioned(1, A)
        await perform(environment.files, Rename(PATH, "/elsewhere"))
        await write_ring(environment, B)
        assert await following(one) == await following(two) == versioned(2, B)
        await source.close()
        assert [each async for each in source.changes()] == []

    simulate(1, scenario)
