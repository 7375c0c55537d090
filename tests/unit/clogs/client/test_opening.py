"""A shipper as settings describe it."""

import asyncio
from pathlib import Path

import pytest

from raftwood.base.errors import InvalidConfiguration
from raftwood.base.settings import Secret
from raftwood.clogs.client.settings import ClogsClientSettings, WhenFull, client_settings
from raftwood.clogs.client.shipper import (
    _AskedServers,
    access_of,
    configuration_source,
    first_configuration,
    mask_of,
    open_shipper,
)
from raftwood.clogs.configuration import LogServer, RingConfiguration
from raftwood.clogs.configuration_sources import FileConfigurationSource
from raftwood.clogs.masking import MaskRule
from raftwood.disk.real_environment import real_environment
from tests.kits.clogs.ring import Ring, StaticSource, settings_of, versioned


def test_a_shipper_without_a_key_says_how_to_get_one() -> None:
    for settings in (
        settings_of(access_key=""),
        settings_of(access_secret=Secret()),
    ):
        with pytest.raises(InvalidConfiguration, match="raftwood key create"):
            access_of(settings)


def test_servers_are_a_ring_before_anybody_has_told_more() -> None:
    known = first_configuration(["logs-1:7290", "[::1]:11211"])
    assert [each.address for each in known.configuration.servers] == ["logs-1:7290", "[::1]:11211"]
    assert known.version == 0
    with pytest.raises(InvalidConfiguration):
        first_configuration([])


def test_masks_are_by_name_and_by_ones_own_rules() -> None:
    assert mask_of(()) is None
    mask = mask_of(["cards"], [MaskRule(name="pin", pattern="pin=[0-9]+")])
    assert mask is not None
    assert mask([b"pin=1 4111111111111111"])[0].startswith(b"*** ")
    for masks, rules in [(["cats"], []), ([], [MaskRule(name="bad", pattern="(")])]:
        with pytest.raises(InvalidConfiguration):
            mask_of(masks, rules)


def test_lines_go_to_the_servers_of_the_settings_or_of_a_file(tmp_path: Path) -> None:
    async def main() -> None:
        with real_environment() as environment:
            ring = Ring(environment)
            await ring.start("log-0")
            server = f"127.0.0.1:{ring.ports['log-0']}"
            host, _, port = server.partition(":")
            file = tmp_path / "ring.json"
            file.write_text(f'{{"servers": [{{"host": "{host}", "port": {port}}}]}}')
            for settings in (
                settings_of(servers=[server]),
                settings_of(servers=["127.0.0.1:1"], configuration_file=str(file)),
            ):
                async with await open_shipper(
                    environment, settings, tags=[("a", "b")], mask_rules=[]
                ) as shipper:
                    await shipper.send("a.log", [b"line"])
            assert ring.storage.lines("a.log") == [b"line", b"line"]
            source = configuration_source(environment, settings, access_of(settings))
            assert isinstance(source, FileConfigurationSource)
            await source.close()
            await ring.close()

    asyncio.run(main())


def test_servers_of_the_ring_tell_its_configuration_once_those_of_the_settings_are_gone() -> None:
    async def main() -> None:
        with real_environment() as environment:
            settings = settings_of(servers=["127.0.0.1:1"])
            source = _AskedServers(environment, settings, access_of(settings))
            servers = [LogServer("127.0.0.1", 2 + number) for number in range(5)]
            told = StaticSource(versioned(RingConfiguration(tuple(servers))))
            source._source = told  # type: ignore[assignment]
            changes = source.changes()
            for version in (0, 1):
                assert (await anext(changes)).version == version
            asked = set(source._links._servers)
            assert "127.0.0.1:1" in asked
            assert len(asked & {each.ring_name for each in servers}) == 3
            await source.close()
            assert [each async for each in changes] == []

    asyncio.run(main())


def test_settings_are_made_of_plain_data() -> None:
    made = client_settings(
        {
            "servers": ["a:1", "b:2"],
            "access_secret": "text",
            "when_full": "block",
            "memory_bytes_max": "1MiB",
            "exit_ms": "2s",
        }
    )
    assert made.servers == ("a:1", "b:2")
    assert made.access_secret.reveal() == "text"
    assert made.when_full is WhenFull.BLOCK
    assert (made.memory_bytes_max, made.exit_ms) == (1 << 20, 2000)
    # In a program they are given as texts, too.
    assert ClogsClientSettings(when_full="block").when_full is WhenFull.BLOCK  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="explode"):
        ClogsClientSettings(when_full="explode")  # type: ignore[arg-type]
